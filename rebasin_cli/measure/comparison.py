"""How good is the merge of many models? Several methods on the same models and data, side by side."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

from torch import nn

from .. import matchers, networks
from ..averages.means import average
from ..averages.names import agreed
from ..checkpoints.tensors import plain
from ..errors import UsageError
from ..matchers.portfolio.align import align
from ..networks.evaluation import Scores, evaluate
from ..repair import reset
from ..reports import accounts
from ..runtime.seeds import generator
from ..spec.library import resolve_spec
from ..spec.spec import FittedSpec, Spec
from ..symmetry import permutation
from ..symmetry.permutation import permuted
from ..types import Batches, Permutations, Tensors
from ..version import version
from . import simplex
from .compared import Comparison, Curvature, Cycles, Merged, Method, inconsistency
from .geometry import geometry, independent
from .sharpness import Sharpness, sharpness

POINTS = 10  # of the simplex
REPAIRS = ("auto", "none", "reset")
PAIRWISE = "wm"  # the method whose permutations of single pairs are looked at for cycles


def compare(
    models: Sequence[Tensors],
    spec: str | Path | Spec | FittedSpec | None = None,
    *,
    network: nn.Module,
    test: Iterable[Any],
    train: Iterable[Any] | None = None,
    reset_batches: Batches | None = None,
    methods: Sequence[str] = (PAIRWISE,),
    repair_with: str = "auto",
    points: int = POINTS,
    once: bool = False,
    without_reference: bool = False,
    cycles: bool = True,
    curved: Mapping[str, Iterable[Any]] | None = None,
    probes: int = 10,
    seed: int = 0,
    scores: Callable[[nn.Module, Any], Scores] | None = None,
    loss: Callable[..., Any] | None = None,
    output: str | int | None = None,
    device: str = "cpu",
    check: Callable[[Mapping[str, Sequence[Scores]]], Any] | None = None,
    measured: Callable[[], None] = lambda: None,
    align_options: Mapping[str, Mapping[str, Any]] | None = None,
    progress: Callable[[str, matchers.State], None] = lambda method, state: None,
) -> Comparison:
    """Match `models` to the first with every method ("none" leaves them), and measure what mixing them gives.

    The mean of the first 2, 3 … models, the middles of all pairs, `points` at random in the simplex, on the
    splits `test` and, where given, `train`. Methods for many models match the first n anew for every n, as
    merging n models would; with `once`, all are matched once. Networks with running statistics get them
    measured anew at every point on `reset_batches` (default: `train`), unless `repair_with` is "none".
    With `without_reference` the mean of all but the first, which the others were matched to, is measured as
    well (STE-MM, Figure 1). `cycles` also matches every pair of models by itself. `curved` are batches by
    split to measure sharpness on, of the models and of every merge (see `sharpness`, which takes `probes`
    and `loss`).

    `align_options` maps methods to what `rebasin_cli.align` gets for them beside the network, such as
    {"am": {"data": train}}. `check` sees the models' own scores first and may raise, `measured` is called
    after every point, `progress` by every search. `network` is overwritten.

    Raises SpecError, UsageError, CheckpointError, DataError, NetworkError.
    """
    began = time.perf_counter()
    models = agreed(plain(models))[0]
    if len(models) < 2:
        raise UsageError("comparing merges takes at least two models")
    fitted = resolve_spec(spec, models, averaged=True).ordered
    networks.check(network, fitted.shapes)
    network = network.to(device)
    batches = reset_batches if reset_batches is not None else train
    bench = Bench(
        network,
        {"train": train, "test": test} if train is not None else {"test": test},
        scores or functools.partial(evaluate, output=output, device=device),
        _reset(network, repair_with, batches, device),
        fitted.ignored,
        measured,
        dict(curved or {}),
        functools.partial(sharpness, probes=probes, seed=seed, loss=loss, output=output, device=device),
    )
    ends = [bench.scores_of(model) for model in models]
    if check is not None:
        check({split: [end[split] for end in ends] for split in bench.splits})
    names = [
        name
        for name, tensor in models[0].items()
        if tensor.is_floating_point() and name not in fitted.statistics and name not in fitted.ignored
    ]
    found, times = [], {}
    for method in methods:
        options: dict[str, Any] = {"network": network, "output": output, "prove": False}
        options |= {"seed": seed, "device": device}
        options["progress"] = functools.partial(progress, method)
        options |= (align_options or {}).get(method, {})
        merged, times[method] = [], 0.0
        for permutations, match, seconds in _matched(method, models, fitted, options, once=once):
            times[method] += seconds
            moved = _moved(models, permutations, fitted)
            merged.append(
                Merged(
                    len(moved),
                    simplex.mean(bench.measure, moved, ends),
                    match,
                    simplex.without_first(bench.measure, moved, ends) if without_reference else None,
                    bench.curvature(average(moved, keep=fitted.ignored), mixed=True),
                )
            )
        found.append(
            Method(
                method,
                tuple(merged),
                tuple(simplex.midpoints(bench.measure, moved, ends)),
                tuple(simplex.anywhere(bench.measure, moved, ends, points, seed=seed)),
                geometry(moved, names),
            )
        )
    rng = generator(seed, "random orders")
    shuffled = [permutation.random(fitted.words, rng, within=fitted.within) for _ in models[1:]]
    return Comparison(
        rebasin=version(),
        command="compare",
        seed=seed,
        inputs=tuple({"file": f"model {k}"} for k in range(1, len(models) + 1)),
        spec=accounts.describe_spec(fitted),
        data={"samples": {split: ends[0][split].samples for split in bench.splits}},
        proof=accounts.describe_proof(None, "no proof was asked for"),
        repair="none" if bench.reset is None else "reset",
        endpoints=tuple(ends),
        methods=tuple(found),
        given=geometry(models, names),
        null=geometry(independent(models, names, seed=seed), names),
        shuffled=geometry(_moved(models, shuffled, fitted), names),
        cycles=_cycles(models, fitted, seed, progress) if cycles and len(models) > 2 else None,
        endpoint_sharpness=tuple(bench.curvature(model) for model in models) if curved else (),
        times=times | {"total": time.perf_counter() - began},
    )


@dataclass(frozen=True)
class Bench:
    """A network to put weights into, and all that is measured on it.

    `reset`, where there is one, re-estimates the network's statistics at every mixture; `ignored` tensors
    are the first model's.
    """

    network: nn.Module
    splits: Mapping[str, Iterable[Any]]
    scores: Callable[[nn.Module, Any], Scores]
    reset: Callable[[], Any] | None
    ignored: Collection[str]
    measured: Callable[[], None]
    curved: Mapping[str, Iterable[Any]]
    sharpness: Callable[..., Sharpness]

    def _load(self, tensors: Tensors, *, mixed: bool) -> None:
        networks.load(self.network, tensors)
        if mixed and self.reset is not None:
            self.reset()

    def scores_of(self, tensors: Tensors, *, mixed: bool = False) -> dict[str, Scores]:
        self._load(tensors, mixed=mixed)
        found = {split: self.scores(self.network, batches) for split, batches in self.splits.items()}
        self.measured()
        return found

    def measure(self, models: Sequence[Tensors], weights: Sequence[float]) -> dict[str, Scores]:
        """For `simplex`: the scores of a mixture; a single model keeps its own statistics."""
        return self.scores_of(average(models, weights, keep=self.ignored), mixed=len(models) > 1)

    def curvature(self, tensors: Tensors, *, mixed: bool = False) -> Curvature:
        """Sharpness by split; empty where none was asked for."""
        if not self.curved:
            return {}
        self._load(tensors, mixed=mixed)
        return {split: self.sharpness(self.network, batches) for split, batches in self.curved.items()}


def points_to_measure(
    models: int, methods: int, points: int, *, without_reference: bool = False
) -> tuple[int, int]:
    """How many points `compare` scores: the models as they are, and mixtures of them."""
    means = (models - 1) * (1 + without_reference)
    return models, methods * (means + models * (models - 1) // 2 + points)


def _reset(network: nn.Module, repair_with: str, batches: Any, device: str) -> Callable[[], Any] | None:
    """What is done to the network at every mixture before it is measured; None for nothing."""
    if repair_with not in REPAIRS:
        raise UsageError(
            f"merges of many models are compared with reset or without, not with {repair_with}",
            hint=f"Choose --repair {', '.join(REPAIRS[:-1])} or {REPAIRS[-1]}",
        )
    if repair_with == "none" or not networks.has_running_statistics(network):
        return None
    if batches is None:
        raise UsageError("the network has running statistics: give training batches to re-estimate them on")
    return functools.partial(reset, network, batches, device=device)


def _matched(
    method: str, models: Sequence[Tensors], fitted: FittedSpec, options: Mapping[str, Any], *, once: bool
) -> Iterator[tuple[Sequence[Permutations], dict[str, Any], float]]:
    """For 2, 3 … models the permutations of all but the first, the account of their search, its seconds."""
    counts = range(2, len(models) + 1)
    if method == "none":
        still = permutation.identity(fitted.words)
        yield from (([still] * (count - 1), {"method": "none"}, 0.0) for count in counts)
        return
    if matchers.registry.get(method).MANY and not once:
        for count in counts:
            found = align(models[:count], fitted, method=method, **options)
            yield found.permutations, accounts.describe_match(found), found.seconds
        return
    found = align(models, fitted, method=method, **options)
    account = accounts.describe_match(found)
    for count in counts:  # one search: its seconds count once
        yield found.permutations[: count - 1], account, found.seconds * (count == counts[0])


def _moved(models: Sequence[Tensors], sets: Sequence[Permutations], fitted: FittedSpec) -> list[Tensors]:
    """The first model and those after it with their units permuted, in memory: they are read many times."""
    others = models[1 : len(sets) + 1]
    return [models[0], *(dict(permuted(m, fitted, p)) for m, p in zip(others, sets, strict=True))]


def _cycles(
    models: Sequence[Tensors],
    fitted: FittedSpec,
    seed: int,
    progress: Callable[[str, matchers.State], None],
) -> Cycles | None:
    told = functools.partial(progress, "pairs")
    pairs = {}
    for i, j in combinations(range(len(models)), 2):
        pair = align([models[i], models[j]], fitted, method=PAIRWISE, seed=seed, progress=told)
        pairs[i, j] = pair.permutations[0]
    return inconsistency(pairs)
