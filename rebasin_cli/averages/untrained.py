"""Tensors that no training moves, and that say what a network does with the others.

Integers and booleans select: which weights are there, in which order units come, which positions are
neighbours. Tables are computed once from settings: frequencies of rotary positions, a schedule of noise,
filters of a spectrogram. An average has those of the first model; where another model has others, its weights
were trained for another function, and no average of both is a model of either.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Collection, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase

import torch
from torch import Tensor

from ..checkpoints import declared_names
from ..checkpoints.saved import words
from ..checkpoints.scalings import deviation, far
from ..checkpoints.tensors import plan_of, rows
from ..errors import SpecError
from ..types import Tensors
from .formulas import tables

__all__ = ["check_untrained"]

# Tables whose numbers do not tell: they are too few, or follow no short formula
_TABLES = re.compile(
    r"(^|[._])((original_)?inv_freq|(cos|sin)_cached|cos_sin_cache|freqs_(cis|cos|sin)|alibi_slopes|"
    r"(rope|rotary\w*)\.(freqs|cos|sin)|alphas?_bars?|alphas_cumprod\w*|relative_coords_table|"
    r"(pixel|image)_(mean|std)|mel_(basis|filters|filterbank)|mel_scale\.fb|featurizer\.(fb|window)|"
    r"spectrogram\.window|anchors|anchor_grid|priors)$"
)
# Measured of samples: of smooth inputs, as spectra and hours of a day are, they are as smooth as a formula
_MEASURED = re.compile(r"(^|[._])(running|moving)_(mean|var|variance|std)$")
_OF_LAYERS = ("weight", "gamma", "beta", "var", "running_var", "running_mean", "num_batches_tracked")
_SCALES = re.compile(
    r"^([xy]|scal(er|ing)|\w*norm\w*|stats?|standard\w*|(in|out)puts?|targets?|pixels?|images?|"
    r"latents?|features?|labels?|data)$"
)
# Words of a name: integers that count, or say how far a training came, select nothing
_COUNTS = re.compile(
    r"(?:^|_)(num|n|counts?|counters?|cnts?|steps?|tracked|pointer|ptr|seen|used|epochs?|iters?|iterations?|"
    r"updates?|samples?|usage|sizes?|total|hist|histogram|age|ages|rng|seeds?|state|nonzero|confmat|tp|fp|tn|fn|"
    r"correct|hits|visits|freq|tokens|dead|load|streak)(?:_|$)",
    re.IGNORECASE,
)
_PLACES = re.compile(r"(?:^|_)(idxs?|index|indices|ids?|perm|permutation|order|mask)$", re.IGNORECASE)
# One number may be anything: these words are of settings, but where another says that it is a state
_SETTINGS = re.compile(
    r"^(?!.*(batch|queue|buffer|memory|cur|best|seen|total|known))(?:.*_)?"
    r"(window|kernel|stride|dilation|padding|groups|heads|width|depth|radius|ratio|rate|hop|fft|mels|classes|"
    r"channels|resolution|patch|bins|zero_point|mode|kind|type|format)(?:_(size|length|len|shape))?$",
    re.IGNORECASE,
)
ROUNDED, LEAST = 2.0**-7, 1e-7  # by which a table may differ that went through bfloat16, or float16
_NUMBERS = re.compile("[0-9]+")
TOGETHER = 1 << 20  # numbers compared at once
SHOWN = 6  # names in an error


def check_untrained(
    models: Sequence[Tensors], averaged: Iterable[str], copied: Iterable[str], hint: str
) -> None:
    """Raise SpecError where tables among the `averaged`, or integers among the `copied`, differ.

    Tables, by their names or by their numbers (`formulas`), may differ by rounding, means and deviations that
    values are scaled by as two measurements do, integers that count or measure as they like. In the `hint`
    "{ignore}" stands for options that name what differs, "{names}" for the names.
    """
    plan, names = plan_of(models[0]), list(averaged)
    named = {name for name in names if _TABLES.search(name)}
    found = {*tables(models, [name for name in names if name not in named and not _MEASURED.search(name)])}
    found |= {name for name in named if not _near(models, name)}
    scaled = _scalings(models, [name for name in names if name not in found and not _MEASURED.search(name)])
    modules = {""} | {
        name[:end]
        for name, (dtype, shape) in plan.items()
        if dtype.is_floating_point and len(shape) > 1
        for end in (k for k, letter in enumerate(name) if letter == ".")
    }
    selecting = [name for name in copied if name in plan and _selects(name, *plan[name], models, modules)]
    wrong = {
        "tables, which no training moves": [name for name in names if name in found],
        "means and deviations that inputs or targets are scaled by": scaled,
        "integers that say how weights are used": [name for name in selecting if not _near(models, name)],
    }
    if any(wrong.values()):
        raise _refused(models, wrong, hint)


def _scalings(models: Sequence[Tensors], names: Sequence[str]) -> list[str]:
    """Those names of means and deviations that belong together and are far apart in two models."""
    plan, known, found = plan_of(models[0]), {*names}, []
    for name in names:
        other = deviation(name, known)
        if (
            other is None
            or plan[name] != plan.get(other)
            or not _is_row(*plan[name])
            or _learnt(name, other, plan)
        ):
            continue
        pairs = [
            (model[name].flatten().tolist(), model[other].flatten().tolist())
            for model in models
            if name in model and other in model
        ]
        if all(min(deviations, default=0) > 0 for _, deviations in pairs):
            found += [name, other] if any(far(pairs[0], pair) for pair in pairs[1:]) else []
    return found


def _learnt(name: str, deviation: str, plan: Collection[str]) -> bool:
    """Whether a mean was learnt or measured with its layer: of what is drawn, of weights, of a norm's units.

    A layer's own `mean` and `scale` are that, unless it is called after what it scales.
    """
    *module, last = name.split(".")
    own = words(last)
    if declared_names.is_drawn(tuple(module), last) or own & {"weight", "bias", "kernel"}:
        return True
    if module and any(".".join((*module, its)) in plan for its in _OF_LAYERS):
        return True
    called = own | (words(module[-1]) if module else frozenset())
    return deviation.endswith(("scale", "sigma")) and not any(
        _SCALES.search(word) for word in called - {"mean"}
    )


def _is_row(dtype: torch.dtype, shape: tuple[int, ...]) -> bool:
    return dtype.is_floating_point and math.prod(shape) == max(shape, default=1)


def _selects(
    name: str,
    dtype: torch.dtype,
    shape: tuple[int, ...],
    models: Sequence[Tensors],
    modules: Collection[str],
) -> bool:
    """Whether integers may say what a network does. `modules` are those that have weights.

    In a module without any, as metrics are, only what looks like places or a mask does.
    """
    module, _, last = name.rpartition(".")
    if math.prod(shape) < 2 and dtype != torch.bool:
        return bool(_SETTINGS.search(last))
    if _PLACES.search(last) or module in modules or dtype == torch.bool:
        return bool(_PLACES.search(last)) or not _COUNTS.search(last)
    return not _COUNTS.search(last) and any(_places(model[name]) for model in models if name in model)


def _places(values: Tensor) -> bool:
    """Whether integers are 0 and 1 alone, or all different and hardly more than there are of them."""
    largest, distinct = int(values.max()), len(values.unique())
    return int(values.min()) >= 0 and (largest <= 1 or (distinct == values.numel() > largest // 2))


def _refused(models: Sequence[Tensors], wrong: Mapping[str, Sequence[str]], hint: str) -> SpecError:
    plan, differing = plan_of(models[0]), [name for names in wrong.values() for name in names]
    problems = []
    for name in differing[:SHOWN]:
        dtype, shape = plan[name]
        k = next((k for k, model in enumerate(models) if not _near([models[0], model], name)), 1)
        kind = f"{str(dtype).removeprefix('torch.')} {'×'.join(map(str, shape)) or 'scalar'}"
        problems.append(f"{name}  {kind}: other values in model {k + 1} than in model 1")
    more = [f"… and {len(differing) - SHOWN} more"] if len(differing) > SHOWN else []
    globs = [shlex.quote(glob) for glob in _globs(differing, plan)]
    what = ", and in ".join(what for what, names in wrong.items() if names)
    return SpecError(
        f"the models differ in {what}: their weights were trained for different functions",
        problems=[*problems, *more],
        hint=hint.format(ignore=" ".join(f"--ignore {each}" for each in globs), names=", ".join(globs)),
    )


def _globs(names: Sequence[str], among: Iterable[str]) -> list[str]:
    """These names; of many, globs for their numbers where these name no others."""
    globs = [*dict.fromkeys(_NUMBERS.sub("*", name) for name in names)]
    if len(globs) == len(names) or {n for n in among for glob in globs if fnmatchcase(n, glob)} != {*names}:
        return [*names]
    return globs


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
