"""The spec of a network that an installed package has by name: read off small twins of it, and kept.

Beside the twin's spec stands its proof. What was found is kept in the user's folder of caches, by a digest of
all that it depends on; a record that cannot be read or written is made anew.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from .. import networks
from ..checkpoints.writer import write_text_atomic
from ..errors import NetworkError, NotProven, RebasinError, SpecError
from ..networks import hub, tied
from ..proof import prove as proving
from ..proof.prove import Proof
from ..reports import accounts
from ..runtime import files
from ..runtime.seeds import generator
from ..spec.fits import fit
from ..spec.parser import parse
from ..spec.spec import Entry, FittedSpec, Spec
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
    names = [name, *filter(None, [hub.trained_first(name)])]
    many = sum(map(math.prod, shapes.values())) > hub.LARGEST
    for small, each in itertools.product((True, False), names):
        if not small and many and problems:
            break  # its twins have a spec, which these tensors do not fit
        try:
            record = _record(each, small, shapes, say)
        except SpecError as error:
            if not error.problems:
                raise
            problems = list(error.problems)
            continue
        if record is None:
            continue
        spec = _spec(record, each, shapes, hub.units(each))
        try:
            fit(spec, shapes)
        except SpecError as error:
            if (other := _renamed(spec, each, shapes)) is not None:
                return other
            problems = problems or list(error.problems)
        else:
            return spec
    raise SpecError(
        f"no spec of {name} fits", problems=problems, hint="Is this configuration that of the weights?"
    )


def _differences(name: str, shapes: Shapes) -> list[str]:
    """What such a network has otherwise than this file; nothing where it cannot be made without values."""
    try:
        with torch.device("meta"):
            network = hub.build(name, shapes, most=hub.LARGEST)
    except NetworkError:
        return []
    own = {key: tuple(tensor.shape) for key, tensor in network.state_dict().items()}
    return networks.differences(network, own, shapes)


def _renamed(spec: Spec, name: str, shapes: Shapes) -> Spec | None:
    """The spec for a file of an earlier version, or of the network within; None where it does not fit."""
    written, unread = hub.names_in_file(name, shapes)
    if not written or not shapes.keys() <= {*written, *unread}:
        return None
    try:
        fitted = fit(spec, {written[file]: shape for file, shape in shapes.items() if file in written})
    except SpecError:
        return None
    if fitted.stacks:
        return None
    entries = tuple(
        Entry(file, fitted.tensors[now], statistic=now in fitted.statistics)
        for file, now in written.items()
        if file in shapes and now in fitted.tensors
    )
    stays = tuple(file for file, now in written.items() if file in shapes and now not in fitted.tensors)
    within = {word: block.word for word, block in fitted.within.items() if block.word is not None}
    found = replace(spec, entries=entries, ignore=(*unread, *stays), sizes=fitted.sizes, within=within)
    with contextlib.suppress(SpecError):
        fit(found, shapes)
        return found
    return None


def _spec(record: Mapping[str, Any], name: str, shapes: Shapes, units: int) -> Spec:
    """The spec of a record for heads of so many units; of a tied tensor one name is enough."""

    def number(share: str) -> int:
        found = Fraction(share) * units
        if found.denominator != 1:
            raise SpecError(f"heads of {units} units have no {share} of them")
        return int(found)

    spec = parse(
        re.sub("<([0-9/]+)>", lambda found: str(number(found[1])), record["text"]),
        name=record["title"].rpartition(" ")[2],
        source="the spec of its configuration",
    )
    optional = set(record["tied"]) - shapes.keys()
    entries = tuple(replace(one, optional=one.optional or one.name in optional) for one in spec.entries)
    told = {word: size if isinstance(size, int) else number(size) for word, size in record["sizes"].items()}
    sizes = {**spec.sizes, **told}
    return replace(spec, net=name, proof=record["proof"], entries=entries, sizes=sizes)


def _record(name: str, small: bool, shapes: Shapes, say: Callable[[str], None]) -> dict[str, Any] | None:
    """What was found of it, or of its twins where `small`; None where there is no twin, or they disagree."""
    digest = hub.digest(name, version(), str(small))
    with contextlib.suppress(*_UNREADABLE):
        found = json.loads(files.content(_kept(digest)))
        kept = _spec(found, name, shapes, hub.units(name))
        if kept.proof.keys() >= _TOLD and str(kept.proof["network"]).endswith(hub.title(name)):
            return dict(found)
    if not small and (count := sum(map(math.prod, shapes.values()))) > hub.LARGEST:
        raise SpecError(
            f"{name} has {count:,} parameters, and no small twin of it has a spec that fits",
            hint="Give a smaller network of the same kind: rebasin spec infer --net file.py:factory -o FILE",
        )
    if not small and (wrong := _differences(name, shapes)):  # told in a second; inference may take minutes
        raise SpecError(f"{name} is not the network of these tensors", problems=wrong)
    say(f"spec: inferred from {'small twins of ' * small}{hub.title(name)}")
    try:
        record = _of_twins(name) if small else _of_network(hub.build(name, most=hub.LARGEST), name)
    except RebasinError:
        if small:
            return None
        raise
    if record is not None:
        with contextlib.suppress(OSError, RebasinError):
            file = _kept(digest)
            file.parent.mkdir(parents=True, exist_ok=True)
            write_text_atomic(file, json.dumps(record, indent=1), force=True)
    return record


def _kept(digest: str) -> Path:
    return files.user_cache() / "specs" / f"{digest}.json"


def _of_network(network: nn.Module, name: str) -> dict[str, Any]:
    found, title = _inferred(network), hub.title(name)
    if found.refused or found.proof is None:
        raise NotProven(f"the spec inferred from {title} does not hold: the proof refused a part of it")
    proof = accounts.describe_proof(found.proof) | {"network": title, "assumed": False, "made_before": True}
    names = [*tied.tied(network)]
    return {"title": title, "text": found.text, "sizes": {}, "proof": proof, "tied": names}


def _inferred(network: nn.Module) -> Inferred:
    from ..inference import infer  # torch.export takes a second to import

    batch = hub.example(network, generator(0, "twin"))
    if batch is None:
        raise NetworkError(
            f"nothing tells what inputs {type(network).__name__} takes",
            hint="Give the network with --net, and its inputs with --input or --data",
        )
    return infer(network, (), batch) if isinstance(batch, Mapping) else infer(network, batch)


def _of_twins(name: str) -> dict[str, Any] | None:
    """What two twins of other sizes say alike, proven on a third one that it was not read off.

    Numbers that differ between the two are left open; how many units a word has is told where it is the same
    in both, as heads are: it is so in the network, too. Where that leaves an axis open, as one of packed
    queries, keys and values, they are told as shares of the units of a head, and proven on a twin whose heads
    are as large as the network's, too. None where there are no twins, or they do not agree.
    """
    networks = [hub.twin(name, size) for size in hub.SIZES]
    first, second, third = networks
    if first is None or second is None or third is None:
        return None
    one, other = _inferred(first), _inferred(second)
    if one.refused or other.refused:
        return None
    title, names = hub.title(name), [*tied.tied(third)]
    told = {"network": f"a small twin of {title}", "assumed": False, "made_before": True}
    for shares in (False, True):
        if (text := _common(one.text, other.text, shares)) is None:
            return None
        sizes = _sizes(one.fitted, other.fitted, shares)
        record = {"title": title, "text": text, "sizes": sizes, "proof": {}, "tied": names}
        with contextlib.suppress(SpecError):
            proof = _proof(record, name, third, hub.SIZES[-1].units)
            if shares and (units := hub.units(name)):  # a share may be another of other heads
                if (last := hub.twin(name, hub.with_heads(units))) is None:
                    return None
                proof = _proof(record, name, last, units)
            return record | {"proof": accounts.describe_proof(proof) | told}
    return None


def _proof(record: Mapping[str, Any], name: str, network: nn.Module, units: int) -> Proof:
    """Of the spec of a record, on a twin whose heads have so many units. Raises SpecError, NotProven."""
    shapes = {key: tuple(tensor.shape) for key, tensor in network.state_dict().items()}
    fitted = fit(_spec(record, name, shapes, units), shapes)
    return proving.prove(network, fitted, hub.example(network, generator(1, "twin")))


def _sizes(one: FittedSpec, other: FittedSpec, shares: bool) -> dict[str, int | str]:
    """The units of words that have as many in both; with `shares`, also those of words within heads."""
    from ..inference.text.families import compact_words

    ours, theirs = one.sizes, other.sizes
    same = {word: size for word, size in ours.items() if theirs.get(word) == size}
    known: dict[str, int | str] = {**compact_words(same, ours)}
    if shares:
        of = {n: share for w in one.within if (share := _share(n := ours[w], theirs.get(w, 0)))}
        found = compact_words({w: ours[w] for w in one.within if w not in same and ours[w] in of}, ours)
        known |= {word: of[size] for word, size in found.items()}
    return known


def _share(one: int, other: int) -> str:
    """A number of both twins as one share of their units of a head; "" where it is none."""
    first, second, _ = hub.SIZES
    share = Fraction(one, first.units)
    return f"{share.numerator}/{share.denominator}" if share == Fraction(other, second.units) else ""


def _common(one: str, other: str, shares: bool) -> str | None:
    """A spec that both are, with `_` for numbers on axes that differ; sizes that differ are not said.

    With `shares`, numbers are told as shares of the units of a head: `<1/2>`.
    """

    def both(a: str, b: str) -> str:
        return a if a == b else (shares and _share(int(a), int(b)) and f"<{_share(int(a), int(b))}>") or "_"

    found = []
    for line, its in zip(one.splitlines(), other.splitlines(), strict=False):
        if line == its:
            found.append(line)
        elif re.sub("[0-9]+", "0", line) != re.sub("[0-9]+", "0", its):
            return None
        elif '"' in line.partition(": ")[2]:
            pieces, theirs = re.split("([0-9]+)", line), re.split("([0-9]+)", its)
            found.append("".join(map(both, pieces, theirs)))
    return "\n".join(found) + "\n" if len(one.splitlines()) == len(other.splitlines()) else None
