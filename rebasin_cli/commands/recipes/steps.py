"""One step of a recipe: a command line to be, with what it reads, and what it leaves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from .files import index, is_sharded, opened
from .reader import public
from .vocabulary import MAY_BE_MISSING, Command


@dataclass(frozen=True)
class Step:
    """A command line to be: what it reads and writes is known before it runs.

    `reads` are all files that its result depends on, `listed` folders of data, of which names, sizes and
    times count; `writes` are what it leaves, by the suffix under which other steps name them ("" is the main
    one). `needs` are the steps that make what it reads, `pins` the digests that files must have. After its
    `time_limit`, as it was written, it is ended. `judging` are files that its gates alone depend on,
    `awaited` those that it would read and that are not there yet, which was accepted. What it `replaces` it
    may, whoever made that.
    """

    name: str
    command: Command
    arguments: tuple[str, ...]
    options: Mapping[str, Any]
    reads: tuple[Path, ...]
    listed: tuple[Path, ...]
    writes: Mapping[str, Path]
    needs: tuple[str, ...]
    where: str
    pins: Mapping[str, str] = field(default_factory=dict)
    time_limit: str | None = None
    judging: tuple[Path, ...] = ()
    awaited: tuple[Path, ...] = ()
    replaces: tuple[Path, ...] = ()

    @property
    def held_against(self) -> tuple[Path, ...]:
        """The files of its baselines, there or not."""
        named = (self.options.get(key) for key in MAY_BE_MISSING if self.command.has(key))
        return tuple(Path(text) for text in named if text)

    @property
    def gates(self) -> dict[str, Any]:
        """What it asks of gates."""
        known = self.command.options
        return {key: value for key, value in self.options.items() if known[key].gate}

    def measuring(self) -> Step:
        """The step without its gates: what it measures depends on the rest alone."""
        options = {key: value for key, value in self.options.items() if key not in self.gates}
        return replace(self, options=options, reads=tuple(p for p in self.reads if p not in self.judging))

    @property
    def files(self) -> tuple[Path, ...]:
        """Everything that it may leave under a name that is known before."""
        found = list(self.writes.values())
        if self.options.get("out_shard_size") and "" in self.writes:
            found.append(index(self.writes[""]))
        return tuple(dict.fromkeys(found))

    @property
    def guarded(self) -> tuple[Path, ...]:
        """Of these, what has to be a recipe's own where it is there already."""
        return tuple(path for path in self.files if path not in self.replaces)

    def found(self) -> Step:
        """The step where models that an earlier one wrote as shards are named by their index."""
        moved = {str(path): str(index(path)) for path in self.reads if is_sharded(path)}
        reads = [Path(moved.get(str(path), path)) for path in self.reads]
        return replace(
            self,
            arguments=tuple(moved.get(text, text) for text in self.arguments),
            options={k: moved.get(v, v) if isinstance(v, str) else v for k, v in self.options.items()},
            reads=tuple(dict.fromkeys(part for path in reads for part in opened(path))),
        )

    def asked(self, **more: Any) -> Any:
        """The value of its operation, with `more` options of those that it has."""
        known = {key: value for key, value in more.items() if self.command.has(key)}
        return self.command.made(self.arguments, {**self.options, **known})

    def line(self, **more: Any) -> list[str]:
        """Its command line, without `rebasin`."""
        known = {key: value for key, value in more.items() if self.command.has(key)}
        return self.command.line(self.arguments, {**self.options, **known})

    def shown(self) -> list[str]:
        """Its command line as it may be seen, with `rebasin`: addresses without what signs them."""
        return ["rebasin", *map(public, self.line())]
