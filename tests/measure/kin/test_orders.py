"""Units that stand where they stood: against brute force, on strangers, on copies; what is left out."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from scipy.stats import kstest

from rebasin_cli.measure.kin import orders, sampled
from rebasin_cli.measure.kin.parts import parts_of
from rebasin_cli.measure.kin.variance import closed_variance
from rebasin_cli.spec.fits import fit
from rebasin_cli.spec.parser import parse
from rebasin_cli.symmetry import permutation

DRAWS = 3_000  # the deviation of a variance of so many is 2.6 %; benchmarks/kin.py draws 40,000


def fitted_of(lines, shapes, more=""):
    text = "schema: 1\ntensors:\n" + "".join(f'  {name}: "{axes}"\n' for name, axes in lines.items()) + more
    return fit(parse(text, name="own"), shapes)


def model(shapes, seed, *, common=0.0):
    """Independent models, whose values along axes that stay are alike where there is something `common`."""
    rng = torch.Generator().manual_seed(seed)
    return {
        name: torch.randn(shape, generator=rng) * (1 + common * torch.arange(shape[-1]) / shape[-1])
        for name, shape in shapes.items()
    }


CASES = {
    "one word": ({"w": "h ."}, {"w": (7, 5)}),
    "more inputs than units": ({"w": "h ."}, {"w": (4, 30)}),
    "two words, several tensors": ({"v": "g h", "w": "h g"}, {"v": (6, 5), "w": (5, 6)}),
    "kernels": ({"w": "g h ..."}, {"w": (6, 5, 3, 3)}),
    "stacked": ({"w": "(3 h) ."}, {"w": (18, 5)}),
    "flattened": ({"w": "g (h 4)"}, {"w": (5, 24)}),
    "segments": ({"w": "g h + k + 3", "v": "h .", "u": "k ."}, {"w": (5, 14), "v": (6, 4), "u": (5, 4)}),
    "heads": ({"w": "(k d*) ."}, {"w": (12, 5)}),
    "heads and a tensor of heads": ({"w": "(k d*) s", "v": "k s"}, {"w": (12, 5), "v": (4, 5)}),
    "blocks that stay": ({"w": "(3 d*) ."}, {"w": (12, 5)}),
    "packed heads": ({"w": "(3 k d*) s"}, {"w": (36, 5)}),
}
SIZES = {
    "heads": "sizes: {k: 3}\n",
    "packed heads": "sizes: {k: 3}\n",
}


@pytest.mark.sweep
@pytest.mark.parametrize("case", CASES)
def test_the_variance_in_closed_form_is_that_of_many_draws(case):
    torch.manual_seed(0)
    lines, shapes = CASES[case]
    fitted = fitted_of(lines, shapes, SIZES.get(case, ""))
    a, b = (model(shapes, seed, common=2) for seed in range(2))
    for m in (a, b) if "heads" in case else ():  # what heads have in common, beside their units
        m["w"] += 3 * torch.randn(len(m["w"]) // 4, 5).repeat_interleave(4, 0)
    found = sampled.sample(a, b, fitted)
    found = replace(found, matrices=tuple(shapes))
    parts, left = parts_of(found, [*orders.atoms(found.fitted)], {}, found.fitted.within)
    assert not left
    variance = closed_variance(parts, found.fitted.within)
    # drawn on whole tensors by what permutes models, which knows neither parts nor atoms
    rng = torch.Generator().manual_seed(1)
    whole = _put_back(a, [p.x for p in parts], found), _put_back(b, [p.y for p in parts], found)
    assert all(float(tensor.norm()) == pytest.approx(1) for each in whole for tensor in each.values())
    drawn = []
    for _ in range(DRAWS):
        perms = permutation.random(fitted.words, rng, within=fitted.within)
        moved = {n: permutation.permute(whole[1][n], fitted.tensors[n], perms, fitted.within) for n in shapes}
        drawn.append(sum(float((whole[0][n] * moved[n]).sum()) for n in shapes))
    drawn = torch.tensor(drawn, dtype=torch.float64)
    assert variance == pytest.approx(float(drawn.var()), rel=0.1)
    assert abs(float(drawn.mean())) < 5 * math.sqrt(variance / DRAWS)


def _put_back(tensors, parts, found):
    """Whole tensors with the values that parts have, centred and of norm 1."""
    made = {name: torch.zeros_like(tensor) for name, tensor in tensors.items()}
    for atom, values in zip(orders.atoms(found.fitted), parts, strict=True):
        moving = sorted((d for d, word in enumerate(atom.words) if word), key=lambda d: str(atom.words[d]))
        view = atom.view(made[atom.tensor])
        view = view.permute(*(d for d in range(view.ndim) if d not in moving), *moving)
        view.copy_(values.reshape(view.shape))
    return made


def strangers(seed, *, sizes=(20, 12, 10, 4)):
    shapes = {f"layers.{k}.weight": (n, m) for k, (m, n) in enumerate(zip(sizes, sizes[1:-1], strict=False))}
    shapes |= {"head.weight": (sizes[-1], sizes[-2])}
    shapes |= {f"layers.{k}.bias": (n,) for k, n in enumerate(sizes[1:-1])} | {"head.bias": (sizes[-1],)}
    return model(shapes, seed, common=1)


MLP = fit(
    parse(
        'schema: 1\ntensors:\n  layers.{i}.weight: "h{i} h{i-1|.}"\n  layers.{i}.bias: "h{i}"\n'
        '  head.weight: ". h{last}"\n  head.bias: "."\n',
        name="mlp",
    ),
    {name: tuple(t.shape) for name, t in strangers(0).items()},
)


def in_place(a, b, fitted=MLP, **more):
    return orders.in_place(sampled.sample(a, b, fitted), **more)


def test_p_is_uniform_for_strangers():
    found = [in_place(strangers(2 * k), strangers(2 * k + 1), draws=99, seed=k) for k in range(150)]
    assert kstest([(each.p * 100 - 0.5) / 100 for each in found], "uniform").pvalue > 0.001
    z = torch.tensor([each.z for each in found])
    assert abs(z.mean()) < 0.3 and 0.8 < z.std() < 1.2 and all(each.closed for each in found)


def test_a_copy_in_noise_is_found_and_the_same_one_shuffled_is_not():
    a, noise = strangers(0), strangers(1)
    copy = {name: tensor + 2 * noise[name] for name, tensor in a.items()}
    assert in_place(a, copy).p == 0.001
    perms = permutation.random(MLP.words, torch.Generator().manual_seed(0))
    assert in_place(a, dict(permutation.permuted(copy, MLP, perms))).p > 0.01


def test_what_an_architecture_gives_all_its_networks_is_no_evidence():
    """Means over units, the identity, one table in both, an order by size: of strangers none is found kin."""
    a, b = strangers(0, sizes=(20, 12, 12, 12)), strangers(1, sizes=(20, 12, 12, 12))
    fitted = fit(MLP.spec, {name: tuple(t.shape) for name, t in a.items()})
    ones = [{**m, "layers.0.weight": m["layers.0.weight"] + 5} for m in (a, b)]
    eyes = [{**m, "layers.1.weight": m["layers.1.weight"] + 9 * torch.eye(12)} for m in (a, b)]
    for pair in (ones, eyes):
        assert in_place(*pair, fitted).p > 0.01
    table = torch.randn(12, 12, generator=torch.Generator().manual_seed(5))
    found = in_place(*({**m, "head.weight": table} for m in (a, b)), fitted)
    assert found.p > 0.01 and found.same == ("head.weight",) and list(found.held) == ["h1"]
    assert "head.weight" in found.left_out
    in_order = [
        dict(permutation.permuted(m, fitted, {
            "h0": m["layers.0.weight"].norm(dim=1).argsort(), "h1": torch.arange(12)
        }))
        for m in (a, b)
    ]  # fmt: skip
    assert in_place(*in_order, fitted).held.keys() == {"h0"}
    turned = [{**m, **{n: m[n].flip(0) for n in ("layers.0.weight", "layers.0.bias")}} for m in in_order]
    assert in_place(*turned, fitted).held.keys() == {"h0"}


def test_units_that_stay_in_their_heads_hold_the_heads():
    """A table that both have gives the units within heads their places, so heads have theirs from it, too."""
    fitted = fitted_of({"t": "(k d*) .", "v": "k .", "w": "h ."},
                       {"t": (32, 5), "v": (8, 6), "w": (12, 5)}, "sizes: {k: 8}\n")  # fmt: skip
    table, heads = (
        torch.randn(n, m, generator=torch.Generator().manual_seed(n)) for n, m in ((32, 5), (8, 6))
    )
    a, b = (model(fitted.shapes, seed) for seed in range(2))
    found = in_place(*({**m, "t": table, "v": m["v"] / 9 + heads} for m in (a, b)), fitted)
    assert found.p > 0.01 and found.held.keys() == {"d", "k"}
    assert found.left_out["v"] == "its units are held in place"


def test_tables_are_evidence_where_most_tensors_are_the_same():
    """A copy with a new head: all else is equal, bit for bit."""
    a = strangers(0)
    found = in_place(a, {**a, "head.weight": strangers(1)["head.weight"]})
    assert found.p == 0.001 and len(found.same) == 2 and not found.held


def test_tied_tensors_count_once():
    fitted = fitted_of({"v": ". h", "w": ". h", "u": "h ."}, {"v": (9, 6), "w": (9, 6), "u": (6, 4)})
    a, b = (model({"v": (9, 6), "u": (6, 4)}, seed) for seed in range(2))
    found = in_place({**a, "w": a["v"].clone()}, {**b, "w": b["v"].clone()}, fitted)
    assert found.tensors == ("u", "v") and found.left_out == {"w": "the same as v"}


def test_a_word_on_two_axes_of_one_tensor_is_drawn():
    fitted = fitted_of({"w": "h h"}, {"w": (8, 8)})
    found = [
        in_place(*(model({"w": (8, 8)}, 2 * k + j) for j in range(2)), fitted, draws=199) for k in range(60)
    ]
    z = torch.tensor([each.z for each in found])
    assert not found[0].closed and abs(z.mean()) < 0.5 and 0.7 < z.std() < 1.3


def test_a_large_model_is_compared_by_units_of_every_word_and_only_their_rows_are_read(monkeypatch):
    monkeypatch.setattr(sampled, "VALUES", 1 << 12)
    shapes = {"q": (256, 96), "k": (256, 96), "o": (96, 256), "up": (512, 96), "down": (96, 512)}
    lines = {"q": "(k d*) s", "k": "(k d*) s", "o": "s (k d*)", "up": "h s", "down": "s h"}
    fitted = fitted_of(lines, shapes, "sizes: {k: 8}\n")
    a, noise = (model(shapes, seed) for seed in range(2))
    small = sampled.sample(a, noise, fitted)
    assert not small.whole and small.fitted.words == {"h": 16, "s": 16, "k": 8, "d": 128}
    rows = torch.arange(16) * 511 // 15
    assert torch.equal(small.a["up"], a["up"][rows][:, torch.arange(16) * 95 // 15])
    assert small.read == 2 * 4 * (2 * 128 * 96 + 16 * 256 + 16 * 96 + 16 * 512)
    copy = {name: tensor + 2 * noise[name] for name, tensor in a.items()}
    assert orders.in_place(sampled.sample(a, copy, fitted)).p == 0.001
    assert orders.in_place(small).p > 0.01


def test_positions_along_sums_and_products_are_those_of_their_parts():
    shapes = {"w": (8, 12), "b": (3,), "c": (4,)}
    tensors = {"w": "a + b (c 3)", "b": "b", "c": "c"}
    lines = "".join(f"  {name}: '{axes}'\n" for name, axes in tensors.items())
    found = fit(parse(f"schema: 1\ntensors:\n{lines}", name="parts"), shapes)
    some = sampled.Extent(2, 2)
    joined, product = (sampled.index_of(axis, found, some).tolist() for axis in found.tensors["w"])
    assert joined == [0, 4, 5, 7] and product == [0, 1, 9, 10]
    eight = torch.arange(6.0).reshape(2, 3).to(torch.float8_e4m3fn)
    part, read = sampled._read({"w": eight}, "w", [torch.tensor([0, 1]), torch.tensor([0, 2])])
    assert part.tolist() == [[0, 2], [3, 5]] and read == 6


def test_of_large_models_matrices_are_matched_that_are_together_no_more_than_is_allowed(monkeypatch):
    """The smallest first, and none of long sides beside others; where there are no others, one of these."""
    lines = {"small": "g .", "middle": "h .", "large": "k ."}
    shapes = {"small": (4, 5), "middle": (6, 5), "large": (8, 5)}
    a, b, fitted = model(shapes, 0), model(shapes, 1), fitted_of(lines, shapes)
    for most, short, taken in (
        (50, 1024, {"small", "middle"}),
        (49, 1024, {"small"}),
        (89, 1024, {"small", "middle"}),
        (89, 4, {"small"}),
        (89, 3, {"small"}),
    ):
        monkeypatch.setattr(sampled, "MATCHED", most)
        monkeypatch.setattr(sampled, "SHORT", short)
        found = sampled.matchable(a, b, fitted, {})
        assert {*found.a} == {*found.b} == taken and not found.whole, (most, short)
        assert {name for name, why in found.left_out.items() if "too large" in why} == {*shapes} - taken
    monkeypatch.setattr(sampled, "MATCHED", 19)
    assert sampled.matchable(a, b, fitted, {}) is None
