"""STE-MM: learn permutations of many models at once, so that the loss is small everywhere between them.

As the straight-through estimator, but the point at which each step takes the loss is a random mixture of all
models. Its gradient serves every model, times the share that the model has in the mixture.

Ito, Yamada and Kumagai 2025, section 4.1, Algorithm 1 (ICML, PMLR 267).
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import torch

from ..datasets import Data
from ..datasets.batches import checked, size_of, steady
from ..errors import UsageError
from ..registry import PLAIN, option
from ..types import Batches
from . import MatchResult, Problem, check_several
from .accounts import Setting
from .straight_through.search import search
from .straight_through.settings import Training, memory

__all__ = ["Options", "match", "memory"]

NEEDS = frozenset({"network", "data"})
MANY = True
GROUPS = True
SAMPLES = None
DECLARES: frozenset[str] = frozenset()


def uniforms(rng: torch.Generator, count: int) -> torch.Tensor:
    """Uniform numbers over their sum: more in the middle than the simplex has (at 10, 0.058 around 0.1)."""
    drawn = torch.rand(count, generator=rng, dtype=torch.float64)
    return drawn / drawn.sum()


def dirichlet(rng: torch.Generator, count: int) -> torch.Tensor:
    """Uniform on the simplex: Dirichlet(1, …, 1) (at 10, 0.090 around 0.1)."""
    drawn = -torch.log1p(-torch.rand(count, generator=rng, dtype=torch.float64))
    return drawn / drawn.sum()


PRIORS = {"uniforms": uniforms, "dirichlet": dirichlet}


ALGORITHM = "Algorithm 1"
# Options that the paper fixes, and where it says so.
PUBLISHED = (
    Setting("epochs", 10, "B.2"),
    Setting("optimizer", "adam", "its program"),
    Setting("learning_rate", 1e-3, "B.2"),
    Setting("share", 1.0, ALGORITHM),
    Setting("init", "identity", ALGORITHM),
    Setting("weights_prior", "uniforms", ALGORITHM),
    Setting("limit", None, ALGORITHM),
)
BATCH = 256
# What else makes it the paper's program; the search itself knows how.
LITERAL = (
    Setting("batch_size", BATCH, "B.2"),
    Setting("training_samples", "all", ALGORITHM),
    Setting("matching", "from the identity to convergence, each step", "Algorithms 1 and 2"),
    Setting("result", "the last permutations", ALGORITHM),
)


@dataclass(frozen=True)
class Options(Training):
    """Those of the training; `weights_prior`, how mixtures are drawn: uniforms, or dirichlet.

    `as_published` takes the place of all that the paper's Algorithm 1 fixes.
    """

    weights_prior: str = option(
        "uniforms", "How each step's mixture is drawn; uniforms are normalised.", choices=PRIORS
    )
    as_published: bool = option(
        False,
        "Algorithm 1 to the letter: match from the identity to convergence in each step, take the last "
        "permutations; 10 epochs of Adam at 1e-3, all samples, 256 a batch. Slower, and as a rule no better.",
        role=PLAIN,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.as_published:
            changed = [
                it.name for it in PUBLISHED if getattr(self, it.name) not in (DEFAULTS[it.name], it.value)
            ]
            if changed:
                raise UsageError(
                    f"--as-published fixes {' and '.join(changed).replace('_', ' ')}",
                    hint="Leave one of the two out",
                )


DEFAULTS = {field.name: field.default for field in fields(Options)}


def match(problem: Problem, options: Options = Options()) -> MatchResult:  # noqa: B008 (frozen)
    """Permutations for every model but the first, learnt on `problem.data` with `problem.network`.

    The objective is the loss at the mean of all models on held-out training samples, in nats and negative, of
    what loses least there at the best temperature. A sweep is one step. Raises UsageError for fewer than two
    models, with `as_published` for a loader of other batches, and as `straight_through.search` does.
    """
    check_several(problem, "ste-mm")
    if options.as_published and problem.groups:
        raise UsageError("--as-published learns permutations, and --groups all more than those")
    if not options.as_published:
        return search(problem, options, PRIORS[options.weights_prior])
    options = replace(options, **{it.name: it.value for it in PUBLISHED})
    if problem.data is not None:
        problem = replace(problem, data=_in_batches(problem.data))
    told = tuple(it for it in (*PUBLISHED, *LITERAL) if it.value is not None)
    return search(problem, options, PRIORS[options.weights_prior], literal=told)


def _in_batches(data: Batches) -> Batches:
    """The samples in the paper's batches. Raises UsageError for a loader that makes others."""
    if isinstance(data, Data):
        return data.with_batch_size(BATCH)
    data = steady(data)
    inputs, targets = next(iter(checked(data)))
    if (size := size_of(targets, inputs)) != BATCH:
        raise UsageError(
            f"--as-published takes batches of {BATCH} samples, and the first of this loader has {size}",
            hint=f"Let it make batches of {BATCH}, or leave --as-published out",
        )
    return data
