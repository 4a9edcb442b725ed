"""The parts of weight matching: matrices that follow the search, kicks, soft starts, what effort buys."""

from __future__ import annotations

import threading
import time

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from rebasin_cli.checkpoints.tensors import LazyTensors, held
from rebasin_cli.errors import CheckpointError, UsageError
from rebasin_cli.matchers import Problem, State, wm
from rebasin_cli.matchers.descent import blocks, proof, sampling, similarity, soft, values
from rebasin_cli.matchers.descent.descent import Descent
from rebasin_cli.matchers.descent.pair import Pair
from rebasin_cli.matchers.descent.similarity import Similarities, kept_words
from rebasin_cli.runtime.ranks import Ranks
from rebasin_cli.runtime.seeds import generator
from rebasin_cli.spec.atoms import atoms
from rebasin_cli.spec.fits import fit
from rebasin_cli.spec.notation import Word
from rebasin_cli.spec.parser import parse
from rebasin_cli.symmetry import assignment, permutation
from rebasin_cli.symmetry.permutation import permuted
from tests.matchers.test_matchers import equal, fit_recurrent, plain_objective, recurrent, setting

NETS = ["mlp", "tinyten", "googlenet"]


def pair_of(net: str) -> Pair:
    _, fitted, models = setting(net)
    return Pair(*models[:2], fitted)


def moved(permutations, words, share: float, seed: int):
    """Some words' permutations with a share of the units in another order."""
    rng, found = generator(seed, "test"), dict(permutations)
    for word in words:
        found[word] = found[word].clone()
        some = torch.randperm(len(found[word]), generator=rng)[: max(2, int(share * len(found[word])))]
        found[word][some] = found[word][some.roll(1)]
    return found


# ------------------------------------------------------------------------------------- similarities


@pytest.mark.parametrize("net", ["mlp", "tinyten", pytest.param("googlenet", marks=pytest.mark.sweep)])
@pytest.mark.parametrize("share", [0.1, 0.5, 1.0])
def test_a_matrix_that_followed_the_search_is_the_one_made_anew(net, share):
    pair = pair_of(net)
    following, at = Similarities(pair), permutation.identity(pair.words)
    words = sorted(pair.words)
    with pair.computing():
        for word in words:
            following.matrix(word, at)
        for step in range(3):
            at = moved(at, words[step::2], share, step)
            for word in words:
                expected = pair.matrix(word, at)
                torch.testing.assert_close(following.matrix(word, at), expected, rtol=1e-5, atol=1e-5)


def test_a_matrix_follows_a_neighbour_on_two_axes_of_a_tensor():
    spec = parse("tensors:\n  w: 'o h h'\n  v: 'h .'\n", name="test")
    fitted = fit(spec, {"w": (6, 20, 20), "v": (20, 3)})
    rng = generator(0, "test")
    a, b = ({n: torch.randn(s, generator=rng) for n, s in fitted.shapes.items()} for _ in range(2))
    pair, at = Pair(a, b, fitted), permutation.identity(fitted.words)
    following = Similarities(pair)
    with pair.computing():
        following.matrix("o", at)
        at = moved(at, ["h"], 0.1, 0)
        torch.testing.assert_close(following.matrix("o", at), pair.matrix("o", at), rtol=1e-4, atol=1e-4)


def test_only_what_moved_is_multiplied_again(monkeypatch):
    pair = pair_of("mlp")
    following, at, columns = Similarities(pair), permutation.identity(pair.words), []
    add = Pair._add_product
    monkeypatch.setattr(
        Pair, "_add_product", lambda self, out, a, b: (columns.append(a.shape[1]), add(self, out, a, b))
    )
    with pair.computing():
        following.matrix("h1", at)
        assert sum(columns) == pair.columns(pair.single["h1"], "h1")
        columns.clear()
        following.matrix("h1", at)
        assert not columns
        at = {**at, "h0": at["h0"].clone()}
        at["h0"][:2] = at["h0"][:2].flip(0)
        following.matrix("h1", at)
        assert sum(columns) == 2
        columns.clear()
        following.matrix("h1", {**at, "h0": at["h0"].flip(0), "h2": at["h2"].flip(0)})
        assert sum(columns) <= pair.columns(pair.single["h1"], "h1")  # never more than anew


def test_evidence_may_grow_and_is_made_anew_where_it_shrinks():
    pair = pair_of("mlp")
    following, at = Similarities(pair), permutation.random(pair.words, generator(0, "test"))
    with pair.computing():
        for chosen in (pair.resting_on("h1", {"h0"}), pair.single["h1"], pair.resting_on("h1", {"h2"})):
            expected = pair.matrix("h1", at, chosen=chosen)
            torch.testing.assert_close(following.matrix("h1", at, chosen=chosen), expected)


def test_what_fits_is_kept_small_matrices_first():
    words = {"a": 100, "b": 10, "c": 20}
    assert kept_words(words, 4, 4 * (100 + 400)) == {"b", "c"}
    assert kept_words(words, 4, 4 * 10_500) == {"a", "b", "c"}
    assert kept_words(words, 8, 4 * 500) == {"b"}
    assert kept_words(words, 4, 0) == set()


@pytest.mark.parametrize("net", ["mlp", "tinyten"])
def test_keeping_nothing_finds_the_same(net):
    _, fitted, models = setting(net)
    kept, fresh = (
        wm.match(Problem(fitted, models[:2]), wm.Options(memory=memory)) for memory in (1 << 26, 0)
    )
    assert equal(kept.permutations[0], fresh.permutations[0])
    assert kept.objective_after == fresh.objective_after


def test_what_lies_in_files_is_read_before_the_search_on_all_threads_and_once():
    """With two threads: nobody waits for memory alone."""
    _, fitted, models = setting("googlenet")
    read, readers = [], set()

    def lazily(model):
        def get(name):
            read.append(name)
            readers.add(threading.get_ident())
            time.sleep(1e-3)  # so that both get their turn
            return model[name]

        shapes, dtypes = (
            {name: getattr(t, what) for name, t in model.items()} for what in ("shape", "dtype")
        )
        return held(LazyTensors(shapes, dtypes, get), computed=True)

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        found = wm.match(Problem(fitted, tuple(map(lazily, models[:2]))))
    finally:
        torch.set_num_threads(before)
    wanted = {atom.tensor for atom in atoms(fitted) if any(atom.words)}
    assert sorted(read) == sorted([*wanted, *wanted]) and len(readers) == 2
    expected = wm.match(Problem(fitted, models[:2]))
    assert equal(found.permutations[0], expected.permutations[0])
    assert found.objective_after == expected.objective_after


def test_after_an_error_the_other_threads_begin_nothing_new():
    """With two threads: an interrupt comes to one of them."""
    done, before = [], torch.get_num_threads()

    def task(number):
        if threading.current_thread() is threading.main_thread():
            raise KeyboardInterrupt
        done.append(number)
        time.sleep(1e-3)

    torch.set_num_threads(2)
    try:
        with (pair := pair_of("mlp")).computing(), pytest.raises(KeyboardInterrupt):
            pair.run(task, range(1_000))
    finally:
        torch.set_num_threads(before)
    assert len(done) < 100


def test_copies_with_another_axis_first_make_no_difference(monkeypatch):
    _, fitted, models = setting("googlenet")
    with_copies = wm.match(Problem(fitted, models[:2]))
    monkeypatch.setattr(blocks, "TURNED", 0)
    without = wm.match(Problem(fitted, models[:2]))
    assert equal(with_copies.permutations[0], without.permutations[0])


@pytest.mark.parametrize("net", [*NETS, "recurrent"])
def test_a_gain_is_the_difference_of_objectives(net):
    if net == "recurrent":
        fitted, models = fit_recurrent(), (recurrent(0), recurrent(1))
    else:
        _, fitted, models = setting(net)
    pair, still = Pair(*models[:2], fitted), permutation.identity(fitted.words)
    start = permutation.random(fitted.words, generator(1, "test"))
    with pair.computing():
        before = plain_objective(fitted, models[:2], (still, start))
        assert pair.objective(start) == pytest.approx(before, rel=1e-6, abs=1e-4)
        for word in sorted(fitted.words)[:4]:
            perm = moved(start, [word], 0.5, 2)[word]
            after = plain_objective(fitted, models[:2], (still, {**start, word: perm}))
            assert pair.gain(word, start, perm) == pytest.approx(after - before, rel=1e-6, abs=1e-9)


def test_no_objective_exceeds_the_norms():
    pair = pair_of("mlp")
    a, b = pair.unit_norms("h1")
    atoms = [atom for atom in pair.atoms if "h1" in atom.words]
    views = zip(*(pair._views(atom) for atom in atoms), strict=True)
    squares = [sum(view.double().square().sum().item() for view in side) for side in views]
    assert a.square().sum().item() == pytest.approx(squares[0])
    assert b.square().sum().item() == pytest.approx(squares[1])
    assert pair.scale("h1") == pytest.approx((squares[0] * squares[1]) ** 0.5)
    _, fitted, models = setting("mlp")
    same = Pair(models[0], models[0], fitted)
    with same.computing():
        assert same.objective(permutation.identity(fitted.words)) == pytest.approx(same.limit())


# -------------------------------------------------------------------------------------------- proofs


def near(net: str, noise: float, seed: int = 0):
    """A model, and a permuted noisy copy of it."""
    _, fitted, (a, *_) = setting(net)
    rng = generator(seed, "noise")
    b = {name: t + noise * t.std(correction=0) * torch.randn(t.shape, generator=rng) for name, t in a.items()}
    return fitted, a, dict(permutation.permuted(b, fitted, permutation.random(fitted.words, rng)))


@pytest.mark.parametrize("scale", [1.0, 20.0])
@pytest.mark.parametrize("noise", [0.1, 0.3, 1.0, 2.0])
def test_what_is_proven_is_what_the_whole_matrix_says(noise, scale):
    proofs = tried = 0
    for seed in range(4):
        fitted, a, b = near("mlp", noise, seed)
        pair = Pair(a, {name: scale * tensor for name, tensor in b.items()}, fitted)
        with pair.computing():
            descent = Descent(pair, 1e-12)
            descent.proving = True
            found = descent.outward(descent.order(0, "test"), permutation.identity(fitted.words))
            for word in descent.words:
                tried += 1
                if descent._proven(word, found):
                    proofs += 1
                    whole = assignment.solve(pair.matrix(word, found).double())
                    assert torch.equal(whole.perm, found[word])
    assert proofs == tried if noise <= 0.3 else proofs < tried


def test_a_margin_that_new_tensors_use_up_is_no_proof():
    """The part says "stay", the rest says "swap", by less or by more."""
    fitted = fit(parse("tensors:\n  u: 'h .'\n  v: 'h .'\n", name="test"), {"u": (2, 2), "v": (2, 1)})
    for strength, expected in [(0.1, True), (0.45, True), (0.55, False), (3.0, False)]:
        a = {"u": torch.eye(2), "v": strength**0.5 * torch.tensor([[1.0], [-1.0]])}
        b = {"u": torch.eye(2), "v": -a["v"]}
        pair, still = Pair(a, b, fitted), permutation.identity({"h": 2})
        part, added = ([atom for atom in pair.atoms if atom.tensor == name] for name in "uv")
        with pair.computing():
            solution = assignment.solve(pair.matrix("h", still, chosen=part))
            left = proof.margins_left(pair, "h", solution.margins, added, still)
            assert proof.proven(pair, "h", left) == expected
            whole = assignment.solve(pair.matrix("h", still))
        assert torch.equal(whole.perm, still["h"]) == expected


def test_a_near_copy_is_matched_without_a_second_solve():
    fitted, a, b = near("mlp", 0.1)
    result = wm.match(Problem(fitted, (a, b)))
    assert result.converged and result.sweeps == 2 and result.solves == len(fitted.words)


def test_nothing_is_proven_after_a_neighbour_moved():
    fitted, a, b = near("mlp", 0.1)
    with (pair := Pair(a, b, fitted)).computing():
        descent = Descent(pair, 1e-12)
        descent.proving = True
        found = descent.outward(["h0", "h1", "h2"], permutation.identity(fitted.words))
        assert descent._proven("h1", found)
        for word in ("h0", "h1"):
            assert not descent._proven("h1", moved(found, [word], 0.5, 0))
        descent.proving = False
        assert not descent._proven("h1", found)


WIDE = fit(
    parse("tensors:\n  into: 'p .'\n  bias: 'p'\n  next: 'q p'\n  out: '. q'\n", name="test"),
    {"into": (96, 200), "bias": (96,), "next": (80, 96), "out": (40, 80)},
)


def wide(noise: float, seed: int = 0):
    """A model of units whose norms differ by much, and a permuted noisy copy."""
    rng = generator(seed, "wide")
    shapes = {"into": (96, 200), "bias": (96,), "next": (80, 96), "out": (40, 80)}
    a = {name: torch.randn(shape, generator=rng) for name, shape in shapes.items()}
    a["into"] *= torch.logspace(-1, 0.5, 96)[:, None]
    b = {name: tensor + noise * torch.randn(tensor.shape, generator=rng) for name, tensor in a.items()}
    return a, dict(permutation.permuted(b, WIDE, permutation.random(WIDE.words, rng)))


@pytest.fixture
def small_samples(monkeypatch):
    monkeypatch.setattr(sampling, "UNITS", 64)
    monkeypatch.setattr(sampling, "COLUMNS", 24)


def swept(a, b, *, sampling: bool):
    """What the first sweep finds, the numbers multiplied, and the words that ended with margins."""
    pair, work = Pair(a, b, WIDE), []
    pair._add_product = lambda out, x, y, *_: (work.append(out.numel() * x.shape[1]), out.addmm_(x, y.T))
    with pair.computing():
        descent = Descent(pair, 1e-12)
        descent.sampling = sampling
        found = descent.outward(descent.order(0, "test"), permutation.identity(WIDE.words))
    return found, sum(work), descent


@pytest.mark.parametrize("scale", [1.0, 1e-3])
@pytest.mark.parametrize("seed", range(3))
def test_a_sample_of_near_copies_finds_what_all_columns_find(small_samples, seed, scale):
    a, b = wide(0.02, seed)
    b = {name: scale * tensor for name, tensor in b.items()}
    found, work, descent = swept(a, b, sampling=True)
    whole, more, _ = swept(a, b, sampling=False)
    assert equal(found, whole) and descent.sampling and 2 * work < more
    for word, at in found.items():
        atoms = descent.assignments.bases[word].atoms
        matched = descent.pair.matrix(word, found, chosen=atoms).double()[:, at]
        # what an exchange of two rows' columns costs is at least both rows' margins
        lost = matched.diag()[:, None] + matched.diag() - matched - matched.T
        least = descent.assignments.margins[word][:, None] + descent.assignments.margins[word]
        assert (lost - least).fill_diagonal_(torch.inf).min() > -1e-6 * matched.abs().max()


@pytest.mark.parametrize("noise", [0.5, 1.0, 30.0])
def test_a_sample_that_proves_nothing_changes_nothing(small_samples, noise):
    a, b = wide(noise)
    found, _, descent = swept(a, b, sampling=True)
    assert equal(found, swept(a, b, sampling=False)[0]) and not descent.sampling


@pytest.mark.parametrize(("strength", "believed"), [(0.3, True), (3.0, False)])
def test_columns_outside_the_sample_are_heard(small_samples, strength, believed):
    """Columns in the sample say that all units are in place, the others that the last two are exchanged."""
    a, _ = wide(0.0)
    other = torch.ones(200, dtype=torch.bool)
    other[torch.arange(24) * 200 // 24] = False
    a["into"][-2:, other] = strength
    a["into"][-1, other] *= -1
    b = {name: tensor.clone() for name, tensor in a.items()}
    b["into"][-2:, other] *= -1
    found, _, descent = swept(a, b, sampling=True)
    assert equal(found, swept(a, b, sampling=False)[0]) and descent.sampling == believed
    assert torch.equal(found["p"][-2:], torch.tensor([94, 95] if believed else [95, 94]))


def test_a_sample_of_several_tensors_lies_beside_each_other_and_has_a_bound(monkeypatch):
    a, b = wide(0.02)
    pair = Pair(a, b, WIDE)
    chosen, still = pair.single["p"], permutation.identity(WIDE.words)
    assert len(chosen) > 1
    for side, parts in zip(
        pair.sample("p", still, chosen, 0.3),
        zip(*(pair.sample("p", still, [atom], 0.3) for atom in chosen), strict=True),
        strict=True,
    ):
        assert torch.equal(side, torch.cat(parts, dim=1))
    monkeypatch.setattr(sampling, "COLUMNS", 8)
    monkeypatch.setattr(sampling, "SHARE", 0.5)
    monkeypatch.setattr(sampling, "ROOM", 20 * 96 * 4)
    found = sampling.draw(pair, "p", chosen, still)
    assert found is None or found.share * pair.columns(sampling._wide(pair, "p", chosen), "p") <= 20


@pytest.mark.parametrize("dim", [0, 1])
def test_what_is_made_wide_in_slabs_is_what_the_whole_is(monkeypatch, dim):
    a, b = ({name: tensor.bfloat16() for name, tensor in model.items()} for model in wide(0.02))
    pair = Pair(a, b, WIDE)
    monkeypatch.setattr(values, "SLAB", 1000)
    for what in (torch.sum, torch.mean):
        found = pair._over_units(what, a["into"], dim)
        assert torch.allclose(found, what(a["into"].float(), dim), rtol=1e-5, atol=1e-4)


def test_an_objective_that_was_summed_is_not_summed_again(small_samples, monkeypatch):
    a, b = wide(0.02)
    found, _, descent = swept(a, b, sampling=True)
    assert descent.summed and not swept(a, b, sampling=False)[2].summed
    assert descent.reached(found) == Pair(a, b, WIDE).objective(found)
    calls = []
    original = Pair.objective
    monkeypatch.setattr(Pair, "objective", lambda *each: calls.append(1) or original(*each))
    result = wm.match(Problem(WIDE, (a, b), 0))
    assert len(calls) == 1  # before
    monkeypatch.undo()
    assert result.objective_after == Pair(a, b, WIDE).objective(result.permutations[0])


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_what_is_not_finite_is_noticed_outside_the_sample(small_samples, value):
    a, b = wide(0.02)
    b["into"][7, 1] = value
    assert 1 not in torch.arange(24) * 200 // 24
    with pytest.raises(CheckpointError, match="NaN or infinite"):
        swept(a, b, sampling=True)


@pytest.mark.parametrize("net", NETS)
def test_vectors_of_a_word_are_one_block(net):
    pair = pair_of(net)
    vectors = [atom for atom in pair.atoms if len(pair.shapes[atom]) == 1]
    words = [atom.words[0] for atom in vectors]
    assert len(words) == len({*words}) and not {*words} & {bundle.words[0] for bundle in pair._bundles}
    for bundle, parts in pair._bundles.items():
        a, b = pair._views(bundle)
        assert tuple(a.shape) == pair.shapes[bundle] == (pair.words[bundle.words[0]], len(parts))
        for k, part in enumerate(parts):
            assert torch.equal(a[:, k], pair.reference[part.tensor])
            assert torch.equal(b[:, k], pair.model[part.tensor])


# --------------------------------------------------------------------------------- effort and kicks


@pytest.fixture
def kicking(monkeypatch):
    """Every normal search is kicked."""
    monkeypatch.setattr(wm, "LITTLE", -1.0)
    monkeypatch.setattr(wm, "NEAR", 10.0)


@pytest.mark.parametrize("net", ["mlp", "tinyten"])
def test_more_effort_never_ends_lower_from_the_same_start(net, kicking):
    _, fitted, models = setting(net)
    fast, normal, high = (
        wm.match(Problem(fitted, models[:2], 1), wm.Options(effort=effort))
        for effort in ("fast", "normal", "high")
    )
    assert fast.objective_after <= normal.objective_after * (1 + 1e-9)
    assert high.objective_after > fast.objective_after
    assert fast.solves < normal.solves < high.solves
    assert all(result.converged for result in (fast, normal, high))


def test_what_an_attempt_gained_counts_where_the_sweeps_are_used_up_in_it(kicking):
    _, fitted, models = setting("mlp")
    states: list[State] = []
    whole = wm.match(Problem(fitted, models[:2], 1, progress=states.append))
    short = [
        wm.match(Problem(fitted, models[:2], 1), wm.Options(max_sweeps=count)).objective_after
        for count in range(1, whole.sweeps + 1)
    ]
    assert short == sorted(short) and short[-1] == whole.objective_after
    assert any(found > state.objective * (1 + 1e-6) for found, state in zip(short, states, strict=True))


def test_searches_of_narrow_words_leave_smaller_gains(monkeypatch):
    _, fitted, models = setting("mlp")
    sweep, left = Descent.sweep, []

    def watched(self, *args):
        left.append(self.tolerance)
        return sweep(self, *args)

    monkeypatch.setattr(Descent, "sweep", watched)
    for wide, effort, expected in ((768, "normal", 1e-4), (768, "fast", 3e-4), (1, "normal", 3e-4)):
        monkeypatch.setattr(wm, "WIDE", wide)
        left.clear()
        wm.match(Problem(fitted, models[:2], 1), wm.Options(effort=effort))
        assert max(left) == expected


def test_narrow_words_are_kicked_three_times_and_wide_ones_alone_once_more_in_the_end(kicking, monkeypatch):
    _, fitted, models = setting("mlp")

    def searched(seed):
        """The objective, and which attempts came next after those that ended."""
        states: list[State] = []
        found = wm.match(Problem(fitted, models[:2], seed, progress=states.append))
        return found.objective_after, {state.notes.get("attempt", 0) for state in states}

    narrow = [searched(seed) for seed in range(8)]
    assert all({2, 3, 4} <= attempts and not {5, 6} & attempts for _, attempts in narrow)
    monkeypatch.setattr(wm, "NARROW", 1)
    between = [searched(seed) for seed in range(8)]
    assert all({2, 4} <= attempts and not {3, 5, 6} & attempts for _, attempts in between)
    monkeypatch.setattr(wm, "WIDE", max(fitted.words.values()))
    wide = [searched(seed) for seed in range(8)]
    assert all(6 in attempts for _, attempts in wide)
    assert {2 in attempts for _, attempts in wide} == {True, False}  # again where a kick gained nothing
    monkeypatch.setitem(wm.ATTEMPTS, "normal", wm.ATTEMPTS["normal"][:5])
    without = [searched(seed) for seed in range(8)]
    pairs = [(now, before) for (now, _), (before, _) in zip(wide, without, strict=True)]
    assert all(now >= before * (1 - 1e-12) for now, before in pairs)
    assert any(now > before * (1 + 1e-6) for now, before in pairs)


def test_a_soft_start_gains_on_narrow_networks(monkeypatch):
    _, fitted, models = setting("mlp")
    normal = wm.match(Problem(fitted, models[:2]))
    monkeypatch.setitem(wm.ATTEMPTS, "high", ("descent", "soft", "polish"))
    assert (
        wm.match(Problem(fitted, models[:2]), wm.Options(effort="high")).objective_after
        > normal.objective_after
    )
    monkeypatch.setattr(wm, "fits", lambda words, memory: False)
    without = wm.match(Problem(fitted, models[:2]), wm.Options(effort="high"))
    assert without.objective_after == pytest.approx(normal.objective_after)


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("net", ["mlp", pytest.param("tinyten", marks=pytest.mark.sweep)])
def test_a_search_interrupted_anywhere_goes_on_to_the_same_result(net, wide, kicking, monkeypatch):
    monkeypatch.setattr(wm, "WIDE", 1 if wide else 10**9)
    monkeypatch.setattr(wm, "ROUGH", 2e-3)  # much is left to polish
    _, fitted, models = setting(net)
    for seed in (3, 4):
        states: list[State] = []
        whole = wm.match(Problem(fitted, models[:2], seed, progress=states.append))
        attempts = [state.notes.get("attempt", 0) for state in states]
        assert attempts == sorted(attempts) and 1 in attempts and attempts[-1] >= 3
        for state in states:
            resumed = wm.match(Problem(fitted, models[:2], seed, start=state))
            assert equal(resumed.permutations[0], whole.permutations[0])
            assert resumed.objective_after == pytest.approx(whole.objective_after, rel=1e-9)
            assert (resumed.sweeps, resumed.converged) == (whole.sweeps, True)


def test_identical_models_are_not_kicked():
    _, fitted, models = setting("mlp")
    assert wm.match(Problem(fitted, (models[0], models[0]))).sweeps <= 2


def test_a_kick_moves_its_share_and_stays_a_permutation():
    start = permutation.random({"h": 200, "one": 1}, generator(0, "test"))
    after = wm.kicked(start, generator(1, "test"), share=wm.MOVED)
    permutation.check(after, {"h": 200, "one": 1})
    assert (after["h"] != start["h"]).sum() == round(200 * wm.MOVED)
    assert torch.equal(after["one"], start["one"])


@pytest.mark.parametrize("net", ["mlp", "resnet20"])
def test_what_a_sweep_begins_with_it_finds_again_wherever_it_stood(net):
    """So a kick leaves these words where they are: the descent after it is the same, and shorter."""
    _, fitted, models = setting(net)
    pair = Pair(*models[:2], fitted)
    with pair.computing():
        descent = Descent(pair, 0)
        order = descent.order(0, "test")
        first = descent.first(order)
        assert first and first < {*descent.words}
        ends = []
        for seed in (1, 2):
            current = permutation.identity(fitted.words)
            current |= permutation.random(
                {word: fitted.words[word] for word in first}, generator(seed, "test")
            )
            descent.sweep(order, current, {*descent.words})
            ends.append(current)
    assert equal(*ends)


@pytest.mark.parametrize("net", [*NETS, "recurrent"])
@pytest.mark.parametrize("offset", [0.0, 3.0])
def test_what_the_first_sweep_says_of_the_objective_is_the_sum_over_the_tensors(net, offset):
    if net == "recurrent":
        fitted, models = fit_recurrent(), (recurrent(0), recurrent(1))
    else:
        _, fitted, models = setting(net)
    models = [{name: tensor + offset for name, tensor in model.items()} for model in models[:2]]
    pair = Pair(*models, fitted)
    with pair.computing():
        descent = Descent(pair, 1e-12)
        found = descent.outward(descent.order(0, "test"), permutation.identity(fitted.words))
        assert abs(descent.reached(found) - pair.objective(found)) < 1e-6 * pair.limit()


def test_of_what_a_first_sweep_reached_all_ranks_take_the_first_ones_figure():
    """Where processors round differently one rank would take the sweep, and another would not."""

    class Other(Ranks):
        def agree(self, value: float) -> float:
            return 7.0

    _, fitted, models = setting("mlp")
    pair = Pair(*models[:2], fitted, ranks=Other())
    descent, still = Descent(pair, 0.0), permutation.identity(pair.words)
    with pair.computing():
        descent.outward(descent.order(0, "x"), still)
        assert descent.reached(still) == 7.0


def test_an_effort_that_is_unknown_is_refused():
    with pytest.raises(UsageError, match="unknown effort 'hi'"):
        wm.Options(effort="hi")


@pytest.mark.parametrize("effort", sorted(wm.ATTEMPTS))
def test_every_effort_stops_where_it_is_told(effort, kicking):
    _, fitted, models = setting("tinyten")
    result = wm.match(Problem(fitted, models[:2]), wm.Options(max_sweeps=1, effort=effort))
    assert result.sweeps == 1 and not result.converged


# ------------------------------------------------------------------------------ soft starts, bounds


def test_balanced_weights_are_nearly_doubly_stochastic_and_follow_the_logits():
    logits = torch.randn(50, 50, generator=generator(0, "test"))
    weights = soft.balanced(logits.clone(), rounds=50)
    assert (weights.sum(0) - 1).abs().max() < 1e-5 and (weights.sum(1) - 1).abs().max() < 1e-4
    order = torch.randperm(50, generator=generator(1, "test"))
    sure = soft.balanced(100 * torch.eye(50)[order])
    assert torch.equal(sure.argmax(1), order) and sure.max(1).values.min() > 0.99
    shifted = logits + 3 * torch.randn(50, 1, generator=generator(2, "test"))
    torch.testing.assert_close(soft.balanced(shifted, rounds=50), weights, rtol=1e-3, atol=1e-5)


def test_extreme_logits_are_no_numbers_too_large():
    weights = soft.balanced(torch.tensor([[1e4, -1e4], [1e4, -1e4]]))
    assert torch.isfinite(weights).all()


def test_a_soft_matrix_of_permutations_is_the_matrix():
    for pair in (pair_of("tinyten"), Pair(recurrent(0), recurrent(1), fit_recurrent())):
        at = permutation.random(pair.words, generator(0, "test"))
        soft = {word: torch.eye(len(perm))[perm] for word, perm in at.items()}
        with pair.computing():
            for word in pair.words:
                expected = pair.matrix(word, at) + pair.matrix(word, at, chosen=pair.double[word])
                torch.testing.assert_close(pair.soft_matrix(word, soft), expected, rtol=1e-4, atol=1e-4)


def test_the_bound_is_reported_where_it_is_asked_for():
    _, fitted, models = setting("mlp")
    assert wm.match(Problem(fitted, models[:2])).upper_bound is None
    result = wm.match(Problem(fitted, models[:2]), wm.Options(bound=True))
    assert result.upper_bound > result.objective_after
    same = wm.match(Problem(fitted, (models[0], models[0])), wm.Options(bound=True))
    assert same.upper_bound == pytest.approx(same.objective_after, rel=1e-6)


def test_few_permutations_are_all_compared():
    fitted, models = fit_recurrent(4), (recurrent(0, 4), recurrent(1, 4))
    states: list[State] = []
    result = wm.match(Problem(fitted, models, progress=states.append))
    assert result.converged and result.upper_bound == result.objective_after
    assert len(states) == result.sweeps == 1
    still = permutation.identity(fitted.words)
    found = plain_objective(fitted, models, (still, result.permutations[0]))
    for seed in range(50):
        other = permutation.random(fitted.words, generator(seed, "test"))
        assert plain_objective(fitted, models, (still, other)) <= found + 1e-6


def test_by_default_one_of_the_largest_matrices_is_kept(monkeypatch):
    monkeypatch.setattr(similarity, "KEEP", 0)
    pair = pair_of("mlp")
    assert len(Similarities(pair)._keeps) == 1


def test_matrices_that_are_not_kept_are_held_a_few_at_a_time(monkeypatch):
    pair = pair_of("googlenet")
    monkeypatch.setattr(similarity, "GROUP", 2 * 4 * 8**2)
    words = sorted(pair.words)
    groups = Similarities(pair, memory=0).together(words)
    assert [word for group in groups for word in group] == words and len(groups) > 1
    for group in groups:
        assert len(group) == 1 or sum(4 * pair.words[word] ** 2 for word in group) <= 2 * 4 * 8**2
    assert Similarities(pair).together(words) == [words]
    assert Similarities(pair).together([]) == []


class Largest(TorchDispatchMode):
    """The most numbers in a tensor that an operation made, views left out."""

    numbers = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        if isinstance(made, torch.Tensor) and not func.is_view:
            self.numbers = max(self.numbers, made.numel())
        return made


def channels_last(tensor):
    return tensor.movedim(1, -1).contiguous().movedim(-1, 1) if tensor.ndim > 2 else tensor


@pytest.mark.parametrize("lying", [torch.clone, channels_last])
@pytest.mark.parametrize("offset", [0.0, 5.0])
def test_a_similarity_is_the_sum_however_models_lie_in_memory(lying, offset, monkeypatch):
    monkeypatch.setattr("rebasin_cli.matchers.descent.blocks.SLAB", 500)
    _, fitted, models = setting("tinyten")
    a, b = (
        {name: lying(tensor + offset * (tensor.ndim > 1)) for name, tensor in model.items()}
        for model in models[:2]
    )
    still = permutation.identity(fitted.words)
    for perms in ({}, permutation.random(fitted.words, generator(0, "moved"))):
        pair = Pair(a, b, fitted)
        for word, size in fitted.words.items():
            there = permuted(b, fitted, {**still, **perms, word: still[word]})
            expected = torch.zeros(size, size, dtype=torch.float64)
            for name, axes in fitted.tensors.items():
                for d in (d for d, axis in enumerate(axes) if axis == Word(word)):
                    if name not in fitted.statistics:
                        one, other = (t[name].double().movedim(d, 0).reshape(size, -1) for t in (a, there))
                        expected += one @ other.T
            found = pair.matrix(word, perms).double()
            for dim in (0, 1):  # but for a constant a row and a constant a column
                found = found - found.mean(dim=dim, keepdim=True)
                expected = expected - expected.mean(dim=dim, keepdim=True)
            assert torch.allclose(found, expected, atol=1e-4 * expected.abs().max())


@pytest.mark.parametrize(("noise", "slab"), [(0.0, blocks.SLAB), (1.0, blocks.SLAB), (1.0, 20_000)])
def test_no_tensor_is_copied_whole(noise, slab, monkeypatch):
    """Of one much larger than a slab, and than the matrices of its words; slabs may have few columns."""
    monkeypatch.setattr("rebasin_cli.matchers.descent.blocks.SLAB", slab)
    monkeypatch.setattr("rebasin_cli.matchers.descent.pair.SLAB", slab)
    rng, size = generator(0, "large"), (600, 8000)
    a = {"w.weight": torch.randn(size, generator=rng), "v.weight": torch.randn(3, 600, generator=rng)}
    order = torch.randperm(600, generator=rng)
    b = {"w.weight": a["w.weight"][order], "v.weight": a["v.weight"][:, order]}
    b = {name: tensor + noise * torch.randn(tensor.shape, generator=rng) for name, tensor in b.items()}
    spec = parse('tensors:\n  w.weight: "h ."\n  v.weight: ". h"\n', name="large")
    problem = Problem(fit(spec, {name: tuple(tensor.shape) for name, tensor in a.items()}), (a, b))
    with Largest() as largest:
        wm.match(problem)
    assert 600 * 600 <= largest.numbers <= 1.1 * max(slab, 600 * 600)


def test_a_word_on_two_axes_is_not_left_with_a_small_gain(monkeypatch):
    fitted = fit_recurrent()
    models = recurrent(3), recurrent(53)
    monkeypatch.setattr(wm, "ROUGH", 1.0)  # nothing is worth moving for, but in the end
    result = wm.match(Problem(fitted, models))
    assert result.converged and result.objective_after > result.objective_before
    with (pair := Pair(*models, fitted)).computing():
        stale = {"h"}
        again = Descent(pair, 1e-12).sweep(["h"], dict(result.permutations[0]), stale)
    assert again == 0 and not stale


def test_the_first_sweep_looks_again_only_at_what_a_word_touches(monkeypatch):
    """Of a chain of words each is looked at as it begins, as it is placed, and as a neighbour is."""
    looks = []
    for n in (8, 16):
        lines = "".join(f'  w{k}: "h{k} h{k - 1}"\n' for k in range(1, n))
        text = f'tensors:\n  w0: "h0 ."\n{lines}'
        fitted = fit(parse(text, name="chain"), {f"w{k}": (2, 2) for k in range(n)})
        models = [
            {f"w{k}": torch.randn(2, 2, generator=generator(m, str(k))) for k in range(n)} for m in (0, 1)
        ]
        pair = Pair(*models, fitted)
        whole, count = pair.resting_on, [0]

        def counted(*given, whole=whole, count=count):
            count[0] += 1
            return whole(*given)

        monkeypatch.setattr(pair, "resting_on", counted)
        descent = Descent(pair, 0.0)
        descent.outward(descent.order(0, "test"), permutation.identity(fitted.words))
        looks.append(count[0])
    assert looks[1] <= 2 * looks[0] + 4, looks


@pytest.mark.parametrize("shape", [(9, 30), (128, 512), (300, 700), (1, 1 << 20)])
@pytest.mark.parametrize("kind", ["equal", "drawn"])
def test_an_objective_is_added_in_float64(shape, kind):
    """torch.dot's own sum of a million equal numbers is 5e-4 off."""
    fitted = fit(parse("tensors:\n  w: 'h .'\n", name="test"), {"w": shape})
    w = torch.full(shape, 0.1) if kind == "equal" else torch.randn(shape, generator=generator(0, "test"))
    pair = Pair({"w": w}, {"w": w}, fitted)
    expected = w.double().square().sum().item()
    assert pair.objective(permutation.identity(fitted.words)) == pytest.approx(expected, rel=1e-7)
