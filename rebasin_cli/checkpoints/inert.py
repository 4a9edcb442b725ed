"""Pickles read as data: nothing is imported, and nothing that they name is called.

A pickle is a program for a small stack machine. This is that machine without its doors: a global is looked
up in a table and never imported; one that is not there becomes an object that does nothing and remembers its
name. To call it, to set its attributes or items, to append to it is written down, and never done.
`pickled.py` holds the table, with what tensors are made of; `containers.py` looks into what was written down.

    Reader(known={}, stored=None, size=len(data)).load(io.BytesIO(data))
"""

from __future__ import annotations

import pickletools
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pickle import UnpicklingError
from typing import IO, Any, Protocol, cast

MAX_OPCODES = 1 << 24  # a quarter of a minute; a checkpoint of 10,000 tensors has about 1,000,000
SPARE = 1 << 26  # bytes that even a short pickle may ask for beyond its own
EMPTY_SET = 216  # bytes of memory for one byte of a pickle
MAX_INTEGER = 2048  # bits; Python refuses to show integers of more than 4,300 digits
PRIME = (1 << 61) - 1  # integers of a difference that it divides have one hash
CROWD = 256  # keys of one hash in one dictionary: each is compared with all before it

# What an opcode puts on the stack is what stands after it.
_VALUES = frozenset(
    """INT BININT BININT1 BININT2 LONG LONG1 LONG4 STRING BINSTRING SHORT_BINSTRING BINBYTES SHORT_BINBYTES
    BINBYTES8 BYTEARRAY8 UNICODE SHORT_BINUNICODE BINUNICODE BINUNICODE8 FLOAT BINFLOAT""".split()
)


class TooMuch(UnpicklingError):
    """A pickle asks for far more memory or time than its size would tell."""


@dataclass(eq=False, repr=False, slots=True)
class Inert:
    """What a global that is not known would have made, and what it was given. It does nothing.

    `kind` is the global's name, such as "argparse.Namespace". `args`: what it was called with; `state`: what
    it was built from; `items`, `listed`: what was set by key, or appended. `tensor` is not empty where it
    stands for a tensor, and says which: "is sparse: …"; `needs_code`: its class alone can tell its values.
    """

    kind: str
    args: tuple[Any, ...] = ()
    state: Any = None
    items: dict[Any, Any] | None = None
    listed: list[Any] | None = None
    tensor: str = ""
    needs_code: bool = False

    def __repr__(self) -> str:
        return f"<not read: {self.kind[:100]}>"

    def __reduce_ex__(self, protocol: object) -> Any:
        raise TypeError("what was not read cannot be written")


@dataclass(eq=False, repr=False, slots=True)
class Global:
    """A class or a function by its name; `make` stands for it where it is known: (reader, *args) → value."""

    kind: str
    make: Callable[..., Any] | None = None

    __repr__ = Inert.__repr__
    __reduce_ex__ = Inert.__reduce_ex__


def kind(value: Any) -> str:
    """What a value is called: of what was not read, the name of the class that it would have."""
    return value.kind if type(value) in (Inert, Global) else type(value).__name__


@dataclass(frozen=True)
class Known:
    """An entry of the table that may be called; any other entry is a value itself, such as a dtype."""

    make: Callable[..., Any]


class Readable(Protocol):
    """All that `pickletools` asks of a file."""

    def read(self, count: int, /) -> bytes: ...

    def readline(self) -> bytes: ...


class Reader:
    """Reads pickles one after the other, such as the five in a row of an old torch file.

    `known`: {(module, name): Known or a value}. `stored(id)` gives what a persistent id stands for. `size` is
    the number of bytes that are read: memory and time go with it. Afterwards `unknown` holds the names of
    all globals that are not known, in their order; `plain`: nothing is inert.

    Raises UnpicklingError, and what Python and PyTorch raise for wrong values (ValueError, TypeError,
    LookupError, AttributeError, RuntimeError); TooMuch.
    """

    def __init__(
        self, known: Mapping[tuple[str, str], Any], stored: Callable[[Any], Any] | None, *, size: int
    ):
        self.known, self.stored = known, stored
        self.unknown: dict[str, None] = {}
        self.plain = True
        self._globals: dict[tuple[str, str], Any] = {}
        self._left = SPARE + 4 * size
        self._opcodes = 0
        self._crowds: dict[int, Counter[int]] = {}

    def spend(self, amount: int) -> None:
        """Count memory or work beyond what the bytes of the pickle stand for themselves."""
        self._left -= amount
        if self._left < 0:
            raise TooMuch("it asks for far more memory than its size tells")

    def load(self, file: Readable) -> Any:
        """The value of the pickle that begins here; the file stands behind it then."""
        self.stack: list[Any] = []
        self.marks: list[list[Any]] = []
        self.memo: dict[int, Any] = {}
        for opcode, argument, _position in pickletools.genops(cast(IO[bytes], file)):
            self._opcodes += 1
            if self._opcodes > MAX_OPCODES:
                raise TooMuch(f"it has more than {MAX_OPCODES:,} steps")
            if opcode.name in _VALUES:
                self.stack.append(argument if type(argument) is not int else self._integer(argument))
            elif opcode.name == "STOP":
                value = self.stack.pop()
                self.stack, self.marks, self.memo = [], [], {}
                return value
            elif (step := _STEPS.get(opcode.name)) is None:
                raise UnpicklingError(f"{opcode.name} has no meaning in a file")
            else:
                step(self, argument)
        raise UnpicklingError("it does not end")

    # Globals, and what is made of them

    def _find(self, module: Any, name: Any) -> None:
        if type(module) is not str or type(name) is not str:
            raise UnpicklingError("the name of a global is no text")
        found = self._globals.get((module, name))
        if found is None:
            entry = self.known.get((module, name))
            full = f"{module}.{name}"
            if entry is None:
                self.unknown[full] = None
                self.plain = False
                found = Global(full)
            else:
                found = Global(full, entry.make) if type(entry) is Known else entry
            self._globals[module, name] = found
        self.stack.append(found)

    def make(self, function: Any, args: Any, keywords: Any = None) -> Any:
        """What a call gives: of a global that is known, its value; else what was asked, written down."""
        if type(args) is not tuple:
            raise UnpicklingError("what it is called with is no tuple")
        if type(function) is Global and function.make is not None and not keywords:
            made = function.make(self, *args)
        else:
            made = Inert(kind(function), (*args, keywords) if keywords else args)
        self.plain = self.plain and type(made) is not Inert
        return made

    def _reduce(self, _: Any) -> None:
        args = self.stack.pop()
        self.stack.append(self.make(self.stack.pop(), args))

    def _newobj_ex(self, _: Any) -> None:
        keywords, args = self.stack.pop(), self.stack.pop()
        self.stack.append(self.make(self.stack.pop(), args, keywords))

    def _inst(self, argument: str) -> None:
        args = tuple(self._pop_mark())
        self._global(argument)
        self.stack.append(self.make(self.stack.pop(), args))

    def _obj(self, _: Any) -> None:
        function, *args = self._pop_mark()
        self.stack.append(self.make(function, tuple(args)))

    def _global(self, argument: str) -> None:
        module, _, name = argument.partition(" ")
        self._find(module, name)

    def _stack_global(self, _: Any) -> None:
        name, module = self.stack.pop(), self.stack.pop()
        self._find(module, name)

    def _extension(self, code: int) -> None:
        self._find("copyreg", f"extension {code}")

    def _build(self, _: Any) -> None:
        state, value = self.stack.pop(), self.stack[-1]
        if type(value) is Inert:
            value.state = state
        elif type(value) is OrderedDict and type(state) is dict:
            kept = state.get("_metadata")  # versions of a network's layers; any other could hide a method
            if type(kept) in (dict, OrderedDict):
                value.__dict__["_metadata"] = kept

    # Containers

    def _append(self, _: Any) -> None:
        item = self.stack.pop()
        self._listed().append(item)

    def _appends(self, _: Any) -> None:
        items = self._pop_mark()
        self._listed().extend(items)

    def _listed(self) -> list[Any]:
        value = self.stack[-1]
        if type(value) is Inert:
            value.listed = [] if value.listed is None else value.listed
            return value.listed
        if type(value) is not list:
            raise UnpicklingError(f"it appends to {type(value).__name__}")
        return value

    def _setitem(self, _: Any) -> None:
        item, key = self.stack.pop(), self.stack.pop()
        self.fill(self.stack[-1], [key, item])

    def _setitems(self, _: Any) -> None:
        items = self._pop_mark()
        self.fill(self.stack[-1], items)

    def fill(self, value: Any, items: list[Any]) -> None:
        """Set items of a dictionary: keys and values by turns."""
        if type(value) is Inert:
            value.items = {} if value.items is None else value.items
            value = value.items
        if type(value) not in (dict, OrderedDict):
            raise UnpicklingError(f"it sets items of {type(value).__name__}")
        for key, item in zip(items[::2], items[1::2], strict=True):
            if not _is_light(key):
                self._weigh(key, value)
            value[key] = item

    def _empty_set(self, _: Any) -> None:
        self.spend(EMPTY_SET)
        self.stack.append(set())

    def _additems(self, _: Any) -> None:
        items = self._pop_mark()
        if type(self.stack[-1]) is Inert:
            self._listed().extend(items)
        else:
            self.add(self.stack[-1], items)

    def _frozenset(self, _: Any) -> None:
        items = self._pop_mark()
        self.stack.append(frozenset(self.add(set(), items)))

    def add(self, value: Any, items: Any) -> set[Any]:
        """Put items into a set."""
        if type(value) is not set:
            raise UnpicklingError(f"it adds to {type(value).__name__}")
        self.spend(EMPTY_SET + 64 * len(items))
        for item in items:
            if not _is_light(item):
                self._weigh(item, value)
            value.add(item)
        return value

    def _weigh(self, key: Any, into: dict[Any, Any] | set[Any]) -> None:
        """Refuse keys that take long to hash or compare, are nested without end, or have all one hash."""
        if type(key) is str or type(key) is bytes:  # their hashes cannot be foreseen, and are kept
            if len(key) > CROWD:
                self.spend(len(key))
            return
        todo, parts = [key], 0
        while todo:
            part = todo.pop()
            if isinstance(part, tuple | frozenset):
                parts += len(part)
                todo += part if parts <= 1000 else ()
            elif type(part) in (str, bytes):
                parts += len(part) // 64
            parts += 1
            if parts > 1000:
                raise TooMuch("it has keys of more than 1,000 parts")
        self.spend(parts)
        if len(into) > CROWD:
            crowd = self._crowds.setdefault(id(into), Counter())
            crowd[hash(key)] += 1
            if crowd[hash(key)] > CROWD:
                raise TooMuch("it has many keys of one hash")

    # The stack

    def _pop_mark(self) -> list[Any]:
        items = self.stack
        self.stack = self.marks.pop()
        return items

    def _drop(self, _: Any) -> None:
        self._pop_mark()

    def _mark(self, _: Any) -> None:
        self.marks.append(self.stack)
        self.stack = []

    def _dict(self, _: Any) -> None:
        items = self._pop_mark()
        value: dict[Any, Any] = {}
        self.fill(value, items)
        self.stack.append(value)

    def _tuple(self, _: Any) -> None:
        items = self._pop_mark()
        self.stack.append(tuple(items))

    def _list(self, _: Any) -> None:
        items = self._pop_mark()
        self.stack.append(items)

    def _take(self, count: int) -> None:
        items = self.stack[-count:]
        if len(items) < count:
            raise UnpicklingError("its stack is empty")
        del self.stack[-count:]
        self.stack.append(tuple(items))

    def _pop(self, _: Any) -> None:
        self.stack.pop() if self.stack else self._pop_mark()

    def _put(self, index: int) -> None:
        self.memo[index] = self.stack[-1]

    def _get(self, index: int) -> None:
        self.stack.append(self.memo[index])

    def _integer(self, value: int) -> Any:
        if value.bit_length() <= MAX_INTEGER:
            return value
        self.plain = False
        return Inert("builtins.int")

    def _persistent(self, name: Any) -> None:
        if self.stored is None:
            raise UnpicklingError("it refers to values outside of it")
        self.stack.append(self.stored(name))


def _is_light(key: Any) -> bool:
    """Whether it is short text, or an integer that is its own hash: nobody can choose many of one hash."""
    return len(key) <= CROWD if type(key) is str else type(key) is int and -PRIME < key < PRIME


def _constant(value: Any) -> Callable[[Reader, Any], None]:
    return lambda reader, _: reader.stack.append(value)


CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": ()}
_STEPS: dict[str, Callable[[Reader, Any], None]] = {
    **dict.fromkeys(("PROTO", "FRAME"), lambda reader, _: None),
    **{name: _constant(value) for name, value in CONSTANTS.items()},
    "EMPTY_LIST": lambda reader, _: reader.stack.append([]),
    "EMPTY_DICT": lambda reader, _: reader.stack.append({}),
    "EMPTY_SET": Reader._empty_set,
    "MARK": Reader._mark,
    "TUPLE": Reader._tuple,
    "TUPLE1": lambda reader, _: reader._take(1),
    "TUPLE2": lambda reader, _: reader._take(2),
    "TUPLE3": lambda reader, _: reader._take(3),
    "LIST": Reader._list,
    "DICT": Reader._dict,
    "APPEND": Reader._append,
    "APPENDS": Reader._appends,
    "SETITEM": Reader._setitem,
    "SETITEMS": Reader._setitems,
    "ADDITEMS": Reader._additems,
    "FROZENSET": Reader._frozenset,
    "POP": Reader._pop,
    "POP_MARK": Reader._drop,
    "DUP": lambda reader, _: reader.stack.append(reader.stack[-1]),
    "GLOBAL": Reader._global,
    "STACK_GLOBAL": Reader._stack_global,
    **dict.fromkeys(("EXT1", "EXT2", "EXT4"), Reader._extension),
    **dict.fromkeys(("REDUCE", "NEWOBJ"), Reader._reduce),
    "NEWOBJ_EX": Reader._newobj_ex,
    "INST": Reader._inst,
    "OBJ": Reader._obj,
    "BUILD": Reader._build,
    "PERSID": Reader._persistent,
    "BINPERSID": lambda reader, _: reader._persistent(reader.stack.pop()),
    **dict.fromkeys(("PUT", "BINPUT", "LONG_BINPUT"), Reader._put),
    "MEMOIZE": lambda reader, _: reader._put(len(reader.memo)),
    **dict.fromkeys(("GET", "BINGET", "LONG_BINGET"), Reader._get),
}
