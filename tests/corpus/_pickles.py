"""Pickles made by hand, opcode by opcode: what they hold beside a tensor would run, hang or fill memory.

Each table is {name: (opcodes, "read" or "refused")}: opcodes that leave one value on the stack, which `put`
places beside weights in a file of each format, and whether the weights can be read all the same.
"""

from __future__ import annotations

import pickle
import struct
import zipfile
from collections.abc import Iterator
from pathlib import Path

import torch

RAN = "ran"  # what is there if anything was run
NUMBERS = struct.pack("<4f", 1.0, 2.0, 3.0, 4.0)
WEIGHTS = {"w": torch.tensor([1.0, 2.0, 3.0, 4.0])}
PRIME = 2**61 - 1  # integers that differ by it have one hash


def text(value: str) -> bytes:
    data = value.encode("utf-8", "surrogatepass")
    return b"X" + struct.pack("<I", len(data)) + data


def number(value: int) -> bytes:
    if -(2**31) <= value < 2**31:
        return b"J" + struct.pack("<i", value)
    data = pickle.encode_long(value)
    return (
        b"\x8a" + bytes([len(data)]) + data
        if len(data) < 256
        else b"\x8b" + struct.pack("<I", len(data)) + data
    )


def named(module: str, name: str) -> bytes:
    return f"c{module}\n{name}\n".encode()


def by_stack(module: str, name: str) -> bytes:
    return text(module) + text(name) + b"\x93"


def group(*values: bytes) -> bytes:
    return b"(" + b"".join(values) + b"t"


def array(*values: bytes) -> bytes:
    return b"](" + b"".join(values) + b"e"


def mapping(*items: bytes) -> bytes:
    return b"}(" + b"".join(items) + b"u"


def call(function: bytes, *args: bytes) -> bytes:
    return function + group(*args) + b"R"


def storage(
    kind: bytes = named("torch", "FloatStorage"), key: bytes = text("0"), count: bytes = number(4)
) -> bytes:
    return b"".join([text("storage"), kind, key, text("cpu"), count])


def stored(inner: bytes | None = None) -> bytes:
    """A reference to a storage; `old` adds what the old format has at its end."""
    return b"(" + (storage() if inner is None else inner) + b"<VIEW>tQ"


REBUILD = named("torch._utils", "_rebuild_tensor_v2")
HOOKS = call(named("collections", "OrderedDict"))


def tensor(
    values: bytes | None = None,
    offset: bytes = number(0),
    size: bytes = group(number(4)),
    stride: bytes = group(number(1)),
    hooks: bytes = HOOKS,
    *more: bytes,
) -> bytes:
    return call(REBUILD, stored() if values is None else values, offset, size, stride, b"\x89", hooks, *more)


def put(path: Path, opcodes: bytes, form: str = "zip") -> Path:
    """A file with a dictionary of {"model": {"w": a tensor}, "x": the value of the opcodes}."""
    whole = b"\x80\x04" + mapping(text("x"), opcodes, text("model"), mapping(text("w"), tensor())) + b"."
    return holding(path, whole, form)


def holding(path: Path, whole: bytes, form: str = "zip") -> Path:
    if form == "zip":
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("archive/data.pkl", whole.replace(b"<VIEW>", b""))
            archive.writestr("archive/byteorder", b"little")
            archive.writestr("archive/data/0", NUMBERS)
    else:
        first = [pickle.dumps(value, protocol=2) for value in (torch.serialization.MAGIC_NUMBER, 1001, {})]
        keys = pickle.dumps(["0"], protocol=2)
        path.write_bytes(
            b"".join([*first, whole.replace(b"<VIEW>", b"N"), keys, struct.pack("<q", 4), NUMBERS])
        )
    return path


TOUCH, OPEN = text(f"touch {RAN}"), text(f"open({RAN!r}, 'w').close()")
CALLED = {  # what would leave a trace if it were called
    "os.system": TOUCH,
    "posix.system": TOUCH,
    "nt.system": TOUCH,
    "subprocess.getoutput": TOUCH,
    "subprocess.Popen": array(text("touch"), text(RAN)),
    "os.mkdir": text(RAN),
    "os.popen": TOUCH,
    "pty.spawn": array(text("touch"), text(RAN)),
    "builtins.eval": OPEN,
    "builtins.exec": OPEN,
    "builtins.compile": OPEN,
    "__builtin__.eval": OPEN,
    "builtins.__import__": text("antigravity"),
    "builtins.open": text(RAN),
    "builtins.getattr": named("os", "system"),
    "io.open": text(RAN),
    "_io.FileIO": text(RAN),
    "pathlib.Path.touch": text(RAN),
    "importlib.import_module": text("antigravity"),
    "runpy.run_path": text(RAN),
    "pickle.loads": call(named("_codecs", "encode"), text("cos\nsystem\n(S'touch ran'\ntR."), text("latin1")),
    "torch.load": text(RAN),
    "torch.hub.load": text(RAN),
    "torch.serialization.load": text(RAN),
    "torch.utils.collect_env.run": TOUCH,
    "torch.utils.cpp_extension.load": text(RAN),
    "torch.storage.UntypedStorage.from_file": text(RAN),
    "numpy.load": text(RAN),
    "numpy.testing._private.utils.runstring": OPEN,
    "timeit.timeit": OPEN,
    "code.interact": b"N",
    "webbrowser.open": text("http://localhost"),
    "tests.corpus._pickles.ran": b"N",
    "rebasin_cli.checkpoints.disk.remove": text("."),
}


def ran(*_: object) -> None:
    Path(RAN).touch()


def ways(module: str, name: str, argument: bytes) -> Iterator[tuple[str, bytes]]:
    """All ways in which a pickle can have a global called, and places where a reader might."""
    function, inside = named(module, name), module + "." + name
    yield "reduce", call(function, argument)
    yield "by the stack", call(by_stack(module, name), argument)
    yield "a dotted name", call(by_stack("torch", inside), argument)
    yield "newobj", function + group(argument) + b"\x81"
    yield "newobj_ex", function + group(argument) + mapping(text("a"), argument) + b"\x92"
    yield "inst", b"(" + argument + f"i{module}\n{name}\n".encode()
    yield "obj", b"(" + function + argument + b"o"
    yield "build", call(function, argument) + mapping(text("__class__"), function) + b"b"
    yield "setstate", call(named("torch", "Size"), group()) + mapping(text("__setstate__"), function) + b"b"
    yield "a factory", call(named("collections", "defaultdict"), function)
    yield "hooks", tensor(None, number(0), group(number(4)), group(number(1)), call(function, argument))
    yield (
        "state",
        call(
            named("torch._utils", "_rebuild_parameter_with_state"),
            tensor(),
            b"\x88",
            HOOKS,
            call(function, argument),
        ),
    )
    yield (
        "a tensor's function",
        call(
            named("torch._tensor", "_rebuild_from_type_v2"),
            function,
            named("torch", "Tensor"),
            group(argument),
            b"N",
        ),
    )
    yield "twice", call(call(function, argument), argument)
    yield "items", call(function, argument) + b"(" + function + argument + b"u"
    yield "appended", call(function, argument) + b"(" + argument + b"e"
    yield "added", call(function, argument) + b"(" + argument + b"\x90"


def calls() -> dict[str, tuple[bytes, str]]:
    """Every global of CALLED in every way: all are read, and none is run."""
    return {
        f"{full}: {way}": (opcodes, "read")
        for full, argument in CALLED.items()
        for way, opcodes in ways(*full.rsplit(".", 1), argument)
    }


def bombs(size: int) -> dict[str, tuple[bytes, str]]:
    """What grows, nests or collides beyond reason; `size` is the number of objects."""
    few = size // 8
    thing, encode = named("a", "b"), named("_codecs", "encode")
    doubled = b")" + b"2\x86" * 60
    integers = [number(PRIME * k) for k in range(1, few)]
    pairs = [group(number(a), number(b)) for a, b in pairs_of_one_hash(few)]
    long = text("a" * 1_000_000)
    data = call(encode, long, text("latin1"))
    float32 = call(named("numpy", "dtype"), text("f4"), b"\x89", b"\x88")
    float32 += group(number(3), text("<"), b"NNN", number(-1), number(-1), number(0)) + b"b"
    values = b"h\1" + group(number(1), group(number(250_000)), b"h\2", b"\x89", b"h\3") + b"b"
    values = call(named("numpy.core.multiarray", "_reconstruct"), b"N") + values[2:]

    def again(what: bytes, function: bytes, count: int) -> bytes:
        """A function called on one thing again and again."""
        return array(what + b"q\1", function + b"q\2", *[b"h\2h\1\x85R"] * count)

    return {
        "a deep tuple": (b")" + b"\x85" * size, "read"),
        "a deep list": (b"]" * size + b"a" * (size - 1), "read"),
        "a deep dictionary": (b"}N" * (size - 1) + b"}" + b"s" * (size - 1), "read"),
        "calls of calls": (thing + b")R" * size, "read"),
        "states of states": (array((thing + b")R") * size + b"b" * (size - 1)), "read"),
        "a deep tuple as a key": (mapping(b")" + b"\x85" * size, b"N"), "refused"),
        "a doubled list": (b"]" + b"q\1]q\2(h\1h\1e00h\2" * few, "read"),
        "a doubled tuple": (b")" + b"2\x86" * few, "read"),
        "a doubled tuple of objects": (call(thing) + b"q\1" + b"2h\1\x87" * 60, "read"),
        "a doubled tuple as a key": (mapping(doubled, b"N"), "refused"),
        "a doubled tuple in a set": (b"\x8f(" + doubled + b"\x90", "refused"),
        "a doubled tuple in a frozenset": (b"(" + doubled + b"\x91", "refused"),
        "a doubled tuple as an item": (call(thing) + b"(" + doubled + b"Nu", "refused"),
        "a key of many parts": (mapping(group(*[b"K\1"] * 2000), b"N"), "refused"),
        "integers of one hash": (mapping(*[one + b"N" for one in integers]), "refused"),
        "integers of one hash in an object": (
            call(thing) + b"(" + b"".join(one + b"N" for one in integers) + b"u",
            "refused",
        ),
        "integers of one hash in a set": (b"\x8f(" + b"".join(integers) + b"\x90", "refused"),
        "integers of one hash in a list for a set": (
            call(named("builtins", "set"), array(*integers)),
            "refused",
        ),
        "pairs of one hash": (mapping(*[one + b"N" for one in pairs]), "refused"),
        "pairs of one hash, one by one": (b"}" + b"".join(one + b"Ns" for one in pairs), "refused"),
        "pairs of one hash to be counted": (
            call(named("collections", "Counter"), array(*[group(one, b"N") for one in pairs])),
            "refused",
        ),
        "many marks": (b"(" * size + b"N", "refused"),
        "many empty sets": (array(*[b"\x8f"] * 1_000_000), "refused"),
        "many empty dictionaries": (array(*[b"}"] * size), "read"),
        "many objects": (array(thing + b"q\1)R", *[b"h\1)R"] * few), "read"),
        "many classes": (array(*[named("m", f"c{k}") for k in range(few)]), "read"),
        "a list in itself, often": (b"]q\1" + b"h\1a" * size, "read"),
        "bytes again and again": (
            array(long + b"q\1", encode + b"q\2", *[b"h\2h\1\x85R"] * 200),
            "refused",
        ),
        "a long key again and again": (b"}" + long + b"Ns" + long + b"q\1Ns" + b"h\1Ns" * 500, "refused"),
        "a queue again and again": (
            again(array(*[b"N"] * 20_000), named("collections", "deque"), 2_000),
            "refused",
        ),
        "pairs again and again": (
            again(array(*[group(b"N", b"N")] * 20_000), named("collections", "OrderedDict"), 200),
            "refused",
        ),
        "a set again and again": (
            again(array(*[number(k) for k in range(20_000)]), named("builtins", "set"), 200),
            "refused",
        ),
        "a tensor again and again": (
            array(
                REBUILD + b"q\1",
                group(stored(), number(0), group(number(4)), group(number(1)), b"\x89", HOOKS) + b"q\2",
                *[b"h\1h\2R"] * 500_000,
            ),
            "refused",
        ),
        "an array again and again": (
            array(b"N", float32 + b"q\2", data + b"q\3")
            + b"0"
            + mapping(*[text(str(k)) + values for k in range(200)]),
            "refused",
        ),
        "a tensor below many objects": (
            (thing + b")R}" + text("a")) * few + tensor() + b"sb" * few,
            "refused",  # a part of the model as far down as this is none
        ),
        "networks that share their parts": (_network(60), "refused"),
        "networks that share their parts, without weights": (_network(60, weights=False), "refused"),
    }


def _network(levels: int, weights: bool = True) -> bytes:
    """Each holds the one before twice: 2 ** levels names of one state dict, or networks without weights."""

    def one(parts: bytes, parameters: bytes = b"}") -> bytes:
        items = [text("_parameters"), parameters, text("_buffers"), b"}", text("_modules"), parts]
        return call(named("net", "Net")) + mapping(*items) + b"b"

    made = one(b"}", mapping(text("w"), tensor()) if weights else b"}") + b"q\1"
    for _ in range(levels):
        made += b"0" + one(mapping(text("a"), b"h\1", text("b"), b"h\1")) + b"q\1"
    if not weights:
        made += b"0" + one(mapping(text("a"), b"h\1"), mapping(text("w"), tensor()))
    return made


def pairs_of_one_hash(count: int) -> Iterator[tuple[int, int]]:
    """For each first integer the second one that undoes it in CPython's hash of a tuple (xxHash)."""
    word, first_prime, second_prime, start = (
        2**64,
        11400714785074694791,
        14029467366897019727,
        2870177450012600261,
    )
    inverse = pow(second_prime, -1, word)
    found, first = 0, 0
    while found < count:
        first += 1
        state = (start + first * second_prime) % word
        state = ((state << 31) | (state >> 33)) % word * first_prime % word
        second = -state * inverse % word
        if second < PRIME:
            found += 1
            yield first, second


def broken() -> dict[str, tuple[bytes, str]]:
    """What cannot be true: of opcodes, of storages and of tensors; and what is odd, but harmless."""
    thing, long = named("a", "b"), struct.pack("<Q", 1 << 60)
    nested = b"\x80\x02" + mapping(text("w"), b"N") + b"."
    sizes = {
        "beyond its storage": (number(0), group(number(5)), group(number(1))),
        "far beyond its storage": (number(0), group(number(1 << 40)), group(number(1))),
        "at an offset beyond": (number(4), group(number(1)), group(number(1))),
        "at an offset of 2^63": (number(1 << 63), group(number(1)), group(number(1))),
        "at an offset of 2^63, empty": (number(1 << 63), group(number(0)), group(number(1))),
        "at a negative offset": (number(-1), group(number(1)), group(number(1))),
        "of negative size": (number(0), group(number(-4)), group(number(1))),
        "of negative stride": (number(3), group(number(4)), group(number(-1))),
        "of a stride beyond": (number(0), group(number(2)), group(number(4))),
        "of a stride of 2^63": (number(0), group(number(1)), group(number(1 << 63))),
        "of 2^62 times 2^62": (
            number(0),
            group(number(1 << 62), number(1 << 62)),
            group(number(0), number(0)),
        ),
        "of nothing times 2^63": (number(0), group(number(0), number(1 << 63)), group(number(1), number(1))),
        "of 65 axes": (number(0), group(*[number(1)] * 65), group(*[number(1)] * 65)),
        "of 20,000 axes": (number(0), group(*[b"K\1"] * 20_000), group(number(1))),
        "of text": (number(0), text("4"), group(number(1))),
        "of fractions": (number(0), group(b"G" + struct.pack(">d", 4.0)), group(number(1))),
        "of true": (number(0), group(b"\x88"), group(number(1))),
        "of objects": (number(0), call(thing), group(number(1))),
        "of two sizes and a stride": (number(0), group(number(2), number(2)), group(number(1))),
        "at an offset that is an object": (call(thing), group(number(4)), group(number(1))),
    }
    storages = {
        "of an unknown kind": storage(thing),
        "of a kind that is a dtype": storage(named("torch", "float32")),
        "of a kind that is an object": storage(call(thing)),
        "of text": storage(text("FloatStorage")),
        "elsewhere": storage(key=text("../data.pkl")),
        "at an absolute path": storage(key=text("/etc/passwd")),
        "of no name": storage(key=text("")),
        "of the name 1": storage(key=number(1)),
        "of the name of an object": storage(key=call(thing)),
        "of a false name": storage(key=text("9" * 5000)),
        "of half a surrogate": storage(key=text("\ud800")),
        "larger than it is": storage(count=number(5)),
        "of 2^62 values": storage(count=number(1 << 62)),
        "of 2^70 values": storage(count=number(1 << 70)),
        "of fewer than none": storage(count=number(-1)),
        "of true values": storage(count=b"\x88"),
        "of a count that is an object": storage(count=call(thing)),
        "of another word": storage().replace(b"storage", b"storeys"),
        "of nothing": b"",
        "with more": storage() + b"NN",
    }
    made = {f"a tensor {name}": (tensor(None, *parts), "refused") for name, parts in sizes.items()}
    made |= {f"a storage {name}": (tensor(stored(inner)), "refused") for name, inner in storages.items()}
    odd = {
        "a reference to text": text("0") + b"Q",
        "a reference to a number": number(0) + b"Q",
        "a reference to nothing": b"NQ",
        "a reference to an object": call(thing) + b"Q",
        "a reference in text": b"P0\n",
        "a tensor of no storage": tensor(b"N"),
        "a tensor of a tensor": tensor(tensor()),
        "a tensor of an object": tensor(call(thing)),
        "a tensor without arguments": call(REBUILD),
        "a tensor with too many": call(REBUILD, *[b"N"] * 20),
        "a call of what is no tuple": REBUILD + b"NR",
        "a call of a list": REBUILD + b"]R",
        "an empty stack": b"0" * 5,
        "an empty stack below a mark": b"(0000N",
        "pairs without a mark": b"Nu",
        "items of a number": b"K\1(NNu",
        "items of a tensor": tensor() + b"(NNu",
        "items of a function": thing + b"(NNu",
        "an odd number of items": b"}(N" + b"u",
        "appending to a dictionary": b"}Na",
        "appending to a tensor": tensor() + b"Na",
        "adding to a list": b"](N\x90",
        "a list as a key": mapping(b"]", b"N"),
        "a dictionary in a set": b"\x8f(}\x90",
        "a memo that is empty": b"h\7",
        "a memo of 2^32": b"j\xff\xff\xff\xff",
        "a negative memo": b"p-1\ng-2\n",
        "an opcode that is none": b"\xff",
        "a buffer from outside": b"\x97",
        "a buffer to be read only": b"N\x98",
        "a string of 2^60": b"\x8d" + long + b"a",
        "bytes of 2^60": b"\x8e" + long + b"a",
        "an array of 2^60": b"\x96" + long + b"a",
        "a string of 2^32": b"X\xff\xff\xff\xff",
        "an integer of 2^31 bytes": b"\x8b\xff\xff\xff\x7f",
        "an integer of negative length": b"\x8b\xff\xff\xff\xff",
        "an integer of many digits": b"L" + b"9" * 100_000 + b"L\n",
        "an integer of letters": b"Iabc\n",
        "a float of letters": b"Fabc\n",
        "a string without quotes": b"Sabc\n",
        "a global of one line": b"cos",
        "a global of numbers": b"K\1K\2\x93",
        "a global of bytes": b"C\1aC\1b\x93",
        "a global of objects": call(thing) + call(thing) + b"\x93",
        "a set of a number": call(named("builtins", "set"), number(5)),
        "pairs of a number": call(named("collections", "OrderedDict"), number(5)),
        "pairs of three": call(named("collections", "OrderedDict"), array(group(b"N", b"N", b"N"))),
        "a complex object": call(named("builtins", "complex"), call(thing), b"N"),
        "values that are text": call(named("torch.storage", "_load_from_bytes"), text("a")),
        "values that are no storage": call(
            named("torch.storage", "_load_from_bytes"),
            call(named("_codecs", "encode"), text(nested.decode("latin1")), text("latin1")),
        ),
        "a tensor without values, of text": call(
            named("torch._utils", "_rebuild_meta_tensor_no_storage"), text("a"), group(), group(), b"\x89"
        ),
        "no end": b"N" * 5 + b"(",
    }
    made |= {name: (opcodes, "refused") for name, opcodes in odd.items()}
    harmless = {
        "a frame of 2^60": b"\x95" + long + b"N",
        "a protocol of 255": b"\x80\xffN",
        "an extension": b"\x82\1",
        "extensions of all sizes": array(b"\x82\xff", b"\x83\xff\xff", b"\x84\xff\xff\xff\x7f"),
        "half a surrogate": text("\ud800"),
        "a class of half a surrogate": call(by_stack("\ud800", "\udc00")),
        "a class of an escape": call(by_stack("\x1b]52;c;eA==\x07", "\n::error::x")),
        "a class of a megabyte": call(by_stack("m" * 1_000_000, "c")),
        "a class of no name": call(by_stack("", "")),
        "an integer of 10,000 bytes": number(1 << 79_999),
        "bytes of a size": call(named("builtins", "bytearray"), number(1 << 40)),
        "an encoding of its own": call(named("_codecs", "encode"), text("a"), text("idna")),
        "a list in itself": b"]q\1h\1a",
        "a dictionary in itself": b"}q\1Nh\1s",
        "a tuple in its list": b"](q\1K\1tq\2a" if False else b"]q\1h\1\x85a",
        "an object in itself": call(thing) + b"q\1h\1b",
        "an object among its items": call(thing) + b"q\1(h\1h\1u",
        "an object as a key": mapping(call(thing), b"N"),
        "a class as a key": mapping(thing, b"N"),
        "a tensor as a key": mapping(tensor(), b"N"),
        "a set of objects": b"\x8f(" + call(thing) + thing + b"\x90",
        "NaN as keys": mapping(*[b"G" + struct.pack(">d", float("nan")) + b"N"] * 600),
        "attributes of a tensor": tensor() + mapping(text("data"), b"N", text("__class__"), thing) + b"b",
        "attributes of a class": named("torch", "Tensor") + mapping(text("__init__"), thing) + b"b",
        "attributes of a dtype": named("torch", "float32") + mapping(text("itemsize"), number(1)) + b"b",
        "attributes of a dictionary": HOOKS + mapping(text("items"), thing, text("__class__"), thing) + b"b",
        "slots of a dictionary": HOOKS + group(b"N", mapping(text("__class__"), thing)) + b"b",
        "a state of a function": REBUILD + mapping(text("__defaults__"), group(b"N")) + b"b",
        "a device of its own": call(named("torch", "device"), text("privateuseone")),
        "a tensor of a class": call(
            named("torch._tensor", "_rebuild_from_type_v2"),
            REBUILD,
            thing,
            group(stored(), number(0), group(number(4)), group(number(1)), b"\x89", HOOKS),
            b"N",
        ),
        "a module of old": group(text("module"), thing, text("/etc/passwd"), text("source")) + b"Q",
        "an array that is too short": call(named("numpy.core.multiarray", "_reconstruct"), b"N")
        + group(number(1), group(number(1 << 40)), call(named("numpy", "dtype"), text("f4")), b"\x89", b"C\0")
        + b"b",
        "an array of objects": call(named("numpy.core.multiarray", "_reconstruct"), b"N")
        + group(number(1), group(number(1)), call(named("numpy", "dtype"), text("O8")), b"\x89", array(thing))
        + b"b",
        "a number of objects": call(
            named("numpy.core.multiarray", "scalar"), call(named("numpy", "dtype"), text("O8")), thing
        ),
    }
    made |= {name: (opcodes, "read") for name, opcodes in harmless.items()}
    return made
