"""A search that can be interrupted: its state is kept beside the output and taken up with --resume."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from . import permutation
from .checkpoint import open_checkpoint
from .errors import CheckpointError, UsageError
from .matchers import State
from .writing import write_safetensors


def state_path(output: Path) -> Path:
    return output.with_name(f"{output.stem}.search.safetensors")


@contextmanager
def keeping(
    output: Path, identity: Mapping[str, str], *, resume: bool, say: Callable[[str], None]
) -> Iterator[tuple[State | None, Callable[[State], None]]]:
    """The state to start from, and where to report new ones.

    On Ctrl-C the last reported state is written beside `output`; it is removed once the block has
    finished. `identity` says what search it is: a kept state of another one is refused with UsageError.
    """
    path = state_path(output)
    start = _read(path, identity) if resume else None
    if resume:
        say(f"going on after sweep {start.sweep}")
    last: list[State] = []
    try:
        yield start, lambda state: last.__setitem__(slice(None), [state])
    except KeyboardInterrupt:
        if last:
            _write(path, last[0], identity)
            say(f"interrupted after sweep {last[0].sweep}; the search is kept in {path}: go on with --resume")
        raise
    path.unlink(missing_ok=True)


def _write(path: Path, state: State, identity: Mapping[str, str]) -> None:
    tensors = {
        f"{k}/{word}": perm for k, perms in enumerate(state.permutations) for word, perm in perms.items()
    }
    metadata = {
        **identity,
        "rebasin.kind": "search",
        "rebasin.sweep": str(state.sweep),
        "rebasin.objective": repr(state.objective),
    }
    write_safetensors(path, tensors, metadata=metadata, force=True)


def _read(path: Path, identity: Mapping[str, str]) -> State:
    if not path.is_file():
        raise UsageError(
            f"--resume: there is no {path}", hint="Only an interrupted search leaves one; start anew"
        )
    kept = open_checkpoint(path)
    if kept.metadata.get("rebasin.kind") != "search":
        raise CheckpointError(f"{path} is not a kept search")
    other = [key for key, value in identity.items() if kept.metadata.get(key) != value]
    if other:
        raise UsageError(
            f"{path} is from another search",
            problems=[f"{key}  was {kept.metadata.get(key)}, now {identity[key]}" for key in other],
            hint="Start anew without --resume",
        )
    sets: dict[int, dict] = {}
    for name in kept:
        k, _, word = name.partition("/")
        sets.setdefault(int(k), {})[word] = kept[name]
    state = State(tuple(sets[k] for k in sorted(sets)), int(kept.metadata["rebasin.sweep"]))
    for perms in state.permutations:
        permutation.check(perms, {word: len(perm) for word, perm in perms.items()})
    return state
