"""Plain averages on files: models as they are, tensor by tensor, without a spec or a network."""

from __future__ import annotations

import math
import shutil
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ...averages.kinship import alike
from ...averages.means import BLOCK
from ...averages.parts import Parts, check_values, parts_of
from ...averages.tensors import combined
from ...checkpoints import destination
from ...checkpoints.checkpoint import Checkpoint
from ...checkpoints.configuration import beside
from ...checkpoints.tensors import CHUNK, LazyTensors
from ...errors import SpecError
from ...runtime.ranks import Ranks
from ...runtime.text import some
from ...session.listener import Listener
from ...session.models import know_digests, naming, open_beside
from ...session.samples import data_reference
from ...session.session import Session
from ...session.specs import check_configurations
from ...spec import library
from ..verbs import endpoints, needs, provenance, repairs, search
from ..verbs.folders import tell_differences
from ..verbs.outputs import Output, write_as_planned
from ..verbs.ranks import check_same
from ..verbs.tensor_bytes import BLOCKS, bytes_of
from . import configs, declared
from .average import Average

SHOWN = 6  # names in a line


def suffices(session: Session, mean: Average) -> bool:
    """Whether the models are averaged as they are: nothing is asked for that takes a spec.

    Those that record their data set are repaired on it where that loses less, as `--repair auto` does
    wherever it can, and where a built-in spec knows them.
    """
    asked = session.asked
    if not mean.asks_for_no_spec(asked):
        return False
    if asked.repair.repair == "none" or mean.for_plain_only():
        return True
    if data_reference(session.opened, asked.data) is None:
        return True
    return not _is_known(session.opened[0])


def _is_known(model: Checkpoint) -> bool:
    """Whether a built-in spec, which names its network, fits the tensors."""
    try:
        return library.find(model.shapes, beside(model.path)).spec.net is not None
    except SpecError:
        return False


def merge(session: Session, output: Output, mean: Average) -> dict[str, Any]:
    """Average models as they are and write one; integers are copied. What was done, as values.

    Raises SpecError where the models have different tensors, UsageError for running statistics without
    `--repair none`, CheckpointError for values that are no numbers.
    """
    search.check_needs(session)
    mean.check_nothing_kept(output)
    paths, asked, listener = session.paths, session.asked, session.listener
    models = session.named
    check_same(session, {}, models)
    copied = mean.copy_from
    source = None if copied is None else open_beside(models[0], copied, asked.loading, listener.say)
    with naming(paths):
        if asked.loading.config is None:
            check_configurations(models, listener.say)
        choices: dict[str, Any] = {"ignore": mean.ignore, "learnt": mean.learnt}
        choices |= {"heads": mean.heads, "extra": mean.extra}
        parts = parts_of(models, source=source, values=False, **choices)
    if not asked.data.skip_checks:
        averaged = [*parts.averaged, *parts.heads]
        declared.check(models, averaged, listener.say, by_number=mean.heads == "average")
    if parts.statistics and asked.repair.repair != "none" and len(models) > 1:
        raise repairs.broken_statistics(_is_known(models[0]))
    tensors = combined(
        models,
        parts,
        mean.numbers,
        source=source,
        heads=mean.heads,
        interpolation=mean.interpolation,
        dtype=output.dtype,
        called=[str(model.path) for model in models],
        step=listener.step,
    )
    its = _needs(models, parts, tensors, mean)
    needs.refuse(session, its, output)
    plan = _account(models, parts, mean) | _plan(tensors, output) | its.facts()
    if output.dry_run:
        return plan
    with naming(paths):
        check_values(models, parts)
    _tell(listener, models, parts, plan, mean, source)
    endpoints.tell(models, listener.say)
    tell_differences(paths, [*output.copies], listener.say)
    output = configs.fitted(output, models, tensors.shapes, listener.say, heads=mean.heads, source=source)
    _digests([*models, *([source] if source is not None else [])], session.ranks)
    options: dict[str, Any] = {"weights": list(mean.numbers or []), "interpolation": mean.interpolation}
    options |= {"schedule": mean.schedule} if mean.schedule else {}
    options |= {name: list(given) for name in ("ignore", "learnt") if (given := getattr(mean, name))}
    options |= {"copied_from": source.digest()} if source is not None else {}
    options |= {"heads": mean.heads} if parts.heads else {}
    options |= {"extra": mean.extra} if mean.extra != "error" else {}
    meta = provenance.describe(
        "merge", models, None, method="none", seed=asked.network.seed, options=options, like=models
    )
    how: dict[str, Any] = {"looked": tensors, "say": listener.say, "ranks": session.ranks}
    written = write_as_planned(output, tensors, meta, around=models[0], **how)
    return {"written": written} | _account(models, parts, mean)


def _needs(models: Sequence[Checkpoint], parts: Parts, tensors: LazyTensors, mean: Average) -> needs.Needs:
    """What is read and written, in bytes, and the memory that it takes: some blocks of the largest tensor.

    What lies in rows is read a block at a time, other layouts (transposed, in torch files)
    and heads a whole tensor at a time.
    """
    sizes = {n: math.prod(s) * tensors.dtypes[n].itemsize for n, s in tensors.shapes.items()}
    block = max(
        (min(size, max(CHUNK, size // max(1, (tensors.shapes[n] or (1,))[0]))) for n, size in sizes.items()),
        default=0,
    )
    families = [sum(sizes[n] for n in family.members.values()) for family in parts.products.families]
    whole = max(sizes.values(), default=0) if mean.interpolation != "linear" or parts.heads else 0
    whole = max(whole, len(models) * max(families, default=0))
    stored, written = sum(map(bytes_of, models)), sum(sizes.values())
    kept = min(BLOCKS, 4 * (stored + written))  # small models fill no buffers
    held = {"Python and PyTorch": needs.BASE, "blocks": kept + (len(models) + 2) * block + 16 * BLOCK}
    held |= {"tensors at work": 24 * whole} if whole else {}
    return needs.Needs(held, 2 * stored, written)  # read for their digests, and for the mean


def _plan(tensors: LazyTensors, output: Output) -> dict[str, Any]:
    return {
        "parameters": sum(math.prod(shape) for shape in tensors.shapes.values()),
        "free_bytes": shutil.disk_usage(destination.existing(output.path.parent)).free,
    }


def _account(models: Sequence[Checkpoint], parts: Parts, mean: Average) -> dict[str, Any]:
    weights = mean.numbers or [1 / len(models)] * len(models)
    found: dict[str, Any] = {
        "models": len(models),
        "method": "none",
        "interpolation": mean.interpolation,
        "weights": {str(m.path): round(w, 6) for m, w in zip(models, weights, strict=True)},
        "averaged_tensors": len(parts.averaged),
    }
    if len(found["weights"]) < len(models):  # a model that is named twice
        found["weights"] = [round(weight, 6) for weight in weights]
    found |= {"schedule": mean.schedule} if mean.schedule else {}
    found |= {"copied": dict(parts.copied)} if parts.copied else {}
    found |= {"heads": {name: mean.heads for name in parts.heads}} if parts.heads else {}
    found |= (
        {"extra": {n: str(models[k].path) for n, k in (parts.extra or {}).items()}} if parts.extra else {}
    )
    return found | ({"left_out": list(parts.dropped)} if parts.dropped else {})


def _tell(
    listener: Listener,
    models: Sequence[Checkpoint],
    parts: Parts,
    plan: Mapping[str, Any],
    mean: Average,
    source: Checkpoint | None,
) -> None:
    """Say the order and the weights, and what is not averaged, before anything is read."""
    say, whose = listener.say, str((source or models[0]).path)
    weights = mean.numbers or [1 / len(models)] * len(models)
    of = f" by {mean.schedule}" if mean.schedule else ""
    told = [f"{m.path} {w:.4g}" for m, w in zip(models, weights, strict=True)]
    say(f"weights{of}: {some(told, 20)}" if len(models) > 1 else "one model: written as it is")
    read, written, free, peak = (
        f"{plan[f'{what}_bytes'] / 1e6:,.1f} MB" for what in ("read", "written", "free", "peak")
    )
    say(f"plan: reads {read}, writes {written} ({free} free on the disk), takes about {peak} of memory")
    together = parts.products.families if len(models) > 1 else ()
    for kind in dict.fromkeys(family.kind for family in together):
        stems = [family.stem for family in parts.products.families if family.kind == kind]
        say(f"averaged as {kind.means} ({kind.name}): {some(stems, SHOWN)}")
    for why in dict.fromkeys(parts.copied.values()):
        names = [name for name, reason in parts.copied.items() if reason == why]
        say(f"copied from {whose} ({why}): {some(names, SHOWN)}")
    with_all = models if source is None else [source, *models]
    others = [n for n, why in parts.copied.items() if why == "integers" and not alike(with_all, n)]
    if others:
        say(f"these differ among the models: {some(others, SHOWN)}")
    if mean.heads and not parts.heads:
        say(f"--heads {mean.heads} changes nothing: no head differs")
    if any(len({m.dtypes[name] for m in models if name in m.dtypes}) > 1 for name in parts.averaged):
        say(f"the models have different dtypes: those of {models[0].path} are written")


def _digests(models: Sequence[Checkpoint], ranks: Ranks) -> None:
    """Read the models once for the digests that the output records, on as many threads as torch has.

    The threads are daemons: Ctrl-C does not wait for the last gigabyte. Several `ranks` take turns.
    """
    ranks.each(_read_digests, list(dict.fromkeys(models[ranks.rank :: ranks.size])))
    know_digests(models, ranks)


def _read_digests(waiting: list[Checkpoint]) -> None:
    count = min(len(waiting), torch.get_num_threads())
    failed: list[BaseException] = []

    def work() -> None:
        while waiting and not failed:
            try:
                waiting.pop().digest()
            except IndexError:
                return
            except BaseException as error:  # raised again below, in the thread that can be told
                failed.append(error)

    threads = [threading.Thread(target=work, daemon=True) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]
