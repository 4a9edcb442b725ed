"""One search by any method, in memory: what it needs, what is proven before, what was found."""

from __future__ import annotations

import dataclasses
import inspect
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ... import networks
from ...errors import CheckpointError, UsageError
from ...proof import prove as proving
from ...proof.prove import Proof
from ...runtime import devices
from ...runtime.ranks import ALONE, Ranks
from ...runtime.seeds import generator
from ...spec.spec import FittedSpec
from ...symmetry import elements as acts
from ...symmetry import permutation
from ...symmetry.elements import Elements
from ...symmetry.folds import NONE, Folds
from ...symmetry.form import Forms
from ...types import Permutations, Tensors
from .. import MatchResult, Problem, State, Wider, registry
from ..polish import search as polishing
from ..polish.length import Length
from . import in_turn

WAYS = {  # to give what a method needs
    "network": ("the network", "--net file.py:factory (network=… in Python)"),
    "data": ("training samples", "--data NAME (data=… in Python)"),
}


@dataclass(frozen=True)
class Alignment:
    """`models`: all models, the first as it was, the others permuted, lazily; `tensors` is the last.

    `elements` has one per model after the first: what turns it, folded, into what it is now. `result` tells
    how the search went; `proof` is None where no network was given. All `models` are in canonical form; of
    permutations that is how they were. `left` has, a model, what could not be balanced and why.
    """

    models: tuple[Tensors, ...]
    elements: tuple[Elements, ...]
    result: MatchResult
    fitted: FittedSpec
    proof: Proof | None
    method: str
    seconds: float
    left: tuple[tuple[tuple[str, str], ...], ...]
    computed: bool  # whether numbers were, as they are folded or turned; else all only moved

    @property
    def permutations(self) -> tuple[Permutations, ...]:
        """The orders alone."""
        return tuple(element.permutations for element in self.elements)

    @property
    def tensors(self) -> Tensors:
        return self.models[-1]


def check_names(options: Iterable[str], of: str) -> None:
    """Raise TypeError for a keyword that `align` does not take, also where nothing is searched for."""
    known = inspect.signature(align).parameters
    if (unknown := next((name for name in options if name not in known), None)) is not None:
        raise TypeError(f"{of}() got an unexpected keyword argument {unknown!r}")


def align(
    models: Sequence[Tensors],
    fitted: FittedSpec,
    *,
    method: str = "wm",
    seed: int = 0,
    options: Any = None,
    network: nn.Module | None = None,
    data: Iterable[Any] | None = None,
    held: Iterable[Any] | None = None,
    repairs: Sequence[str] = (),
    ridge: float | None = None,
    inputs: Any = None,
    output: str | int | None = None,
    not_kept: Sequence[str] = (),
    loss: Callable[[torch.Tensor, Any], torch.Tensor] | None = None,
    metric: Any = None,
    choose: str = "loss",
    prove: bool = True,
    start: State | None = None,
    progress: Callable[[State], None] | None = None,
    polish: str | None = None,
    folds: Folds = NONE,
    device: str = "cpu",
    ranks: Ranks = ALONE,
    wider: Callable[[Callable[[], None], float], Wider | None] | None = None,
    room: int | None = None,
) -> Alignment:
    """Permute models into the first one's basin; everything is as `api.align` says.

    Words take elements of the groups that `fitted` gives them; `folds` is what the canonical form folds away.
    `options` is the method's own Options, or a mapping of those that differ from their defaults. `polish`
    says how long swaps on the true loss are tried in the end (`25s`, `300steps`); it needs network and data.
    `repairs` are those of the merge that is to come, which a method that tries several chooses from, too,
    and `ridge` theirs. It measures each `metric`, too, and chooses by the figure that `choose` names. It may
    also take what `wider` gives; then `fitted` of the alignment is that. Of the models' tensors as many bytes
    are kept meanwhile as there is `room` for; the others are read whenever they are asked for.
    """
    if len(models) < 2:
        raise UsageError("aligning takes at least two models")
    module = registry.get(method)
    check_needs(method, network=network is not None, data=data is not None)
    if network is not None:
        networks.check(network, fitted.shapes)
    options = options_of(method, options)
    length = None if polish is None else polish_of(polish, method)
    if length is not None and (network is None or data is None):
        raise UsageError(
            "--polish runs the network on data", hint=f"Give {WAYS['network'][1]} and {WAYS['data'][1]}"
        )
    proof = None
    if network is not None and prove:
        proof = prove_spec(network, fitted, inputs=inputs, seed=seed, output=output, not_kept=not_kept)
    if fitted.groups:
        check_groups(method, polish=polish is not None, many=len(models) > 2, ranks=ranks.size)
    forms = Forms(models, fitted, folds)
    problem = Problem(
        fitted,
        forms.held(computed=bool(module.NEEDS) and forms.changed, room=room),
        seed,
        progress=progress,
        network=network,
        data=data,
        held=held,
        repairs=tuple(repairs),
        ridge=ridge,
        output=output,
        not_kept=tuple(not_kept),
        loss=loss,
        metric=metric,
        choose=choose,
        device=devices.for_search(device),
        ranks=ranks,
        wider=wider,
    )
    began = time.perf_counter()
    try:
        result = in_turn.search(module, problem, options, start)
        if length is not None:
            result = _polished(problem, result, length)
        # Where it goes by the clock, or by what a processor rounds, each rank may have found another one
        result = ranks.first(lambda found: found, result)
    except OverflowError as cause:
        raise CheckpointError(
            "the weights hold values so large that their products are beyond float64",
            hint="Check both models' weights",
        ) from cause
    seconds = time.perf_counter() - began
    forms = result.forms or forms
    fitted = forms.fitted
    for permutations in result.permutations:
        permutation.check(permutations, fitted.words, within=fitted.within)
    whole = forms.whole(result.elements)
    for element in whole:
        acts.check(element, fitted)
    computed = forms.changed or any(element.maps for element in whole)
    left = tuple(form.left[len(forms.folds.left) :] for form in forms.each)
    return Alignment(forms.standing(whole), whole, result, fitted, proof, method, seconds, left, computed)


def _polished(problem: Problem, result: MatchResult, length: Length) -> MatchResult:
    """The same result with better permutations, if swaps find some."""

    def report(steps: int, loss: float) -> None:
        notes = {"polishing": float(steps), "held_out_loss": loss}
        problem.report(State(result.elements, result.sweeps, result.objective_after, notes))

    done = polishing.polish(problem, result.permutations, length, progress=report)
    return dataclasses.replace(
        result, elements=tuple(map(Elements, done.permutations)), polished=done.account()
    )


def options_of(method: str, given: Any = None) -> Any:
    """The Options of a method: as given, or made from a mapping of those that differ from their defaults.

    Raises UsageError for an option that the method does not have, with the methods that have it.
    """
    module = registry.get(method)
    if not isinstance(given, Mapping):
        return given or module.Options()
    known = {option.name: option for option in registry.options(method)}
    own = dataclasses.is_dataclass(module.Options)
    fields = [field.name for field in dataclasses.fields(module.Options)] if own else []
    for name, value in given.items():
        if name not in fields:
            raise foreign_option(name, method)
        if name in known:
            known[name].check(value)
    return module.Options(**given)


def foreign_option(name: str, method: str) -> UsageError:
    """What to say of an option that a method (or "none") does not have."""
    every = registry.every_option()
    having = {other: option for other, known in every.items() for option in known if option.name == name}
    flag = next((option.flag for option in having.values()), f"--{name.replace('_', '-')}")
    hint = f"It is for {', '.join(having)}" if having else None
    return UsageError(f"{flag}: the method {method} has no such option", hint=hint)


def check_needs(
    method: str, *, network: bool, data: bool, polish: bool = False, statistics: bool = False
) -> None:
    """Raise UsageError that names all that a method, or `polish`, needs and is not there; how to give it.

    `statistics`: the merge that is to come has running ones, which need the same.
    """
    needs = {"network", "data"} if polish else registry.get(method).NEEDS
    lacking = [
        WAYS[need] for need, there in (("network", network), ("data", data)) if need in needs and not there
    ]
    if lacking:
        who = "--polish" if polish else f"the method {method}"
        raise UsageError(
            f"{who} runs the network on data: it lacks {' and '.join(w for w, _ in lacking)}"
            + (", and so does the repair of BatchNorm's statistics" if statistics else ""),
            hint=f"Give {' and '.join(how for _, how in lacking)}; or match by weights alone: --method wm"
            + (" --repair none, and BatchNorm's statistics are averaged" if statistics else ""),
        )


def check_groups(
    method: str,
    *,
    polish: bool = False,
    many: bool = False,
    ranks: int = 1,
) -> None:
    """Raise UsageError where a search with groups is not possible."""
    able = [name for name in registry.names() if getattr(registry.get(name), "GROUPS", False)]
    if method not in able:
        raise UsageError(
            f"--groups all: the method {method} finds permutations only",
            hint=f"Choose one of {', '.join(able)}",
        )
    if polish:
        raise UsageError(
            "--groups all finds more than permutations, and --polish swaps units",
            hint="Leave one of them out",
        )
    if ranks > 1:
        raise UsageError(
            "--groups all is searched by one process: each element is multiplied into the whole model",
            hint="Run it without torchrun, or leave out --groups all",
        )
    if many and not registry.get(method).MANY:
        together = [name for name in able if registry.get(name).MANY]
        raise UsageError(
            f"--groups all: the method {method} matches two models",
            hint=f"Match all at once by --method {' or '.join(together)}, or merge them two by two",
        )


def polish_of(text: str, method: str) -> Length:
    """How long to polish what a method finds. Raises UsageError, also for one that does so by itself."""
    length = Length.parse(text)
    if method == "auto":
        raise UsageError(
            "--polish has no place beside --method auto, which tries such swaps itself, before it chooses",
            hint="Leave it out, give auto a larger --budget, or name another method",
        )
    return length


def prove_spec(
    network: nn.Module,
    fitted: FittedSpec,
    *,
    inputs: Any = None,
    output: str | int | None = None,
    not_kept: Sequence[str] = (),
    seed: int = 0,
) -> Proof | None:
    """Prove a spec on a network; None where there are neither inputs nor an `example_shape`."""
    inputs = networks.example_inputs(network, generator(seed, "prove inputs")) if inputs is None else inputs
    if inputs is None:
        return None
    return proving.prove(network, fitted, inputs, output=output, not_kept=not_kept, seed=seed)
