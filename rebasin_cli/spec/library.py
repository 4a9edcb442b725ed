"""Find a spec: by name, by path, or from the tensors themselves; only the last of these imports PyTorch."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from ..errors import NetworkError, NoSpecFits, SpecError, UsageError, unknown
from ..registry import entry_points, references, user_code
from ..runtime import files
from ..runtime.memory import uncollected
from ..types import Shapes, Tensors
from . import chain, lists
from .fits import fit, speaks_of_all
from .layers import NoChain
from .notation import Axis, Fixed, Product, Word, factors_of, rewrite
from .parser import LARGEST, parse, refers_to
from .sizes import still
from .spec import FittedSpec, Spec

Settings = Mapping[str, Any]  # of a model's configuration

DEEPEST = 50  # specs that include one another
MOST_BYTES = 4 * LARGEST  # a character has four at most


def folder() -> Path:
    """The shipped specs: package data in a wheel, the top-level folder in a source checkout."""
    package = Path(__file__).parents[1]
    return next(path for path in (package / "specs", package.parent / "specs") if path.is_dir())


@cache
def _files() -> dict[str, Path]:
    """Spec files by their stem; entry points `rebasin_cli.specs` (objects that are paths) add to them."""
    files = {path.stem: path for path in sorted(folder().glob("*.yaml"))}
    for point in entry_points("rebasin_cli.specs"):
        what = f"the spec {point.name} comes from {point.value}, which cannot be imported"
        with user_code(what, UsageError, hint="Mend that package, or remove it"):
            files[point.name] = Path(point.load())
    return files


def known() -> frozenset[Path]:
    """The files of all specs that have names: shipped, or of an installed package."""
    return frozenset(_files().values())


def read(path: Path, within: tuple[Path, ...] = ()) -> Spec:
    """The spec in a file; `include:` names are looked up beside it, then among the built-in ones.

    `within` are the files that include it.
    """
    hint = "Built-in specs: rebasin spec list"
    text = files.text(path, str(path), most=MOST_BYTES, error=SpecError, hint=hint)
    chain = (*within, path)

    def include(name: str) -> Spec:
        found = _included(name, path)
        if found is None or found == path:
            raise SpecError(
                f'{path}: include "{name}" is not a spec', hint="Built-in specs: rebasin spec list"
            )
        if found in chain:
            raise SpecError(f"{chain[0]}: its includes go in a circle")
        if len(chain) > DEEPEST:
            raise SpecError(f"{chain[0]}: more than {DEEPEST} specs include one another")
        return read(found, chain)

    shipped = path.parent == folder()
    return parse(text, name=path.stem, source=path.name, include=include, compiled=shipped)


def _included(name: str, path: Path) -> Path | None:
    """The file that the spec in `path` means by an `include:`; a name, and no way to another folder."""
    if not re.fullmatch(r"[\w-][\w.-]{0,99}", name):
        return None
    beside = path.parent / f"{name}.yaml"
    return beside if beside.is_file() else _files().get(name)


def files_of(path: Path) -> list[Path]:
    """The file of a spec, all that it includes, and the code of the network that they name, as far as these
    are there; nothing is judged.
    """
    found: list[Path] = []
    nets: list[str] = []
    waiting: list[Path | None] = [path]
    while waiting:
        file = waiting.pop()
        if file is None or file in found or len(found) > DEEPEST:
            continue
        found.append(file)
        with suppress(SpecError, UsageError):
            text = files.text(file, "", most=MOST_BYTES, error=SpecError)
            named = refers_to(text)
            waiting += [_included(name, file) for key, name in named if key == "include"]
            nets += [name for key, name in named if key == "net"]
    return [*found, *(code for net in dict.fromkeys(nets) for code in references.files_of(net))]


@cache
def builtin() -> dict[str, Spec]:
    """Every shipped or registered spec by file name."""
    with uncollected():
        return {name: read(path) for name, path in _files().items()}


def names() -> dict[str, str]:
    """What a user may type → the spec file that answers."""
    further = {alias: name for name, spec in builtin().items() for alias in spec.names}
    return further | {name: name for name in builtin()}


def load(reference: str) -> Spec:
    """The spec that a user named: a built-in name or a path to a YAML file."""
    if reference.endswith((".yaml", ".yml")) or "/" in reference:
        return read(Path(reference))
    if reference in ("infer", "chain"):
        raise UsageError(
            "this takes a spec that is written down",
            hint="Write one with: rebasin spec infer --net REF -o FILE"
            if reference == "infer"
            else "A chain is read off a checkpoint: rebasin spec show chain FILE",
        )
    known = names()
    if reference not in known:
        raise unknown("spec", reference, known)
    return builtin()[known[reference]]


MOST_TENSORS = 50_000  # each is held against every line of a built-in spec
REASONS = 3  # why tensors are no chain
TRIED = 4  # specs that do not fit, for what keeps them from it


def find(shapes: Shapes, settings: Settings | None = None) -> FittedSpec:
    """The built-in spec that fits these tensors; `settings` are the configuration beside them.

    Of several that fit, it is the one that moves no more than each of the others: what it moves may be moved
    whichever is right. Where the configuration names a class, specs for other classes are none of them.

    Raises NoSpecFits that names the nearest spec and what keeps it from fitting, or the ones that fit.
    """
    if len(shapes) > MOST_TENSORS:
        raise NoSpecFits(
            f"no built-in spec is tried on {len(shapes):,} tensors, at most {MOST_TENSORS:,}",
            hint="Write one (docs/specs.md) and give it with --spec FILE.yaml",
        )
    from ..nets import check_own

    named = class_of(settings)
    fitting: list[FittedSpec] = []
    misses: list[tuple[int, str, SpecError]] = []
    but_for_net: set[str] = set()

    def attempt(names: Sequence[str]) -> None:
        for name in names:
            try:
                fitted = fit(builtin()[name], shapes, settings)
                check_own(fitted.spec.net, shapes)
                fitting.append(fitted)
            except SpecError as error:
                misses.append((len(error.problems), name, error))
            except NetworkError as error:  # others use these names, too
                told = error.problems or (error.message,)
                misses.append((len(told), name, SpecError(error.message, problems=told)))
                but_for_net.add(name)

    ends = ends_of(shapes)
    lacks = {
        name: _lacks(spec, shapes, ends)
        for name, spec in builtin().items()
        if named is None or not spec.classes or named in spec.classes
    }
    whole = [name for name, share in lacks.items() if not share]
    covers = {name: speaks_of_all(builtin()[name], shapes) for name in whole}
    attempt([name for name in whole if covers[name]])
    if fitting:
        return _surest([one for one in fitting if named in one.spec.classes] or fitting)
    # In vain, but for what keeps them from fitting.
    attempt([name for name in whole if not covers[name]])
    attempt(sorted((name for name, share in lacks.items() if share), key=lacks.__getitem__)[:TRIED])
    none = (len(shapes) + 1, "", SpecError(""))  # where a configuration leaves no spec to try
    count, nearest, error = min(misses, key=lambda miss: miss[:2], default=none)
    near = 2 * count <= len(shapes)  # else it has nothing to do with them
    named_all_the_same = near and nearest in but_for_net
    write = f"If it is one but for this: --spec {nearest}; else write" if named_all_the_same else "Write"
    raise NoSpecFits(
        f"no built-in spec fits these {len(shapes)} tensors" + f"; the nearest is {nearest}" * near,
        problems=error.problems if near else (),
        hint=f"{write} one (docs/specs.md) and give it with --spec FILE.yaml",
    )


def class_of(settings: Settings | None) -> str | None:
    """The class of network that a configuration names."""
    named = (settings or {}).get("architectures")
    return named[0] if isinstance(named, list) and named and isinstance(named[0], str) else None


def _surest(fitting: Sequence[FittedSpec]) -> FittedSpec:
    """The one that all others hold. Raises NoSpecFits where they are different readings.

    Of those that say the same by other words it is the one with a network.
    """
    said: list[tuple[object, FittedSpec]] = []
    for one in sorted(fitting, key=lambda fitted: fitted.spec.net is None):
        reading = _reading(one)
        said += [(reading, one)] * (reading not in [other for other, _ in said])
    fitting = [one for _, one in said]
    for one in fitting:
        if all(one is other or _holds(other, one) for other in fitting):
            more = tuple(each.spec.name for each in fitting if not _holds(one, each))
            return replace(one, beside=more)
    names = [fitted.spec.name for fitted in fitting]
    raise NoSpecFits(
        "these tensors have several readings",
        problems=[f"{fitted.spec.name}  {fitted.spec.description}" for fitted in fitting],
        hint=f"Say which: --spec {' or --spec '.join(names)}",
    )


def _reading(fitted: FittedSpec) -> object:
    """What moves with what, whatever words say so: numbered in order, and words of one unit are none."""
    number: dict[str, str] = {}

    def leaf(axis: Axis) -> Axis:
        if not isinstance(axis, Word):
            return axis
        if fitted.words[axis.name] == 1:
            return Fixed(1)
        within = fitted.within.get(axis.name)
        each = axis.each and within is not None and within.count > 1
        return Word(number.setdefault(axis.name, str(len(number))), each, axis.side)

    def plain(axis: Axis) -> Axis:
        left = tuple(part for part in factors_of(rewrite(axis, leaf)) if part != Fixed(1))
        return left[0] if len(left) == 1 else Product(left)

    tensors = {tensor: tuple(map(plain, axes)) for tensor, axes in sorted(fitted.tensors.items())}
    return tensors, {number[word]: group for word, group in fitted.groups.items() if word in number}


def _holds(one: FittedSpec, other: FittedSpec) -> bool:
    """Whether `one` is `other` with words of its own beside: axes are the same once these stay."""
    if not other.words.keys() <= one.words.keys():
        return False
    return still(one.tensors, one.sizes, one.words.keys() - other.words.keys()) == other.tensors


def ends_of(shapes: Shapes) -> frozenset[tuple[int, str]]:
    """How many dots names have, and what stands behind each of them: to see soon what no name can be."""
    return frozenset(
        (len(parts), ".".join(parts[k:]))
        for name in shapes
        for parts in [name.split(".")]
        for k in range(len(parts) + 1)
    )


def _lacks(spec: Spec, shapes: Shapes, ends: frozenset[tuple[int, str]]) -> float:
    """The share of lines that have no tensor: seen at once, where a fit reads every name."""
    needed = [line for line in spec.entries if not line.optional]
    lacking = sum(
        (len(line.parts), line.end) not in ends if line.family else line.name not in shapes for line in needed
    )
    return lacking / max(1, len(needed))


PLAIN = "If they are one plain chain, and nothing goes around a layer, say so: --spec chain."


def resolve_spec(
    spec: str | Path | Spec | FittedSpec | None,
    models: Sequence[Tensors],
    *,
    averaged: bool = False,
    chains: bool = True,
    settings: Settings | None = None,
) -> FittedSpec:
    """The spec fitted to the first model, after a look whether all models have the same tensors.

    Where the models are to be `averaged`, families of tensors that cannot be are refused, sooner than that no
    spec fits them (`averages.together`). `settings` are the configuration beside the first. Without a spec
    that fits, `chains` are read off shapes.
    """
    from ..averages.together import products_of

    try:
        fitted = _resolved(spec, models, chains, settings)
    except SpecError:
        if averaged:
            products_of(models)
        raise
    if averaged:
        products_of(models, keep=fitted.ignored)
    return fitted


def _resolved(
    spec: str | Path | Spec | FittedSpec | None,
    models: Sequence[Tensors],
    chains: bool,
    settings: Settings | None,
) -> FittedSpec:
    from ..checkpoints.tensors import plan_of

    shapes = {name: shape for name, (_, shape) in plan_of(models[0]).items()}
    problems = [
        f"{name}  is {_show(shapes.get(name))} in model 1, {_show(other.get(name))} in model {k}"
        for k, model in enumerate(models[1:], start=2)
        for other in [{name: shape for name, (_, shape) in plan_of(model).items()}]
        for name in dict.fromkeys([*shapes, *other])
        if shapes.get(name) != other.get(name)
    ]
    if problems:
        raise SpecError("the models do not have the same architecture", problems=problems)
    if isinstance(spec, FittedSpec):
        return spec if spec.shapes == shapes else fit(spec.spec, shapes, settings)
    if spec is None:
        return _found(shapes, settings) if chains else find(shapes, settings)
    if spec == chain.NAME:
        try:
            return chain.read(shapes, plain=True)
        except NoChain as why:
            raise SpecError(
                "these tensors are not read as a plain chain of layers",
                problems=why.problems,
                hint="Give the network, and the spec is inferred from it and proven: --net file.py:factory",
            ) from None
    return fit(spec if isinstance(spec, Spec) else load(str(spec)), shapes, settings)


def _found(shapes: Shapes, settings: Settings | None) -> FittedSpec:
    """A built-in spec, or else the chain that the shapes tell. Raises NoSpecFits, of two chains by name."""
    try:
        return find(shapes, settings)
    except NoSpecFits as error:
        try:
            return chain.read(shapes)
        except NoChain as why:
            if not why.asks:
                raise _no_chain(error, why) from None
            doubts = why.problems
        with suppress(NoChain):
            chain.read(shapes, plain=True)
            raise NoSpecFits(
                f"{error.message.partition('; the nearest')[0]}, and their shapes have two readings",
                problems=doubts,
                hint=f"{PLAIN} {error.hint}",
            ) from None
        raise


def _no_chain(error: NoSpecFits, why: NoChain) -> NoSpecFits:
    """The same, and why no chain was read either, where no built-in spec is near."""
    if error.problems:
        return error
    problems = [f"no chain of layers: {problem}" for problem in why.problems[:REASONS]]
    return NoSpecFits(error.message, problems=problems, hint=error.hint)


def to_same(recorded: str | None, spec: Spec) -> str:
    """The next step of who has a file that was found with the `recorded` spec, and now has another `spec`."""
    if recorded == "inferred":
        return (
            "Write what was inferred, rebasin spec infer --net file.py:factory --input 1x3x224x224 -o "
            "spec.yaml, and name it: --spec spec.yaml"
        )
    if recorded == spec.name == chain.NAME:
        return (
            "These tensors have other names or shapes than those it was found with; or, where layers fit in "
            "several orders, their file has them in another: save them in the order of that file"
        )
    return "Name the same one with --spec"


def _show(shape: tuple[int, ...] | None) -> str:
    return "absent" if shape is None else lists.show(shape)


def resolve_words(
    spec: str | Path | Spec | FittedSpec | None, models: Sequence[Tensors], *, averaged: bool = False
) -> FittedSpec:
    """The same for the library: words take orders alone, unless the spec comes fitted, with its groups."""
    try:
        fitted = resolve_spec(spec, models, averaged=averaged)
    except NoSpecFits as error:
        error.hint = f"Read one off the network: rebasin_cli.infer_spec(network, inputs).fitted. {error.hint}"
        raise
    return fitted if isinstance(spec, FittedSpec) else fitted.ordered
