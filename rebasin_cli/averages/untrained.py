"""Tensors that no training moves, and that say what a network does with the others.

Integers and booleans select: which weights are there, in which order units come, which positions are
neighbours. Tables are computed once from settings: frequencies of rotary positions, a schedule of noise,
filters of a spectrogram. An average has those of the first model; where another model has others, its weights
were trained for another function, and no average of both is a model of either.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from ..checkpoints.tensors import plan_of, rows
from ..errors import SpecError
from ..types import Tensors

__all__ = ["check_untrained"]

_TABLES = re.compile(
    r"(^|[._])((original_)?inv_freq|(cos|sin)_cached|cos_sin_cache|freqs_(cis|cos|sin)|alibi_slopes|"
    r"(rope|rotary\w*)\.(freqs|cos|sin)|alphas?_bars?|relative_coords_table|"
    r"(pixel|image)_(mean|std)|mel_(basis|filters|filterbank)|mel_scale\.fb|featurizer\.(fb|window)|hann_window|"
    r"stft_window|spectrogram\.window)$"
)
# Of a schedule of noise, where the product of its steps stands beside
_SCHEDULES = re.compile(
    r"^(betas|alphas_cumprod(_prev)?|(sqrt|log)_\w*alphas(_cumprod)?|posterior_\w+|sigmas|log_sigmas)$"
)
_OF_A_SCHEDULE = "alphas_cumprod"
# Words of a name: integers that count, or say how far a training came, select nothing
_COUNTS = re.compile(
    r"(?:^|_)(num|n|counts?|counters?|steps?|tracked|pointer|seen|epochs?|iters?|iterations?|updates?|samples?|usage|"
    r"sizes?|total|hist|histogram|age|ages|rng|seeds?|state|nonzero|confmat|tp|fp|tn|fn|correct|hits|visits|freq|"
    r"tokens|dead|load)(?:_|$)",
    re.IGNORECASE,
)
_PLACES = re.compile(r"(?:^|_)(idx|index|indices|ids?|perm|permutation|order|mask)$", re.IGNORECASE)
ROUNDED, LEAST = 2.0**-7, 1e-7  # by which a table may differ that went through bfloat16, or float16
TOGETHER = 1 << 20  # numbers compared at once
SHOWN = 6  # names in an error


def check_untrained(
    models: Sequence[Tensors], averaged: Iterable[str], copied: Iterable[str], *, hint: str = ""
) -> None:
    """Raise SpecError where tables among the `averaged`, or integers among the `copied`, differ.

    Tables may differ by rounding, integers that are one number or a count as they like. The `hint` takes the
    place of what averages can be told.
    """
    plan, names = plan_of(models[0]), list(averaged)
    schedules = {name.removesuffix(_OF_A_SCHEDULE) for name in names if name.endswith(_OF_A_SCHEDULE)}
    tables = [
        name
        for name in names
        if _TABLES.search(name)
        or (name[: name.rfind(".") + 1] in schedules and _SCHEDULES.fullmatch(name.rpartition(".")[2]))
    ]
    _check(models, tables, "tables, which no training moves", hint)
    selecting = [name for name in copied if name in plan and _selects(name.rpartition(".")[2], *plan[name])]
    _check(models, selecting, "integers that say how weights are used", hint)


def _selects(last: str, dtype: torch.dtype, shape: tuple[int, ...]) -> bool:
    """Whether integers whose name ends so may say what a network does."""
    if math.prod(shape) < 2 and dtype != torch.bool:
        return False
    return bool(_PLACES.search(last)) or not _COUNTS.search(last)


def _check(models: Sequence[Tensors], names: Sequence[str], what: str, hint: str) -> None:
    if not (wrong := [name for name in names if not _near(models, name)]):
        return
    plan = plan_of(models[0])
    problems = []
    for name in wrong[:SHOWN]:
        dtype, shape = plan[name]
        k = next(k for k, model in enumerate(models) if not _near([models[0], model], name))
        kind = f"{str(dtype).removeprefix('torch.')} {'×'.join(map(str, shape)) or 'scalar'}"
        problems.append(f"{name}  {kind}: other values in model {k + 1} than in model 1")
    more = [f"… and {len(wrong) - SHOWN} more"] if len(wrong) > SHOWN else []
    raise SpecError(
        f"the models differ in {what}: their weights were trained for different functions",
        problems=[*problems, *more],
        hint=hint
        or "Merge models of one function. Where the first model's are right for all, let them be copied: "
        f"--ignore {wrong[0]!r}; with a spec, name them under its ignore:",
    )


def _near(models: Sequence[Tensors], name: str) -> bool:
    """Whether all that have this tensor have the same numbers, but for rounding."""
    first, *others = [model for model in models if name in model]
    shape = plan_of(first)[name][1]
    if not shape or any(plan_of(other)[name][1] != shape for other in others):
        return all(_close(first[name], other[name]) for other in others)
    step = max(1, TOGETHER // max(1, math.prod(shape[1:])))  # of numbers: dtypes may differ
    parts = [(start, min(start + step, shape[0])) for start in range(0, shape[0], step)]
    return all(_close(rows(first, name, *p), rows(other, name, *p)) for other in others for p in parts)


def _close(x: Tensor, y: Tensor) -> bool:
    if x.shape != y.shape:
        return False
    if not (x.is_floating_point() or x.is_complex()):
        return torch.equal(x, y)
    one, other = ((torch.view_as_real(t) if t.is_complex() else t).double() for t in (x, y))
    return torch.allclose(one, other, rtol=ROUNDED, atol=LEAST, equal_nan=True)
