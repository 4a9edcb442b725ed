"""The spec of a network that an installed package has by name: read off small twins of it, and kept.

Beside the twin's spec stands its proof. What was found is kept in the user's folder of caches, by a digest of
all that it depends on; a record that cannot be read or written is made anew.
"""

from __future__ import annotations

import contextlib
import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torch import nn

from ..checkpoints.writing import write_text_atomic
from ..errors import NotProven, RebasinError, SpecError
from ..networks import hub, tied
from ..proof import prove as proving
from ..reports import accounts
from ..runtime import files
from ..runtime.seeds import generator
from ..spec.fitting import fit
from ..spec.parsing import parse
from ..spec.spec import Spec
from ..types import Shapes
from ..version import version

if TYPE_CHECKING:
    from ..inference import Inferred

_TOLD = {"network", "assumed", "made_before"}  # of a proof, by every record
_UNREADABLE = (OSError, RebasinError, RecursionError, ValueError, KeyError, TypeError, AttributeError)


def spec_of(name: str, shapes: Shapes, say: Callable[[str], None]) -> Spec:
    """The spec of such a network, which fits these tensors; `proof` says what it was proven on.

    Raises UsageError without the package, NetworkError, NotProven, SpecError where nothing fits.
    """
    problems: list[str] = []
    for small in (True, False):
        if (record := _record(name, small, shapes, say)) is None:
            continue
        spec = _spec(record, name, shapes)
        try:
            fit(spec, shapes)
        except SpecError as error:
            problems = problems or list(error.problems)
        else:
            return spec
    raise SpecError(
        f"no spec of {name} fits", problems=problems, hint="Is this configuration that of the weights?"
    )


def _spec(record: Mapping[str, Any], name: str, shapes: Shapes) -> Spec:
    """The spec of a record; a tied tensor need not be there under all its names."""
    spec = parse(
        record["text"], name=record["title"].rpartition(" ")[2], source="the spec of its configuration"
    )
    optional = set(record["tied"]) - shapes.keys()
    entries = tuple(replace(one, optional=one.optional or one.name in optional) for one in spec.entries)
    sizes = {**spec.sizes, **record["sizes"]}
    return replace(spec, net=name, proof=record["proof"], entries=entries, sizes=sizes)


def _record(name: str, small: bool, shapes: Shapes, say: Callable[[str], None]) -> dict[str, Any] | None:
    """What was found of it, or of its twins where `small`; None where there is no twin, or they disagree."""
    file = files.user_cache() / "specs" / f"{hub.digest(name, version(), str(small))}.json"
    with contextlib.suppress(*_UNREADABLE):
        found = json.loads(files.content(file))
        kept = _spec(found, name, shapes)
        if kept.proof.keys() >= _TOLD and str(kept.proof["network"]).endswith(hub.title(name)):
            return dict(found)
    if not small and (count := sum(map(math.prod, shapes.values()))) > hub.LARGEST:
        raise SpecError(
            f"{name} has {count:,} parameters, and no small twin of it has a spec that fits",
            hint="Give a smaller network of the same kind: rebasin spec infer --net file.py:factory -o FILE",
        )
    say(f"spec: inferred from {'small twins of ' * small}{hub.title(name)}")
    try:
        record = _of_twins(name) if small else _of_network(hub.build(name, most=hub.LARGEST), name)
    except RebasinError:
        if small:
            return None
        raise
    if record is not None:
        with contextlib.suppress(OSError, RebasinError):
            file.parent.mkdir(parents=True, exist_ok=True)
            write_text_atomic(file, json.dumps(record, indent=1), force=True)
    return record


def _of_network(network: nn.Module, name: str) -> dict[str, Any]:
    found, title = _inferred(network), hub.title(name)
    if found.refused or found.proof is None:
        raise NotProven(f"the spec inferred from {title} does not hold: the proof refused a part of it")
    proof = accounts.describe_proof(found.proof) | {"network": title, "assumed": False, "made_before": True}
    names = [*tied.tied(network)]
    return {"title": title, "text": found.text, "sizes": {}, "proof": proof, "tied": names}


def _inferred(network: nn.Module) -> Inferred:
    from ..inference import infer  # torch.export takes a second to import

    return infer(network, (), hub.example(network, generator(0, "twin")))


def _of_twins(name: str) -> dict[str, Any] | None:
    """What two twins of other sizes say alike, proven on a third one that it was not read off.

    Numbers that differ between the two are left open; how many units a word has is told where it is the same
    in both, as heads are: it is so in the network, too. None where there are no twins, or they do not agree.
    """
    networks = [hub.twin(name, size) for size in hub.SIZES]
    first, second, third = networks
    if first is None or second is None or third is None:
        return None
    from ..inference.text.families import compact_words

    one, other = _inferred(first), _inferred(second)
    if (text := _common(one.text, other.text)) is None or one.refused or other.refused:
        return None
    ours, theirs = one.fitted.sizes, other.fitted.sizes
    same = {word: size for word, size in ours.items() if theirs.get(word) == size}
    sizes = compact_words(same, ours)
    title, names = hub.title(name), [*tied.tied(third)]
    record = {"title": title, "text": text, "sizes": sizes, "proof": {}, "tied": names}
    shapes = {key: tuple(tensor.shape) for key, tensor in third.state_dict().items()}
    batch = hub.example(third, generator(1, "twin"))
    proof = proving.prove(third, fit(_spec(record, name, shapes), shapes), batch)
    told = {"network": f"a small twin of {title}", "assumed": False, "made_before": True}
    return record | {"proof": accounts.describe_proof(proof) | told}


def _common(one: str, other: str) -> str | None:
    """A spec that both are, with `_` for numbers on axes that differ; sizes that differ are not said."""
    found = []
    for line, its in zip(one.splitlines(), other.splitlines(), strict=False):
        if line == its:
            found.append(line)
        elif re.sub("[0-9]+", "0", line) != re.sub("[0-9]+", "0", its):
            return None
        elif '"' in line.partition(": ")[2]:
            pieces, theirs = re.split("([0-9]+)", line), re.split("([0-9]+)", its)
            found.append("".join(a if a == b else "_" for a, b in zip(pieces, theirs, strict=True)))
    return "\n".join(found) + "\n" if len(one.splitlines()) == len(other.splitlines()) else None
