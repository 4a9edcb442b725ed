"""Matrices in place of permutations: at a permutation they do what it does, on every kind of axis."""

import pytest
import torch

from rebasin_cli.matchers.relaxed.matrices import Rounding, moved, of_permutations
from rebasin_cli.spec.fits import fit
from rebasin_cli.spec.parser import parse
from rebasin_cli.symmetry import permutation

SPECS = {
    "plain": ("  w: 'h .'\n  v: '. h'\n", {"w": (4, 3), "v": (2, 4)}),
    "twice on one tensor": ("  w: 'h h'\n", {"w": (4, 4)}),
    "flattened": ("  w: 'c .'\n  v: '. (c 5)'\n", {"w": (4, 3), "v": (2, 20)}),
    "copies": ("  w: '(3 h) .'\n", {"w": (12, 2)}),
    "segments": (
        "  w: 'a .'\n  u: 'b .'\n  v: '. (a + b + 2 3)'\n",
        {"w": (4, 1), "u": (3, 1), "v": (2, 27)},
    ),
    "kernels": ("  w: 'c d . .'\n", {"w": (4, 3, 2, 2)}),
    "heads": ("  q: '(heads d*) .'\n  o: '. (heads d*)'\n", {"q": (6, 4), "o": (4, 6)}),
    "two within": (
        "  q: '(heads d*) (heads e*)'\n  k: '(heads d*) .'\n  o: '(heads e*) .'\n  s: heads\n",
        {"q": (6, 9), "k": (6, 1), "o": (9, 1), "s": (3,)},
    ),
    "apart": ("  q: 'heads . d*'\n  o: '(heads d*) .'\n", {"q": (3, 2, 4), "o": (12, 1)}),
    "blocks that stay": ("  q: '(3 d*) .'\n", {"q": (12, 2)}),
    "nested": ("  w: '(2 (h 3)) .'\n", {"w": (24, 2)}),
}
SIZES = {"heads": "sizes:\n  heads: 3\n", "two within": "", "apart": "", "blocks that stay": ""}

every_spec = pytest.mark.parametrize("name", SPECS)


def fitted_of(name):
    text, shapes = SPECS[name]
    return fit(parse(f"{SIZES.get(name, '')}tensors:\n{text}", name="test"), shapes)


def model_of(fitted, seed=0):
    rng = torch.Generator().manual_seed(seed)
    return {name: torch.randn(shape, generator=rng) for name, shape in fitted.shapes.items()}


@every_spec
def test_the_matrices_of_permutations_move_tensors_as_these_do(name):
    fitted = fitted_of(name)
    model, rng = model_of(fitted), torch.Generator().manual_seed(1)
    perms = permutation.random(fitted.words, rng, within=fitted.within)
    expected, matrices = permutation.permuted(model, fitted, perms), of_permutations(perms, fitted)
    assert not permutation.is_identity(perms)
    for tensor, value in model.items():
        torch.testing.assert_close(
            moved(tensor, value, matrices, fitted), expected[tensor], atol=1e-5, rtol=1e-5
        )


@every_spec
def test_they_round_to_these_again_whether_nearest_or_drawn(name):
    fitted, rng = fitted_of(name), torch.Generator().manual_seed(2)
    perms = permutation.random(fitted.words, rng, within=fitted.within)
    rounding = Rounding(of_permutations(perms, fitted), fitted, 10)
    for found in (rounding.nearest(), rounding.draw(rng)):
        permutation.check(found, fitted.words, within=fitted.within)
        assert found.keys() == perms.keys()
        assert all(torch.equal(perm, perms[word]) for word, perm in found.items())


@every_spec
def test_draws_from_any_matrices_are_permutations_of_the_spec(name):
    fitted, rng = fitted_of(name), torch.Generator().manual_seed(3)
    still = of_permutations(permutation.identity(fitted.words), fitted)
    soft = {word: torch.full_like(matrix, 1 / matrix.shape[-1]) for word, matrix in still.items()}
    rounding = Rounding(soft, fitted, 10)
    found = [rounding.draw(rng) for _ in range(5)]
    for perms in found:
        permutation.check(perms, fitted.words, within=fitted.within)
    assert any(not permutation.is_identity(perms) for perms in found)


def test_a_mixture_is_moved_to_the_mixture_of_what_is_moved():
    fitted = fitted_of("flattened")
    model = model_of(fitted)
    one, other = (torch.eye(4)[torch.randperm(4, generator=torch.Generator().manual_seed(k))] for k in (1, 2))
    found = moved("v", model["v"], {"c": 0.3 * one + 0.7 * other}, fitted)
    expected = 0.3 * moved("v", model["v"], {"c": one}, fitted) + 0.7 * moved(
        "v", model["v"], {"c": other}, fitted
    )
    torch.testing.assert_close(found, expected)


@every_spec
def test_their_gradient_is_that_of_finite_differences(name):
    fitted = fitted_of(name)
    model = {name: tensor.double() for name, tensor in model_of(fitted).items()}
    still = of_permutations(permutation.identity(fitted.words), fitted)
    words = list(still)
    inputs = [still[word].double().requires_grad_() for word in words]
    for tensor, value in model.items():
        assert torch.autograd.gradcheck(
            lambda *matrices, t=tensor, v=value: moved(t, v, dict(zip(words, matrices, strict=True)), fitted),
            inputs,
        )
