"""A search's method and its own options: what the user set of them, as `Options` and as provenance.

What there is to set is said by the methods themselves (`registry.option`); nothing here knows a name of
theirs, but that --limit is also an option about data.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from .. import matchers
from ..checkpoints.validation import digest
from ..errors import UsageError, unknown
from ..matchers.accounts import Begun, Mixed, Relaxed
from ..matchers.portfolio.align import check_groups as can_find_groups
from ..matchers.portfolio.align import foreign_option, options_of, polish_of
from ..registry import Option
from ..symmetry import stored
from ..symmetry.elements import tensors_of
from .request import Search
from .subjects import Data, Network

# Files of rebasin 0.1 name these two of every search, set or not; the same merge shall give the same bytes.
ALWAYS_RECORDED = {"max_sweeps": None, "effort": None}


GROUPS = ("auto", "permutations", "all")


def check_method(search: Search, *, or_none: bool = False) -> None:
    """Raise UsageError for a method that there is not."""
    check_groups(search.groups)
    if search.groups == "all" and search.method == "none":
        raise UsageError("--groups all is for a search, and --method none makes none")
    if search.groups == "all" and search.method in matchers.registry.names():
        can_find_groups(search.method, polish=search.polish is not None)
    if search.polish is not None:
        polish_of(search.polish, search.method)
        if search.method == "none":
            raise UsageError(
                "--polish refines what a method found, and --method none finds nothing",
                hint="Choose one of: rebasin list methods",
            )
    if search.method == "none" and or_none:
        return
    if search.method == "none":
        raise UsageError("--method none leaves nothing to do", hint="Choose one of: rebasin list methods")
    known = [*matchers.registry.names(), *["none"] * or_none]
    if search.method not in known:
        raise unknown("method", search.method, known)


def check_groups(groups: str) -> None:
    """Raise UsageError for a choice of --groups that there is not."""
    if groups not in GROUPS:
        raise unknown("choice of --groups", groups, GROUPS)


def declared(method: str) -> dict[str, Option]:
    """The options of a method by name; none for "none" and permutations that are given."""
    if method in ("none", "given"):
        return {}
    return {option.name: option for option in matchers.registry.options(method)}


def make(search: Search, data: Data) -> Any:
    """The method's own Options, with what the user set; a limit of samples where it has one.

    Raises UsageError for an unknown method, and for an option that it does not have.
    """
    chosen, known = dict(search.options), declared(search.method)
    if search.method == "none":
        if chosen:
            raise foreign_option(next(iter(chosen)), "none")
        return None
    if data.limit is not None and "limit" in known:
        chosen["limit"] = data.limit
    file, option = start_file(search), start_option(search.method)
    if file is not None and option is not None:
        if not file.is_file():
            raise UsageError(
                f"{option.flag} {file}: neither a way to start nor a file",
                hint=f"Choose one of {', '.join(option.choices)}, or a *.perm.safetensors",
            )
        if stored.load(file).elements.maps and search.groups != "all":
            able = getattr(matchers.registry.get(search.method), "GROUPS", False)
            other = "" if able else "--method ste "
            raise UsageError(
                f"{option.flag} {file} holds more than an order, and this search finds permutations alone",
                hint=f"Search as it was found: {other}--groups all",
            )
        chosen[option.name] = "identity"
    return options_of(search.method, chosen)


def start_option(method: str) -> Option | None:
    """The option that may say with a file where a search starts."""
    return next((option for option in declared(method).values() if option.kind == "start"), None)


def start_file(search: Search) -> Path | None:
    """The permutation file that the search starts from; None where it starts in a way of its own."""
    option = start_option(search.method)
    value = None if option is None else search.options.get(option.name)
    return None if option is None or value is None or value in option.choices else Path(value)


def recorded(search: Search, data: Data) -> dict[str, Any]:
    """The options that change what a method finds, as far as the user set them: for provenance.

    Of methods that look at data also which and how much of it; a file's own path is not told.
    """
    return ALWAYS_RECORDED | _with_effect(search, "length") | _finding(search, data)


def identity(search: Search, data: Data, network: Network) -> dict[str, Any]:
    """All that a kept search must agree on with the one that goes on with it, as far as options decide."""
    chosen = {"effort": None} | _finding(search, data)  # named by searches that older releases kept, too
    if needs_data(search.method) or search.polish is not None:
        asked: dict[str, Any] = {"output": network.output, "net": network.net}
        asked |= {"not_kept": list(network.not_kept)} if network.not_kept else {}
        chosen |= asked | {n: getattr(data, n) for n in ("data", "normalize", "limit", "batch_size", "loss")}
    return chosen


def _finding(search: Search, data: Data) -> dict[str, Any]:
    chosen = _with_effect(search, "result")
    file, option = start_file(search), start_option(search.method)
    if file is not None and option is not None:
        chosen[option.name] = digest(tensors_of(stored.load(file).elements))
    if search.polish is not None:
        chosen["polish"] = search.polish
    if search.groups == "all":
        chosen["groups"] = search.groups
    if needs_data(search.method) or search.polish is not None:
        name = None if data.data is None else data.data.partition(":")[0]
        chosen |= {"data": name, "limit": data.limit, "normalize": data.normalize}
        if trains(search.method):
            chosen["batch_size"] = data.batch_size
    return {name: value for name, value in chosen.items() if value is not None}


def _with_effect(search: Search, effect: str) -> dict[str, Any]:
    known = declared(search.method)
    return {n: v for n, v in search.options.items() if n in known and known[n].effect == effect}


def needs_data(method: str) -> bool:
    """Whether a method runs the network on samples, at least where there are some."""
    if method in ("none", "given"):
        return False
    module = matchers.registry.get(method)
    return bool(module.NEEDS or getattr(module, "USES", ()))


def can_do_without(method: str) -> bool:
    """Whether a method that runs the network on samples also finds something without."""
    return not matchers.registry.get(method).NEEDS


def trains(method: str) -> bool:
    """Whether a method learns by the gradient of a loss."""
    return "learning_rate" in declared(method)


def for_those_that_have_them(search: Search, methods: list[str]) -> dict[str, Search]:
    """The search by every method, each with those of the options that it has.

    Raises UsageError for an option that none of them has.
    """
    known = {method: declared(method) for method in methods}
    for name in search.options:
        if not any(name in options for options in known.values()):
            raise foreign_option(name, methods[0])
    each = {m: {n: v for n, v in search.options.items() if n in options} for m, options in known.items()}
    return {m: dataclasses.replace(search, method=m, options=own) for m, own in each.items()}


def bounded(options: Any) -> Any:
    """The same options with a bound on the objective, where the method knows one: for reports."""
    return dataclasses.replace(options, bound=True) if hasattr(options, "bound") else options


def how_it_went(found: Any) -> dict[str, Any]:
    """What a search decided by itself, for provenance: how learning began, what was chosen, what swaps did.

    No seconds: they differ from run to run.
    """
    if found is None:
        return {}
    result, own, told = found.result, found.result.account, dict[str, Any]()
    if isinstance(own, Begun) and own.init not in (None, "given"):  # else the user said it with a file
        told["init"] = own.init
    if result.chosen is not None:
        told |= {"chosen": result.chosen.method, "tried": result.chosen.rows()}
    if isinstance(own, Mixed):
        told["mix"] = own.mix
    if isinstance(own, Relaxed) and own.rounding is not None:
        told["rounded"] = own.rounding.chosen
    return told | ({"polished": result.polished.plain()} if result.polished is not None else {})
