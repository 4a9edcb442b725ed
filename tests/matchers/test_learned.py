"""Elements that are learned: the numbers behind them, and searches of `ste` and `ste-mm` with groups."""

from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F

from rebasin_cli.errors import UsageError
from rebasin_cli.groups import PERMUTATION
from rebasin_cli.matchers import Problem, State, ste, ste_mm
from rebasin_cli.matchers.portfolio.align import align
from rebasin_cli.matchers.straight_through.learned import Learned
from rebasin_cli.matchers.straight_through.mixture import Flat
from rebasin_cli.matchers.straight_through.projection import Projection
from rebasin_cli.symmetry import elements as acts
from rebasin_cli.symmetry.form import canonical
from tests.transformers import Factored, Gated, Rotary, Transformer, drawn, inferred, outputs, relu, tanh

SLOW = pytest.mark.sweep  # the same of more networks
NETS = [Transformer, Gated, Rotary, relu, tanh, Factored]


def ready(make, seed=0):
    """A network, its symmetries, and a model in canonical form, float32."""
    net, found = inferred(make)
    form = canonical(drawn(net, seed), found.fitted, found.folds)
    return net.float(), found, {name: tensor.float() for name, tensor in form.tensors.items()}


def wide(model):
    return {name: tensor.double() for name, tensor in model.items()}


def random_numbers(learned):
    rng = torch.Generator().manual_seed(0)
    for numbers in learned.numbers.values():
        with torch.no_grad():
            numbers.copy_(torch.randn(numbers.shape, generator=rng) / 2)


def loss(logits, targets):
    """Cross-entropy of the mean over tokens, where a network has several."""
    return F.cross_entropy(logits.mean(1) if logits.ndim > 2 else logits, targets)


def problem(make, models, seed=3):
    """Samples are labelled by the first model."""
    net, found = inferred(make)
    net, rng, data = net.float(), torch.Generator().manual_seed(seed), []
    for _ in range(6):
        inputs = torch.randn(40, *net.example_shape, generator=rng)
        logits = torch.func.functional_call(net, dict(models[0]), (inputs,)).detach()
        data.append((inputs, (logits.mean(1) if logits.ndim > 2 else logits).argmax(-1)))
    return Problem(found.fitted, tuple(models), seed, network=net, data=data, loss=loss)


def planted(make, noise=0.3):
    """A model, and the same after a random element, with noise."""
    net, found, a = ready(make)
    rng = torch.Generator().manual_seed(9)
    near = {
        n: t + noise * t.std() * torch.randn(t.shape, generator=rng) if t.ndim > 1 else t
        for n, t in a.items()
    }
    b = acts.acted(near, found.fitted, acts.random(found.fitted, rng))
    return found, a, canonical(dict(b), found.fitted, found.folds).tensors


@pytest.mark.parametrize("make", NETS)
def test_numbers_make_elements_of_their_groups_and_0_is_the_identity(make):
    net, found, model = ready(make)
    learned, still = Learned(model, found.fitted), acts.identity(found.fitted)
    for map_ in learned.element(still).maps.values():
        one = torch.eye(map_.shape[-1]).double() if map_.ndim > 1 else torch.ones(1).double()
        assert torch.allclose(map_, one.expand_as(map_), atol=1e-12)
    random_numbers(learned)
    element = learned.element(still)
    acts.check(element, found.fitted)
    assert all(float((map_ - map_.mT).abs().max()) > 0.05 for map_ in element.maps.values() if map_.ndim > 1)
    for map_, dual in learned.maps(torch.float64).values():
        both = map_ * dual if map_.ndim == 1 else map_.mT @ dual
        one = torch.ones(1) if map_.ndim == 1 else torch.eye(map_.shape[-1])
        assert torch.allclose(both, one.double().expand_as(both))
    wanted = outputs(net, wide(model))
    moved = outputs(net, acts.acted(wide(model), found.fitted, element))
    assert (wanted - moved).abs().max() <= 1e-11 * wanted.abs().max()


@pytest.mark.parametrize("make", NETS)
def test_gradients_are_pulled_back_through_orders_and_signs(make):
    """Against differences of what `write` makes."""
    _, found, model = ready(make)
    fitted, rng = found.fitted, torch.Generator().manual_seed(5)
    matrices = {word for word in fitted.groups if fitted.group(word).matrix}
    still = matrices | {block.word for block in fitted.within.values()}
    kinds = {
        w: "signed" if fitted.group(w).more and not fitted.group(w).matrix else PERMUTATION
        for w in {*fitted.words} - still
    }
    then = acts.random(fitted, rng, of=kinds)
    learned = Learned(model, fitted)
    random_numbers(learned)
    target = {name: torch.randn(tensor.shape, generator=rng) for name, tensor in model.items()}
    standing = {name: tensor.clone() for name, tensor in model.items()}
    learned.write(standing, then)
    learned.pull(target, then)
    for word, numbers in learned.numbers.items():
        step, values = torch.randn(numbers.shape, generator=rng), []
        for size in (1e-2, -1e-2):
            with torch.no_grad():
                numbers += size * step
            learned.write(standing, then)
            values.append(sum(float((standing[n].double() * target[n]).sum()) for n in learned.touched))
            with torch.no_grad():
                numbers -= size * step
        slope = (values[0] - values[1]) / 2e-2
        assert slope == pytest.approx(float((numbers.grad * step).sum()), rel=1e-2, abs=1e-2), word


@pytest.mark.parametrize(
    "make", [*(pytest.param(net, marks=SLOW) for net in (Transformer, Rotary)), Gated, relu, tanh, Factored]
)
def test_what_is_learned_lowers_the_loss_and_computes_what_it_did(make):
    found, a, b = planted(make)
    task = problem(make, [a, b])
    result = ste.match(task, ste.Options(epochs=6, init="identity", learning_rate=1e-2))
    assert result.objective_after > result.objective_before + 0.05
    element = result.elements[0]
    acts.check(element, found.fitted)
    assert element.maps.keys() == found.fitted.groups.keys()
    net = task.network
    wanted = outputs(net, wide(b))
    moved = outputs(net, acts.acted(wide(b), found.fitted, element))
    assert (wanted - moved).abs().max() <= 1e-10 * wanted.abs().max()


def test_learning_begins_where_activations_lead_and_ends_no_worse():
    found, a, b = planted(Transformer)
    result = ste.match(problem(Transformer, [a, b]), ste.Options(epochs=1))
    assert result.account.init == "am" and result.objective_after >= result.objective_before
    turned = acts.acted(b, found.fitted, result.elements[0])
    names = [n for n in a if a[n].ndim > 1]
    near, far = (sum(float((a[n] * x[n]).sum()) for n in names) for x in (turned, b))
    assert near > 2 * far


@pytest.mark.parametrize("make", [pytest.param(Transformer, marks=SLOW), tanh])
def test_a_search_that_was_interrupted_ends_as_if_it_had_not_been(make):
    _, a, b = planted(make)
    task, options = problem(make, [a, b]), ste.Options(epochs=2, init="wm", learning_rate=1e-2)
    kept = []

    def keep(state):
        kept.append(replace(state, tensors={n: t.clone() for n, t in state.tensors.items()}))

    whole = ste.match(replace(task, progress=keep), options)
    on = ste.match(replace(task, start=kept[len(kept) // 2]), options)
    assert on.objective_after == whole.objective_after
    for word, map_ in whole.elements[0].maps.items():
        assert torch.equal(map_, on.elements[0].maps[word]), word
    assert all(torch.equal(p, on.permutations[0][w]) for w, p in whole.permutations[0].items())


def test_models_are_turned_together():
    found, a, b = planted(Transformer)
    c = acts.acted(b, found.fitted, acts.random(found.fitted, torch.Generator().manual_seed(1)))
    c = canonical(dict(c), found.fitted, found.folds).tensors
    result = ste_mm.match(problem(Transformer, [a, b, c]), ste_mm.Options(epochs=4, init="identity"))
    assert result.objective_after > result.objective_before + 0.05 and len(result.elements) == 2
    assert not torch.allclose(*(element.maps["stream"] for element in result.elements), atol=1e-3)
    with pytest.raises(UsageError, match="as-published"):
        ste_mm.match(problem(Transformer, [a, b]), ste_mm.Options(as_published=True))


@pytest.mark.parametrize("word", ["h0", "h1"])
def test_signs_follow_weights_that_change_theirs(word):
    """Dummies that are the model with the units of one word in another order and with other signs."""
    net, found, model = ready(tanh)
    fitted = found.fitted
    word = sorted(fitted.groups)[int(word[1])]
    flat = Flat(net)
    moving, row = flat.row(model), flat.row(model)
    follower = Projection(flat.views(moving), flat.views(row), fitted)
    for seed in (2, 3):
        element = acts.random(fitted, torch.Generator().manual_seed(seed), of={word: "signed"})
        moving.copy_(flat.row(acts.acted(model, fitted, element)))
        assert follower.solve([word]) and not follower.solve(follower.names)
        assert torch.equal(follower.element.maps[word], element.maps[word])
        assert torch.equal(follower.element.permutations[word], element.permutations[word])
        assert torch.allclose(row, moving)


def test_many_models_need_a_method_for_many():
    net, found = inferred(Transformer)
    models = [drawn(net, seed) for seed in range(3)]
    with pytest.raises(UsageError, match="wm matches two models") as caught:
        align(models, found.fitted, folds=found.folds)
    assert "ste-mm" in caught.value.hint


def test_a_state_without_numbers_is_refused():
    _, a, b = planted(tanh)
    task = problem(tanh, [a, b])
    states = []
    ste.match(replace(task, progress=states.append), ste.Options(epochs=1, init="identity"))
    broken = {n: t for n, t in states[-1].tensors.items() if not n.startswith("signs")}
    with pytest.raises(UsageError, match="cannot go on"):
        ste.match(
            replace(task, start=State(**{**vars(states[-1]), "tensors": broken})), ste.Options(epochs=1)
        )
