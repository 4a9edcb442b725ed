"""Elements on factors of low rank: their product moves as a weight that is added to does."""

from dataclasses import replace

import pytest
import torch

from rebasin_cli.errors import SpecError
from rebasin_cli.spec.fits import fit
from rebasin_cli.spec.parser import parse
from rebasin_cli.symmetry import elements as acts
from rebasin_cli.symmetry.factors import Pair, turned_factors
from rebasin_cli.symmetry.folds import Folds, Norm, Part, Reader, ValueBias
from rebasin_cli.symmetry.form import turned

# Weights as they lie, and as layers of (inputs, outputs) do.
SPECS = {
    False: {"up": ("h x", (6, 4)), "down": ("x h", (4, 6)), "gain": ("x", (4,)), "shift": ("x", (4,))},
    True: {"up": ("x h", (4, 6)), "down": ("h x", (6, 4)), "gain": ("x", (4,)), "shift": ("x", (4,))},
}


def parts(lies_turned, seed=0):
    """A spec, a base, factors of both weights, and what a norm before `up` folds into it."""
    axes, rng = SPECS[lies_turned], torch.Generator().manual_seed(seed)
    lines = "".join(f"  {name}: {text}\n" for name, (text, _) in axes.items())
    spec = fit(parse(f"tensors:\n{lines}", name="test"), {name: shape for name, (_, shape) in axes.items()})
    base = {name: torch.randn(s, generator=rng, dtype=torch.float64) for name, (_, s) in axes.items()}
    base["shift"] = torch.zeros(4, dtype=torch.float64)
    factors = {}
    for name, (m, n) in {"up": (6, 4), "down": (4, 6)}.items():
        factors[f"{name}.B"] = torch.randn(m, 2, generator=rng, dtype=torch.float64)
        factors[f"{name}.A"] = torch.randn(2, n, generator=rng, dtype=torch.float64)
    pairs = {name: Pair(name, f"{name}.B", f"{name}.A", lies_turned) for name in ("up", "down")}
    reader = Reader("up", None, 0 if lies_turned else 1)
    folds = Folds(norms=(Norm("gain", None, (reader,)),), means=(("down", 1 if lies_turned else 0),))
    return spec, base, factors, pairs, folds


def added(base, factors, lies_turned):
    products = {name: factors[f"{name}.B"] @ factors[f"{name}.A"] for name in ("up", "down")}
    return base | {name: base[name] + (its.mT if lies_turned else its) for name, its in products.items()}


@pytest.mark.parametrize("lies_turned", [False, True])
def test_a_base_and_its_factors_move_as_their_sum_does(lies_turned):
    spec, base, factors, pairs, folds = parts(lies_turned)
    element = acts.random(spec, torch.Generator().manual_seed(1))
    moved = turned_factors(factors, pairs, base, spec, element, folds, {})
    found = added(dict(turned(base, spec, element, folds)), dict(moved), lies_turned)
    wanted = turned(added(base, factors, lies_turned), spec, element, folds)
    for name in ("up", "down"):
        torch.testing.assert_close(found[name], wanted[name])
        assert not torch.allclose(found[name], added(base, factors, lies_turned)[name])


def test_a_tensor_that_is_saved_whole_moves_as_the_bases_where_nothing_is_folded_of_it():
    spec, base, factors, pairs, folds = parts(False)
    element, mine = acts.random(spec, torch.Generator().manual_seed(1)), base["up"] + 1
    given = factors | {"saved": mine}
    moved = turned_factors(given, pairs, base, spec, element, Folds(), {"saved": "up"})
    torch.testing.assert_close(moved["saved"], turned(base | {"up": mine}, spec, element)["up"])
    with pytest.raises(SpecError) as refused:
        turned_factors(given, pairs, base, spec, element, folds, {"saved": "up"})
    assert refused.value.problems == ("saved  is folded, and saved whole",)


def test_what_would_be_a_bias_of_the_adapter_is_refused_where_any_of_it_is_there():
    spec, base, factors, pairs, folds = parts(False)
    still = acts.identity(spec)
    base["shift"][2] = 1.0
    norm = replace(folds.norms[0], bias="shift")
    folds = replace(folds, norms=(norm,))
    with pytest.raises(SpecError) as refused:
        turned_factors(factors, pairs, base, spec, still, folds, {})
    assert "up  reads shift, which is not 0" in str(refused.value.problems)
    free = replace(folds, norms=(replace(norm, free=True),))
    assert turned_factors(factors, pairs, base, spec, still, free, {})
    value = Folds(values=(ValueBias(Part("shift", 0, 2), Reader("up", None), 2, 1),))
    assert turned_factors(factors, pairs, base, spec, still, value, {})
    value = Folds(values=(ValueBias(Part("shift", 1, 2), Reader("up", None), 2, 1),))
    with pytest.raises(SpecError):
        turned_factors(factors, pairs, base, spec, still, value, {})


def test_values_lie_in_a_vector_in_blocks_of_one_entry_or_more():
    shapes = {"bias": (4,), "matrix": (4, 4), "up": (3, 2), "added": (3,)}

    def problems(tensor, start=0, length=2, size=1, times=1):
        part = Part(tensor, start, length)
        return Folds(values=(ValueBias(part, Reader("up", "added"), size, times),)).problems(shapes)

    assert not problems("bias") and not problems("bias", start=2, size=2)
    assert problems("bias", size=0) == problems("bias", times=0) == ["bias  has blocks of no size"]
    assert problems("bias", size=4) == ["bias  2 entries are no blocks of 4"]
    for wrong in (problems("matrix"), problems("bias", start=3), problems("bias", length=0)):
        assert len(wrong) == 1 and " entries from " in wrong[0]
