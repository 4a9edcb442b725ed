"""The model that adapters are of: where the weights of their modules are, and all that they add in it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from ...averages.low_rank import Factors, joined
from ...checkpoints import adapters as files
from ...checkpoints import configuration, peft
from ...checkpoints.adapters import Adapter
from ...checkpoints.checkpoint import Checkpoint
from ...checkpoints.tensors import LazyTensors
from ...errors import CheckpointError, SpecError, UsageError
from ...runtime.text import some
from ...session.models import open_models, tell_notes
from ...session.session import Session

MOST = 3  # adapters that a message names
TIED = ("embed", "lm_head", "wte", "shared")  # parts of names of what networks use twice
FLAT = re.compile(r"lora_[a-z0-9]+_")  # before a module's name where its dots are underscores


@dataclass(frozen=True)
class Base:
    """The model that adapters are of: of each module the `names` of its weight, and whether it is `turned`.

    A turned weight is stored as (inputs, outputs): embeddings, and layers of `fan_in_fan_out`.
    """

    model: Checkpoint
    names: Mapping[str, str]
    turned: frozenset[str]


def opened(session: Session, path: Path, adapters: Sequence[Adapter]) -> Base:
    """The base, opened and held against the adapters, whose sum will be added to it."""
    (model,) = open_models([path], session.asked.loading, session.say)
    check_base(path)
    tell_notes(path, model, session.say)
    found = of_base(model, adapters, added=True)
    model.look(name=str(path))
    return found


def check_base(path: Path) -> None:
    """Raise UsageError for a base that is an adapter."""
    if files.is_adapter(path):
        raise UsageError(f"--base {path} is an adapter itself", hint="Name the model that adapters are of")


def of_base(model: Checkpoint, adapters: Sequence[Adapter], *, added: bool) -> Base:
    """Where the weights of adapted modules are in their base, and how they lie.

    Raises SpecError where a module has no weight that fits; and where the product is to be `added`, for what
    cannot take it: quantised numbers, a tensor that the network reads in two places, a module saved whole.
    """
    modules = {name: (a, module) for a in reversed(adapters) for name, module in a.modules.items()}
    names, problems, turned = names_in(model, [*modules]), [], set()
    problems += [
        f"layer_replication  of {adapter.path}: it is of a network that has layers of its base several times"
        for adapter in adapters
        if (adapter.config or {}).get("layer_replication")
    ]
    problems += [f"{name}  is no module with a weight" for name in modules if name not in names]
    problems += [
        f"{name}  is saved whole, beside factors"
        for name in (adapters[0].whole if added else ())
        if not _is_its_own(model, adapters[0], name)
    ]
    straight = []
    flags = {bool((adapter.config or {}).get("fan_in_fan_out")) for adapter in adapters}
    square = []
    for name, stored in names.items():
        shape, module = modules[name][0].shape(name), modules[name][1]
        dtype = model.dtypes[stored]
        if added and (dtype.itemsize == 1 or not dtype.is_floating_point):
            problems.append(f"{name}  {stored} is {str(dtype).removeprefix('torch.')}, quantised or packed")
        elif added and _is_tied(model, stored):
            problems.append(f"{name}  {stored} is used twice in the base, and adapted in one of its places")
        elif module.embedding or len(shape) > 2:
            wanted = shape[::-1] if module.embedding else shape
            turned |= {name} if module.embedding else set()
            if model.shapes[stored] != wanted:
                problems.append(f"{name}  {_unequal(shape, model.shapes[stored])}")
        elif shape[0] == shape[1] and model.shapes[stored] == shape:
            square.append(name)
        elif model.shapes[stored] == shape:
            straight.append(name)
        elif model.shapes[stored] == shape[::-1]:
            turned.add(name)
        else:
            problems.append(f"{name}  {_unequal(shape, model.shapes[stored])}")
    lying = {name for name in turned if not modules[name][1].embedding}
    if square and (len(flags) > 1 or (straight if True in flags else lying)):
        problems.append(
            f"{square[0]}  is square, and fan_in_fan_out does not say how it lies: other layers contradict it"
        )
    turned |= {*square} if True in flags else set()
    if problems:
        raise SpecError(
            f"{model.path} is not the base of {some([str(a.path) for a in adapters], MOST)}",
            problems=problems,
            hint="Name the model that they were trained on, with all its modules",
        )
    return Base(model, names, frozenset(turned))


def stored_whole(model: Checkpoint, name: str) -> str | None:
    """The tensor of the base that one replaces which was saved whole."""
    module, _, last = name.removeprefix(peft.PREFIX).replace(".base_layer", "").rpartition(".")
    weight = names_in(model, [module]).get(module, "")
    found = weight.removesuffix("weight") + last
    return found if found in model else None


def _is_its_own(model: Checkpoint, adapter: Adapter, name: str) -> bool:
    """Whether a tensor that was saved with an adapter is the base's, as peft saves embeddings."""
    stored = stored_whole(model, name)
    if stored is None or model.shapes[stored] != adapter.weights.shapes[name]:
        return False
    return torch.equal(model[stored].double(), adapter.weights[name].double())


def _unequal(shape: Sequence[int], other: Sequence[int]) -> str:
    return f"adapts {'×'.join(map(str, shape))}, the base has {'×'.join(map(str, other))}"


def _is_tied(model: Checkpoint, name: str) -> bool:
    """Whether a network reads this tensor in two places, as far as the file and its configuration tell."""
    if any(name in group for group in model.tied):
        return True
    config = configuration.beside(model.path) or {}
    return config.get("tie_word_embeddings") is True and any(part in name for part in TIED)


def names_in(model: Checkpoint, modules: Sequence[str]) -> dict[str, str]:
    """The tensor of each module's weight, by names that are the same, but for one prefix of all.

    Modules that have none are left out.
    """
    stems = {name.removesuffix(".weight"): name for name in model if name.endswith(".weight")}
    ways: list[Mapping[str, str]] = [stems]
    if modules:
        one = modules[0]
        flat: dict[str, list[str]] = {}
        for stem in stems:
            flat.setdefault(stem.replace(".", "_"), []).append(stem)
        for cut in {found[0] for found in map(FLAT.match, modules) if found}:  # sd-scripts
            ways.append({cut + short: stems[its[0]] for short, its in flat.items() if len(its) == 1})
        for stem in stems:
            if stem.endswith(f".{one}"):
                before = stem.removesuffix(one)
                ways.append({s.removeprefix(before): n for s, n in stems.items() if s.startswith(before)})
            elif one.endswith(f".{stem}"):
                before = one.removesuffix(stem)
                ways.append({before + s: n for s, n in stems.items()})
    found = [{name: way[name] for name in modules if name in way} for way in ways]
    return max(found, key=len)


def parts(adapters: Sequence[Adapter], weights: Sequence[float], name: str) -> tuple[Factors, int]:
    """The sum of all that adapters add to a module, as one pair of factors, and the sum of the ranks."""
    having = [(a, w) for a, w in zip(adapters, weights, strict=True) if name in a.modules]
    factors = joined([a.modules[name].factors(a.weights) for a, _ in having], [w for _, w in having])
    return factors, factors[0].shape[1]


def onto(base: Base, adapters: Sequence[Adapter], weights: Sequence[float]) -> LazyTensors:
    """The base with all that the adapters add, in float64 where anything is; rounded where it is written."""
    module_of = {stored: name for name, stored in base.names.items()}
    kept: dict[str, Factors] = {}

    def factors(name: str) -> Factors:
        """As the weight lies, rows first; of the last module alone."""
        if name not in kept:
            kept.clear()
            up, down = parts(adapters, weights, name)[0]
            kept[name] = (down.mT, up.mT) if name in base.turned else (up, down)
        return kept[name]

    def added(stored: str, tensor: Tensor, rows: slice) -> Tensor:
        if stored not in module_of:
            return tensor
        first, second = factors(module_of[stored])
        delta = first[rows] @ second
        if not bool(delta.isfinite().all()):
            raise CheckpointError(f"{stored}: what the adapters add is beyond the range of float64")
        return tensor.double() + delta.reshape(tensor.shape)

    model = base.model
    return LazyTensors(
        model.shapes,
        model.dtypes,
        lambda name: added(name, model[name], slice(None)),
        lambda name, start, stop: added(name, model.rows(name, start, stop), slice(start, stop)),
    )
