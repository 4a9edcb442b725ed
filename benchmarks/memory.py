"""Peak memory of `rebasin align` above a process that has imported the same packages.

    python benchmarks/memory.py [NET …]        # of `rebasin align`
    python benchmarks/memory.py --many         # of `rebasin merge --method ste-mm`, against its plan
    python benchmarks/memory.py --commands [--bounds] [NAME …]    # of commands, against plans; within bounds
    python benchmarks/memory.py --bounded 1GB --tables 40    # of `align` within a bound, and without one
    python benchmarks/memory.py --plans 4GB    # what `align` would take of two models of 7 billion parameters

The bound: both checkpoints, the largest similarity matrix in float64, and 150 MB; without the proof, which
has its own (a float64 copy of the network). B is A with its units permuted, so the search does all its
work and ends soon. Prints the ratio of what was used to the bound; Linux only.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterator
from pathlib import Path

import llama
import torch
from _rows import as_command

from rebasin_cli import nets
from rebasin_cli.checkpoints import digests
from rebasin_cli.checkpoints.safetensors_format import encode_header
from rebasin_cli.checkpoints.tensors import LazyTensors
from rebasin_cli.checkpoints.writer import write_safetensors
from rebasin_cli.commands import align
from rebasin_cli.commands.verbs import needs
from rebasin_cli.matchers import ste_mm
from rebasin_cli.runtime.seeds import generator
from rebasin_cli.spec import library
from rebasin_cli.spec.fits import fit
from rebasin_cli.spec.parser import parse
from rebasin_cli.symmetry import permutation, stored

ALLOWANCE = 150e6
NETS = {"mlp": (1, 28, 28), "resnet50": (3, 224, 224), "vgg16": (3, 224, 224)}
PEAK = "print(open('/proc/self/status').read().partition('VmHWM:')[2].split()[0])"  # kB


def peak(code: str) -> int:
    """Peak resident bytes of a new process that runs `code`; what `ru_maxrss` says includes its parent's."""
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\n{PEAK}"], capture_output=True, text=True, check=True
    )
    return int(done.stdout.split()[-1]) * 1024


def pair(folder: Path, name: str) -> tuple[Path, Path, int]:
    """Two checkpoints of a net, and the number of units in its largest permutation."""
    torch.manual_seed(0)
    tensors = nets.build(name, input_shape=NETS[name], classes=1000).state_dict()
    fitted = library.find({key: tuple(tensor.shape) for key, tensor in tensors.items()})
    planted = permutation.random(fitted.words, generator(1, "benchmark"))
    a, b = folder / f"{name}_a.safetensors", folder / f"{name}_b.safetensors"
    write_safetensors(a, tensors)
    write_safetensors(b, permutation.permuted(tensors, fitted, planted))
    return a, b, max(fitted.words.values())


def main(names: list[str]) -> None:
    imported = peak("import rebasin_cli.commands.align, rebasin_cli.cli.align, rebasin_cli.matchers.wm")
    print(f"a process with the same packages: {imported / 1e6:.0f} MB")
    print(f"{'net':<10} {'checkpoints':>12} {'similarity':>11} {'bound':>9} {'used':>9}  used/bound")
    for name in names or NETS:
        with tempfile.TemporaryDirectory() as folder:
            a, b, units = pair(Path(folder), name)
            arguments = ["align", str(a), str(b), "-o", f"{folder}/out.safetensors", "--no-prove", "-q"]
            used = peak(as_command(arguments)) - imported
            both = a.stat().st_size + b.stat().st_size
            bound = both + 8 * units**2 + ALLOWANCE
            row = (both, 8 * units**2, bound, used)
            print(
                f"{name:<10} " + " ".join(f"{size / 1e6:>9.0f} MB" for size in row) + f"  {used / bound:.2f}"
            )


def many() -> None:
    """What ste-mm uses beyond the same with two small models, against the parts that its plan names."""
    print(f"{'models':<10} {'planned':>12} {'used':>9}  used/planned")
    with tempfile.TemporaryDirectory() as folder:
        small = used_by(Path(folder), 2, width=16)
        for count in (2, 5, 10):
            used = used_by(Path(folder), count, width=MANY) - small
            row = 4 * sum(p.numel() for p in _mlp(MANY).parameters())
            planned = (
                sum(ste_mm.memory(count, row // 4, ste_mm.Options()).values()) + count * row
            )  # the files
            print(f"{count:<10} {planned / 1e6:>9.0f} MB {used / 1e6:>6.0f} MB  {used / planned:.2f}")


def tall(folder: Path, tables: int, rows: int = 73_728, width: int = 256) -> list[str]:
    """Two models of `tables` tall tables in bfloat16 and one wide layer, their spec; B's units permuted."""
    random = generator(0, "tall")
    shapes = {f"tables.{k}": (rows, width) for k in range(tables)} | {
        "up": (1024, width),
        "down": (width, 1024),
    }
    first = torch.randn(rows, width, generator=random).bfloat16()
    plain = {
        "up": torch.randn(1024, width, generator=random),
        "down": torch.randn(width, 1024, generator=random),
    }

    def made(name: str) -> torch.Tensor:
        """Of the tables each is the first one, its rows moved on."""
        return plain[name].bfloat16() if name in plain else first.roll(int(name[7:]) * 997, 0)

    spec = folder / "tall.yaml"
    spec.write_text('tensors:\n  tables.{i}: ". r"\n  up: "h r"\n  down: "r h"\n')
    a = LazyTensors(shapes, dict.fromkeys(shapes, torch.bfloat16), made)
    fitted = fit(parse(spec.read_text(), name="tall"), shapes)
    planted = permutation.random(fitted.words, generator(1, "tall"))
    files = [folder / "a.safetensors", folder / "b.safetensors"]
    write_safetensors(files[0], a, force=True)
    write_safetensors(files[1], permutation.permuted(a, fitted, planted), force=True)
    return [*map(str, files), "--spec", str(spec)]


TOLD = """
from rebasin_cli.commands.verbs import needs
refuse = needs.refuse
def told(session, whole, *more):
    print("planned", whole.within(session.most).memory, whole.least)
    refuse(session, whole, *more)
needs.refuse = told
"""


def ran(arguments: list[str]) -> tuple[int, int, int, float]:
    """Bytes that a command's plan says, says at least, and at the peak; processor seconds: of a process."""
    code = f"{TOLD}\n{as_command(arguments)}\nimport time; print(time.process_time())\n{PEAK}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    if done.returncode or "planned " not in done.stdout + done.stderr:
        raise SystemExit(f"{arguments}: {done.stderr}")
    told = [*done.stdout.splitlines(), *done.stderr.splitlines()]
    plans = [line.split()[1:] for line in told if line.startswith("planned ")]
    plan, least = (max(map(int, sizes)) for sizes in zip(*plans, strict=True))
    *_, seconds, kilobytes = done.stdout.split()
    return plan, least, int(kilobytes) * 1024, float(seconds)


def bounded(bound: str, tables: int) -> None:
    """`align` within a bound and without one: peak memory beside the plan's, seconds, and whether alike."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        models, outputs = tall(folder, tables), []
        print(f"2 × {Path(models[0]).stat().st_size / 1e9:.2f} GB")
        for most in (bound, None):
            out = folder / f"{most}.safetensors"
            row(
                most or "no bound",
                ["align", *models, "-o", str(out), *(["--max-memory", most] if most else [])],
            )
            outputs.append([digests.of_file(path) for path in (out, stored.beside(out))])
        print("byte-equal" if outputs[0] == outputs[1] else "NOT EQUAL")


def row(name: str, arguments: list[str]) -> tuple[int, int]:
    """A line of a table: what was planned, what was used, and the seconds; what is planned, and at least."""
    plan, least, used, seconds = ran(arguments)
    sizes = f"planned {plan / 1e6:>6.0f} MB, used {used / 1e6:>6.0f} MB, {used / plan:.2f} of it"
    print(f"{name:<14} {sizes}, {seconds:>5.0f} processor seconds", flush=True)
    return plan, least


def within(name: str, arguments: list[str]) -> None:
    """A command without a bound, within the least that it takes, a third more of the rest, and all of it."""
    plan, least = row(name, arguments)
    for most in dict.fromkeys((least, (2 * least + plan) // 3, plan)):
        row(f"  {needs.sized(most)}", [*arguments, "--max-memory", needs.sized(most)])


def lines(folder: Path, layers: int, tables: int) -> Iterator[tuple[str, list[str]]]:
    """Commands by name: on transformers of Llama's shapes, models of tall tables, and wide MLPs."""
    (apart := folder / "tables").mkdir()
    (a, b, spec), out = (str(path) for path in llama.pair(folder, layers)), ["--force", "-o"]
    for name, pair in (("", [a, b, "--spec", spec]), (" tables", tall(apart, tables))):
        one, other, *of_spec = pair
        aligned = folder / f"aligned{name.strip()}.safetensors"
        yield f"align{name}", ["align", *pair, *out, str(aligned)]
        perm, written = str(stored.beside(aligned)), str(folder / "written.safetensors")
        yield f"apply{name}", ["apply", perm, other, *of_spec, *out, written]
        yield f"average{name}", ["average", one, other, *out, written]
        yield f"merge{name}", ["merge", *pair, *out, written]
        yield f"verify{name}", ["verify", other, str(aligned), *of_spec]
        yield f"verify no{name}", ["verify", *pair]
        yield f"doctor{name}", ["doctor", *pair]
        written = str(folder / "written.pt")
        yield f"apply .pt{name}", ["apply", perm, other, *of_spec, *out, written]
    mlps = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        mlps.append(str(folder / f"mlp{seed}.safetensors"))
        write_safetensors(Path(mlps[-1]), _mlp(WIDE).state_dict())
    written, data = str(folder / "written.safetensors"), ["--data", "digits", "--limit", "200"]
    yield "canon mlp", ["canon", mlps[0], *out, written]
    yield "align mlp", ["align", *mlps, *out, written]
    yield "merge mlp", ["merge", *mlps, *out, written]
    yield "doctor mlp", ["doctor", *mlps, *data]
    yield "signature mlp", ["signature", *mlps, *data]
    yield "barrier mlp", ["barrier", *mlps, *data, "--points", "3"]


def commands(layers: int, tables: int, only: Collection[str], *, bounds: bool) -> None:
    """Commands each beside what its plan says, within `bounds`, too."""
    with tempfile.TemporaryDirectory() as temporary:
        for name, arguments in lines(Path(temporary), layers, tables):
            if not only or name in only:
                (within if bounds else row)(name, arguments)


SEVEN = {"layers": 32, "width": 4096, "feed": 11008, "keys": 4096, "queries": 4096}  # Llama's, 7 billion


def plans(bound: str) -> None:
    """The plan of `align` within a bound and without one, of files of Llama's shapes that hold no values."""
    plan = {name: (torch.bfloat16, shape) for name, shape in llama.shapes(**SEVEN).items()}
    header, _ = encode_header(plan, {"format": "pt"})
    numbers = sum(torch.Size(shape).numel() for _, shape in plan.values())
    needs.refuse = lambda *arguments: None  # whatever this machine has
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        (folder / "llama.yaml").write_text(llama.SPEC.replace("64", "128"))
        files = [folder / "a.safetensors", folder / "b.safetensors"]
        for path in files:
            with path.open("wb") as file:  # no block of the disk is taken
                file.write(header)
                file.truncate(len(header) + 2 * numbers)
        print(f"2 × {numbers / 1e9:.2f} billion parameters, 2 × {files[0].stat().st_size / 1e9:.2f} GB")
        for most in (None, bound):
            how = {"spec": str(folder / "llama.yaml"), "dry_run": True, "max_memory": most}
            asked = align.Align(reference=files[0], model=files[1], **how)
            told = align.run(asked).facts
            figures = {"at most": told["peak_bytes"], "files": told["search_parts"]["files"]}
            figures["read again a sweep"] = told.get("read_again_bytes", 0)
            line = ", ".join(f"{key} {size / 1e9:.3g} GB" for key, size in figures.items())
            print(f"{most or 'no bound':<10} {line}")


MANY, WIDE = 1536, 3072  # units a layer


def _mlp(width: int) -> torch.nn.Module:
    return nets.build("mlp", input_shape=(1, 8, 8), classes=10, width=width)


def used_by(folder: Path, count: int, width: int) -> int:
    """Peak bytes of merging so many random models by ste-mm, two steps on the digits."""
    paths = []
    for seed in range(count):
        torch.manual_seed(seed)
        paths.append(folder / f"{width}_{seed}.safetensors")
        if not paths[-1].exists():
            write_safetensors(paths[-1], _mlp(width).state_dict())
    arguments = ["merge", *map(str, paths), "--method", "ste-mm", "--data", "digits", "--epochs", "1"]
    arguments += ["--limit", "200", "--batch-size", "100", "--init", "identity", "--repair", "none"]
    arguments += ["--no-prove", "-q", "--force", "-o", str(folder / "out.safetensors")]
    return peak(as_command(arguments))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("nets", nargs="*", metavar="NET")
    parser.add_argument("--many", action="store_true")
    parser.add_argument("--commands", action="store_true")
    parser.add_argument("--bounds", action="store_true")
    parser.add_argument("--layers", type=int, default=1)
    parser.add_argument("--bounded")
    parser.add_argument("--plans")
    parser.add_argument("--tables", type=int, default=40)
    asked = parser.parse_args()
    if asked.plans:
        plans(asked.plans)
    elif asked.bounded:
        bounded(asked.bounded, asked.tables)
    elif asked.commands:
        commands(asked.layers, asked.tables, asked.nets, bounds=asked.bounds)
    else:
        many() if asked.many else main(asked.nets)
