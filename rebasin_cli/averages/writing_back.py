"""What a family of tensors stands for, and a mean of it in the form that the family is stored in.

All is float64. `effective` gives the tensors that may be averaged, by the roles that carry them; `written`
all roles of the family again, such that `effective` of them is what was given:

spectral norm    W / (uᵀ W v). The mean as it is where its spectral norm is 1 or more; else scaled to 1, which
                 is what the layer makes of any weight. u and v are unit vectors, made anew.
weight norm      g v / ‖v‖. Exactly the mean.
pruning mask     weight · mask. Exactly the mean; what any model keeps is kept.
codebook         the vectors that are looked up. Exactly their mean; sums and counts that give it.
running moments  mean and mean square. Exactly those of the models' samples together, shared by the weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from ..checkpoints.families import Family
from ..checkpoints.forms import axes_of
from ..errors import CheckpointError, SpecError

Members = Mapping[str, Tensor]

SMALL = 256  # rows, or columns, of a matrix that is decomposed whole
EPSILON = 1e-5  # the least count by which sums are divided, as those who keep them do


@dataclass(frozen=True)
class Way:
    """`carriers` are the roles whose tensors stand for the whole while models are joined."""

    carriers: tuple[str, ...]
    effective: Callable[[Members], dict[str, Tensor]]
    written: Callable[[Members, Sequence[Members], Sequence[float]], dict[str, Tensor]]


def effective(family: Family, members: Members, model: int = 1) -> dict[str, Tensor]:
    """What a family of one model stands for, by carrier. Raises CheckpointError where that is no number."""
    with _naming(family):
        found = WAYS[family.kind.name].effective({role: tensor.double() for role, tensor in members.items()})
    if not all(bool(torch.isfinite(tensor).all()) for tensor in found.values()):
        raise CheckpointError(
            f"{family.stem} is NaN or infinite in model {model}: {family.kind.means}",
            problems=[", ".join(family.members.values())],
            hint="Training diverged or the file is damaged: use an earlier checkpoint",
        )
    return found


def written_back(
    family: Family, carried: Members, given: Sequence[Members], weights: Sequence[float]
) -> dict[str, Tensor]:
    """All roles of the family, float64, for what was joined. `given` are its members in each model."""
    wide = [{role: tensor.double() for role, tensor in members.items()} for members in given]
    with _naming(family):
        return WAYS[family.kind.name].written({r: t.double() for r, t in carried.items()}, wide, weights)


@contextmanager
def _naming(family: Family) -> Iterator[None]:
    try:
        yield
    except SpecError as error:
        told = f"{family.stem} ({family.kind.name}) cannot be averaged: {error.message}"
        raise SpecError(told, hint=family.kind.next) from None


def _mean(tensors: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
    return sum((w * tensor for w, tensor in zip(weights, tensors, strict=True)), torch.zeros(()).double())


# ---------------------------------------------------------------------------------------------- spectral norm


def _axis(its: Members) -> int:
    """The axis of the weight that u is of. Where several have its size, the one where u and v say most."""
    weight, u = its["weight"], its["u"].reshape(-1)
    if "v" not in its:
        return 0
    axes = axes_of(tuple(weight.shape), len(u), its["v"].numel())
    if len(axes) == 1 or weight.ndim == 2:
        return axes[0]
    found = sorted((abs(float(u @ _matrix(weight, axis) @ its["v"].reshape(-1))), axis) for axis in axes)
    if not found[-1][0] > 2 * found[-2][0]:
        raise SpecError(f"of the shape {tuple(weight.shape)} nothing tells which axis its rows are")
    return found[-1][1]


def _matrix(weight: Tensor, axis: int) -> Tensor:
    return weight.movedim(axis, 0).flatten(1)


def _sigma(its: Members, axis: int) -> Tensor:
    matrix, u = _matrix(its["weight"], axis), its["u"].reshape(-1)
    if "v" in its:
        return torch.matmul(u @ matrix, its["v"].reshape(-1))
    # one step of power iteration
    sigma: Tensor = (matrix @ torch.nn.functional.normalize(u @ matrix, dim=0)).norm()
    return sigma


def _spectral_effective(its: Members) -> dict[str, Tensor]:
    return {"weight": its["weight"] / _sigma(its, _axis(its))}


def _spectral_written(
    carried: Members, given: Sequence[Members], weights: Sequence[float]
) -> dict[str, Tensor]:
    mean, axes = carried["weight"], [_axis(its) for its in given]
    axis, matrix = axes[0], _matrix(mean, axes[0])
    largest, u, v = largest_singular(matrix)
    if len(set(axes)) > 1:
        raise SpecError("its rows are of another axis in each model")
    if not largest > 0:
        raise SpecError("the mean is zero, which has no direction")
    before = given[0]["u"].reshape(-1)
    if u @ before < 0:
        u, v = -u, -v
    goal = torch.minimum(largest, torch.ones(())) if "v" in given[0] else largest
    if goal < largest:  # u or v turned off the singular vector, until uᵀ W v is the goal
        if len(u) > 1:
            u = _turned(u, before, goal / largest)
        else:
            v = _turned(v, given[0]["v"].reshape(-1), goal / largest)
    size = _mean([_sigma(its, axis).abs() for its in given], weights)
    size = size if size > 0 else _sigma(given[0], axis).abs()
    made = {"weight": mean * (size / goal), "u": u, "v": v, "s": size.reshape(1)}
    return {role: made[role].reshape(its.shape) for role, its in given[0].items()}


def _turned(unit: Tensor, towards: Tensor, cosine: Tensor) -> Tensor:
    """A unit vector at this angle to `unit`, if it can be on the side of another."""
    for other in (towards, *torch.eye(len(unit), dtype=unit.dtype)[:2]):
        off = other - (other @ unit) * unit
        if off.norm() > 1e-3 * other.norm():
            turned: Tensor = cosine * unit + (1 - cosine**2).clamp(min=0).sqrt() * off / off.norm()
            return turned
    raise AssertionError("two unit vectors are not both along a third one")


def largest_singular(matrix: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The largest singular value of a matrix (n, m), float64, with its left (n,) and right (m,) vectors."""
    if min(matrix.shape) <= SMALL:
        wide = matrix.shape[0] <= matrix.shape[1]
        tall = matrix.T if wide else matrix
        right = torch.linalg.eigh(tall.T @ tall).eigenvectors[:, -1]
        left = tall @ right
        value = left.norm()
        left = left / value
        return (value, right, left) if wide else (value, left, right)
    import scipy.sparse.linalg  # a quarter of a second, of no use to other merges

    start = matrix.sum(0).numpy() + 1.0
    u, values, v = scipy.sparse.linalg.svds(
        matrix.numpy(), k=1, v0=start if len(start) <= len(matrix) else None
    )
    return torch.tensor(values[0]), torch.from_numpy(u[:, 0].copy()), torch.from_numpy(v[0].copy())


# ------------------------------------------------------------------------------------------------ weight norm


def _lengths(g: Tensor, v: Tensor) -> Tensor:
    """The norms of the directions, in the shape of their lengths."""
    if not g.ndim:
        length: Tensor = v.norm()
        return length
    over = [axis for axis, size in enumerate(g.shape) if size == 1]
    return torch.linalg.vector_norm(v, dim=over, keepdim=True) if over else v.abs()


def _normed_effective(its: Members) -> dict[str, Tensor]:
    return {"v": its["v"] * (its["g"] / _lengths(its["g"], its["v"]))}


def _normed_written(
    carried: Members, given: Sequence[Members], weights: Sequence[float]
) -> dict[str, Tensor]:
    mean, g = carried["v"], given[0]["g"]
    length = _lengths(g, mean)
    sign = torch.where(g < 0, -1.0, 1.0).double()
    size = _mean([_lengths(its["g"], its["v"]) for its in given], weights)
    first = _lengths(g, given[0]["v"])
    ratio = torch.where(length > 0, sign * torch.where(size > 0, size, first) / length, 0.0)
    return {"g": sign * length, "v": torch.where(length > 0, mean * ratio, given[0]["v"])}


# ---------------------------------------------------------------------------------------------- pruning masks


def _masked_effective(its: Members) -> dict[str, Tensor]:
    return {"weight": its["weight"] * its["mask"]}


def _masked_written(
    carried: Members, given: Sequence[Members], weights: Sequence[float]
) -> dict[str, Tensor]:
    """Below masks that are 0 in all models lie the means of what lies there in each."""
    first, *others = [its["mask"] for its in given]
    mask = first
    if not all(torch.equal(first, other) for other in others):
        if not all(bool(((its["mask"] == 0) | (its["mask"] == 1)).all()) for its in given):
            raise SpecError("its masks differ, and are not 0 and 1 alone")
        mask = torch.stack([its["mask"] != 0 for its in given]).any(0).double()
    below = _mean([its["weight"] for its in given], weights)
    return {"weight": torch.where(mask != 0, carried["weight"] / mask, below), "mask": mask}


def _of_own_mask_written(
    carried: Members, given: Sequence[Members], weights: Sequence[float]
) -> dict[str, Tensor]:
    """The same where nobody but the network knows what its mask does: if weights are 0 outside of it."""
    alike = all(torch.equal(given[0]["mask"], its["mask"]) for its in given)
    if not alike and not all(torch.equal(its["weight"] * its["mask"], its["weight"]) for its in given):
        raise SpecError("masks differ, and weights are not 0 where they are")
    if alike:
        return {"weight": _mean([its["weight"] for its in given], weights), "mask": given[0]["mask"]}
    return _masked_written(carried, given, weights)


# -------------------------------------------------------------------------------------------------- codebooks


def _in_rows(its: Members) -> bool:
    """Whether a row is a code, and not a column; in a square whichever explains the vectors."""
    sums, counts = its["sums"], its["counts"]
    if counts.shape != sums.shape[:-1] or sums.ndim != 2 or len(set(sums.shape)) > 1 or "embed" not in its:
        return counts.shape == sums.shape[:-1]
    rows, columns = (float((its["embed"] * way - sums).norm()) for way in (counts[:, None], counts))
    return rows <= columns


def _each(counts: Tensor, in_rows: bool) -> Tensor:
    return (counts[..., None] if in_rows else counts).clamp(min=EPSILON)


def _codebook_effective(its: Members) -> dict[str, Tensor]:
    if "embed" in its:
        return {"embed": its["embed"]}
    return {"sums": its["sums"] / _each(its["counts"], _in_rows(its))}


def _codebook_written(
    carried: Members, given: Sequence[Members], weights: Sequence[float]
) -> dict[str, Tensor]:
    counts = _mean([its["counts"] for its in given], weights).clamp(min=0)
    (vectors,) = carried.values()
    made = {"embed": vectors, "sums": vectors * _each(counts, _in_rows(given[0])), "counts": counts}
    return {role: made[role] for role in given[0]}


# -------------------------------------------------------------------------------------------- running moments


def _moments_effective(its: Members) -> dict[str, Tensor]:
    return {"mean": its["mean"], "variance": its["variance"] + its["mean"].square()}


def _moments_written(
    carried: Members, given: Sequence[Members], weights: Sequence[float]
) -> dict[str, Tensor]:
    variance = carried["variance"] - carried["mean"].square()
    if bool((variance < -1e-9 * carried["variance"].abs()).any()):
        raise SpecError("the variance is negative by weights that are")
    count = _mean([its["count"] for its in given], weights)
    count = (
        count.round() if all(bool((its["count"] == its["count"].round()).all()) for its in given) else count
    )
    return {"mean": carried["mean"], "variance": variance.clamp(min=0), "count": count}


WAYS = {
    "spectral norm": Way(("weight",), _spectral_effective, _spectral_written),
    "weight norm": Way(("v",), _normed_effective, _normed_written),
    "pruning mask": Way(("weight",), _masked_effective, _masked_written),
    "mask": Way(("weight",), _masked_effective, _of_own_mask_written),
    "codebook": Way(("embed",), _codebook_effective, _codebook_written),
    "codebook without vectors": Way(("sums",), _codebook_effective, _codebook_written),
    "running moments": Way(("mean", "variance"), _moments_effective, _moments_written),
}
