"""Products of two matrices in slabs are those of the matrices whole, as far as float64 tells."""

import pytest
import torch

from rebasin_cli.measure import matrices
from rebasin_cli.runtime.seeds import generator
from rebasin_cli.spec.fits import fit
from rebasin_cli.spec.parser import parse
from rebasin_cli.symmetry import permutation


def both(shape, axes, shift=0.0, dtype=torch.float64):
    """A, and B as it is and with its units permuted; the axes of a tensor, and those that units lie on."""
    random = generator(0, "compared")
    a, b = ({"w": (torch.randn(shape, generator=random).double() + shift).to(dtype)} for _ in range(2))
    fitted = fit(parse(f'tensors:\n  w: "{axes}"\n', name="one"), {"w": shape})
    moved = permutation.permuted(b, fitted, permutation.random(fitted.words, generator(1, "compared")))
    units = [k for k, axis in enumerate(axes.split()) if axis in ("h", "r")]
    return a, (b, moved), fitted.tensors["w"], units


def deviations(tensor, units):
    for k in units:
        tensor = tensor - tensor.mean(k, keepdim=True)
    return tensor


def same(found, expected, size):
    assert abs(found - expected) <= 1e-9 * size


@pytest.mark.parametrize("shift", [0.0, 3.0, 1e4, 1e7])
@pytest.mark.parametrize(
    ("shape", "axes"),
    [((30, 70), "h r"), ((16, 10, 3, 3), "h r 3 3"), ((50,), "h"), ((2, 40, 30), ". h r"), ((9, 40), ". r")],
)
def test_products_of_slabs_are_those_of_the_whole(shape, axes, shift, monkeypatch):
    monkeypatch.setattr(matrices, "SLAB", 500)
    a, ways, parsed, units = both(shape, axes, shift)
    found = matrices.compare("w", a, ways, parsed)
    x, own = a["w"], deviations(a["w"], units)
    assert found.flat == (shift > 1e5) and not found.equal
    for k, way in enumerate(ways):
        y = way["w"]
        same(found.apart[k], (x - y).square().sum(), found.apart[k])
        for told, p, q in ((found.whole[k], x, y), (found.own[k], own, deviations(y, units))):
            size = p.norm() * q.norm()
            same(told[0], (p * q).sum(), size)
            same(told[1], p.square().sum(), p.square().sum())
            same(told[2], q.square().sum(), q.square().sum())


@pytest.mark.parametrize("value", [0.0, 1.0, 1 / 3])
def test_what_all_units_have_alike_is_flat(value):
    a = {"w": torch.full((20, 30), value)}
    _, (b, _), parsed, _ = both((20, 30), "h r")
    assert matrices.compare("w", a, (b, b), parsed).flat
    assert matrices.compare("w", b, (a, a), parsed).flat


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn])
def test_equal_is_as_they_are_and_not_matched(dtype):
    a, (_, moved), parsed, _ = both((20, 30), "h r", dtype=dtype)
    found = matrices.compare("w", a, (a, moved), parsed)
    assert found.equal
    assert found.apart[0] == 0.0
    assert found.apart[1] > 0
    assert not matrices.compare("w", a, (moved, a), parsed).equal


def test_a_tensor_of_no_axes():
    a, b = ({"w": torch.tensor(value)} for value in (2.0, 3.0))
    found = matrices.compare("w", a, (b, b), ())
    assert found.whole[0] == (6.0, 4.0, 9.0)
    assert found.apart == (1.0, 1.0)


@pytest.mark.parametrize("axes", ["h r", "h .", ". r"])
def test_slabs_from_everywhere_stand_for_a_large_tensor(axes, monkeypatch):
    monkeypatch.setattr(matrices, "SLAB", 600)
    a, (b, _), parsed, units = both((1000, 60), axes)
    near = {"w": a["w"] + 0.3 * b["w"]}
    found, whole = (matrices.compare("w", a, (b, near), parsed, looked=looked) for looked in (6000, None))
    assert (found.share, whole.share) == (0.1, 1.0)
    slabs = torch.cat(
        [torch.arange(start, start + 10) for start in (0, 110, 220, 330, 440, 550, 660, 770, 880, 990)]
    )
    part = deviations(a["w"][slabs], units)
    same(found.own[0][1], 10 * part.square().sum(), part.square().sum())
    for one, other in zip((*found.whole, *found.own), (*whole.whole, *whole.own), strict=True):
        assert all(abs(x - y) <= 0.05 * other[1] for x, y in zip(one, other, strict=True))
    assert found.apart[1] == pytest.approx(whole.apart[1], rel=0.05)


def test_what_was_not_looked_at_may_differ(monkeypatch):
    monkeypatch.setattr(matrices, "SLAB", 600)
    a, _, parsed, _ = both((1000, 60), "h r")
    other = {"w": a["w"].clone()}
    assert matrices.compare("w", a, (other, other), parsed, looked=6000).equal
    other["w"][57, 3] += 1  # in no slab
    found = matrices.compare("w", a, (other, other), parsed, looked=6000)
    assert found.apart[0] == 0.0 and not found.equal
