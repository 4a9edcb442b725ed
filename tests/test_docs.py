"""The documents tell the truth: commands run, figures hold, links resolve, examples work, nothing missing."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import io
import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import typer

from rebasin_cli import errors, open_checkpoint
from rebasin_cli.__main__ import main
from rebasin_cli.cli import whole
from rebasin_cli.commands.verbs import specs
from rebasin_cli.matchers import Problem, wm
from rebasin_cli.nets.mlp import MLP
from rebasin_cli.registry import Registry
from rebasin_cli.runtime import broken
from rebasin_cli.runtime.seeds import derive
from rebasin_cli.spec import library
from rebasin_cli.spec.fits import fit
from rebasin_cli.symmetry.permutation import permuted, random
from rebasin_cli.symmetry.stored import load

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
EXAMPLES = DOCS / "examples"
PAGES = sorted([*ROOT.glob("*.md"), ROOT / "specs" / "README.md", *DOCS.glob("*.md"), *DOCS.glob("*/*.md")])
CONSOLE = [page for page in PAGES if "```console" in page.read_text(encoding="utf-8")]
FIRST = ("README.md", "docs/specs.md")  # other pages are sweeps
VARYING = re.compile(r"\d+(?:\.\d+)? (s|minutes|sweeps)\b")  # too much from machine to machine to compare
NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?(?:e[+-]\d+)?")


def text_of(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"(?ms)^```{language}\n(.*?)^```$", text_of(page))


@pytest.fixture(autouse=True)
def _calm(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """80 columns, no colour, one thread: what the documents show."""
    for variable in ("FORCE_COLOR", "REBASIN_DEBUG", "REBASIN_DATA"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("COLUMNS", "80")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


# ------------------------------------------------------------------------- commands run, as they stand


def steps(block: str) -> list[tuple[str, list[str], int]]:
    """Every command of a console block, the output below it, its exit code: what `echo $?` shows, or 0."""
    found: list[tuple[str, list[str], int]] = []
    for part in re.split(r"(?m)^\$ ", block)[1:]:
        command, *shown = part.splitlines()
        if command == "echo $?":
            found[-1] = (*found[-1][:2], int(shown[0]))
        else:
            found.append((command, shown, 0))
    return found


def run(command: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr; rebasin and python run in this process, where torch is there already."""
    words = shlex.split(command)
    if words[0] not in ("rebasin", "python"):
        done = subprocess.run(command, shell=True, text=True, capture_output=True)
        return done.returncode, done.stdout, done.stderr
    out, err, code = io.StringIO(), io.StringIO(), 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", words)
        patch.setattr(sys, "stdout", out)
        patch.setattr(sys, "stderr", err)
        try:
            main(words[1:]) if words[0] == "rebasin" else runpy.run_path(words[1], run_name="__main__")
        except SystemExit as left:
            code = left.code or 0
    return code, out.getvalue(), err.getvalue()


def succeed(command: str) -> str:
    code, out, err = run(command)
    assert code == 0, f"{command} ended with {code}:\n{out}{err}"
    return out


def agree(expected: str, line: str) -> bool:
    """Whether two lines say the same: words are equal, figures near, since processors round differently."""
    expected, line = (VARYING.sub(r"\1", text) for text in (expected, line))
    if NUMBER.sub("#", expected).split() != NUMBER.sub("#", line).split():
        return False
    for pair in zip(NUMBER.findall(expected), NUMBER.findall(line), strict=True):
        x, y = (float(number.replace(",", "")) for number in pair)
        if abs(x - y) > 0.15 + 0.25 * max(x, y):
            return False
    return True


def check_shown(expected: list[str], out: str, err: str = "") -> None:
    """Fail unless a block shows all of stdout in order, and what else it shows is in stderr.

    `…` stands for any lines; blank lines do not count.
    """
    lines, remarks = ([line for line in text.splitlines() if line.strip()] for text in (out, err))
    gap = False
    for wanted in (line for line in expected if line.strip()):
        if wanted.strip() == "…":
            gap = True
            continue
        at = next((k for k, line in enumerate(lines) if agree(wanted, line) and (gap or k == 0)), None)
        if at is not None:
            lines, gap = lines[at + 1 :], False
        else:
            assert any(agree(wanted, line) for line in remarks), f"not printed: {wanted}\n{out}{err}"
    assert gap or not lines, f"not shown: {lines}"


def test_comparing_what_is_shown_knows_near_from_wrong():
    assert agree("loss   0.303506", "loss 0.31")
    assert agree("match wm, 6 sweeps, 0.0 s", "match wm, 17 sweeps, 3.9 s")
    assert not agree("loss 1.7629", "loss 0.1174")
    assert not agree("repair none", "repair reset")
    check_shown(["a", "…", "c"], "a\nb\n\nc")
    check_shown(["error"], "", "remark\nerror")
    for wrong in (["b", "a", "c"], ["a", "c"], ["a", "b"], ["a", "b", "c", "d"], []):
        with pytest.raises(AssertionError):
            check_shown(wrong, "a\nb\nc")


def test_figures_that_are_drawn_stand_where_they_are_looked_for():
    """`make figures` computes them anew; a text that went away would fail there alone."""
    figures = runpy.run_path(str(ROOT / "benchmarks" / "figures.py"))
    places = figures["PLACES"]
    assert all(
        place.claimed() and any(map(place.figures, dict(place.claimed()).values())) for place in places
    )
    chosen = figures["drawn"](places, figures["DRAW"], 0)
    assert sum(map(len, chosen.values())) == figures["DRAW"] and len(chosen) > len(places) / 2


@pytest.mark.parametrize(
    "page",
    [pytest.param(page, marks=[] if name_of(page) in FIRST else [pytest.mark.sweep]) for page in CONSOLE],
    ids=name_of,
)
def test_commands_of_the_page_run_and_print_what_it_shows(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in set(re.findall(r"\(examples/([\w.]+)\)", text_of(page))):
        shutil.copy(EXAMPLES / name, tmp_path)
    for block in blocks(page, "console"):
        for command, expected, expected_code in steps(block):
            code, out, err = run(command)
            assert code == expected_code, f"{command} ended with {code}:\n{out}{err}"
            check_shown(expected, out, err)


def test_the_command_line_starts_as_a_module():
    """In a process, since that is what starts."""
    done = subprocess.run(
        [sys.executable, "-m", "rebasin_cli", "--version"], capture_output=True, text=True, env=os.environ
    )
    assert done.returncode == 0 and done.stdout.startswith("rebasin "), done.stderr


# ------------------------------------------------------------------- every command line parses


def command_lines(page: Path) -> list[str]:
    """Lines that begin with rebasin, in blocks and between backquotes."""
    text = text_of(page)
    found = re.findall(r"(?m)^(?:\$ |    )(rebasin .*)$", text)
    return [*found, *re.findall(r"`(rebasin [^`\n]+)`", text)]


@functools.cache
def every_command() -> Any:
    return typer.main.get_command(whole())


def check_line(line: str) -> None:
    """Fail unless the command is there and takes these options and values."""
    words = shlex.split(re.split(r" [|>] ", line)[0], comments=True)[1:]
    command, context, path = every_command(), None, ["rebasin"]
    while hasattr(command, "commands") and words and not words[0].startswith("-"):
        context = command.make_context(path[-1], [], parent=context, resilient_parsing=True)
        assert words[0] in command.commands, f"there is no `{' '.join([*path, words[0]])}`"
        path.append(words[0])
        command, words = command.commands[words[0]], words[1:]
    if not words or hasattr(command, "commands"):
        return  # the command itself is spoken of
    try:
        command.make_context(path[-1], words, parent=context)
    except Exception as error:
        if type(error).__name__ != "MissingParameter":  # only options are spoken of: `rebasin align --resume`
            raise AssertionError(f"{line}: {error}") from error


def test_command_lines_parse():
    for page in PAGES:
        for line in command_lines(page):
            try:
                check_line(line)
            except AssertionError as error:
                raise AssertionError(f"{name_of(page)}: {error}") from error


def test_command_lines_are_found_and_looked_at():
    assert sum(len(command_lines(page)) for page in PAGES) > 50
    for wrong in ("rebasin align a b --frobnicate", "rebasin spec guess", "rebasin align a b --seed one"):
        with pytest.raises(AssertionError):
            check_line(wrong)


# --------------------------------------------------------------------- pages are current and complete


def test_generated_pages_are_current():
    """In a process: another width and colours must be there when the program is imported."""
    done = subprocess.run(
        [sys.executable, str(DOCS / "generate.py"), "--check"],
        capture_output=True,
        text=True,
        env={**os.environ, "COLUMNS": "50", "FORCE_COLOR": "1", "TERMINAL_WIDTH": "60"},
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_example_is_on_a_page():
    shown = {
        name
        for page in DOCS.glob("*.md")
        for name in re.findall(r"(?m)^\[`examples/([\w.]+)`\]", text_of(page))
    }
    assert shown == {path.name for path in EXAMPLES.iterdir() if path.is_file()}


@functools.cache
def anchors(page: Path) -> set[str]:
    headings = re.findall(r"(?m)^#+ (.*)$", text_of(page))
    return {re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-") for heading in headings}


def test_links_resolve():
    broken = []
    for page in PAGES:
        prose = re.sub(r"(?ms)^```.*?^```$", "", text_of(page))
        for link in re.findall(r"\]\(([^()\s]+)\)", prose):
            if re.match(r"[a-z]+:", link):
                continue
            path, _, anchor = link.partition("#")
            target = (page.parent / path).resolve() if path else page
            if not target.exists() or (anchor and anchor not in anchors(target)):
                broken.append(f"{name_of(page)}: {link}")
    assert not broken


@pytest.mark.parametrize("folder", ["matchers", "datasets", "reports"])
def test_readme_names_everything_in_the_registry(folder):
    names = [path.stem.replace("_", "-") for path in Registry(folder, "").path.glob("[!_]*.py")]
    readme = text_of(ROOT / "README.md")
    assert names and [name for name in names if not re.search(rf"`{name}[`:]", readme)] == []


def test_every_shipped_spec_is_named():
    names = [path.stem for path in library.folder().glob("*.yaml")]
    notation, readme = text_of(ROOT / "specs" / "README.md"), text_of(ROOT / "README.md")
    assert names and [name for name in names if f"[{name}]({name}.yaml)" not in notation] == []
    own = [name for name in names if library.builtin()[name].net is not None]
    assert [name for name in own if f"`{name}`" not in readme] == []


def test_readme_names_every_command():
    (table,) = re.findall(r"(?ms)^\| to \| commands \|\n(.*?)^$", text_of(ROOT / "README.md"))
    assert sorted(re.findall(r"`([\w-]+)`", table)) == sorted(every_command().commands)


def test_every_exit_code_is_explained():
    table = {int(code) for code in re.findall(r"(?m)^\| (\d+) \|", text_of(DOCS / "errors.md"))}
    codes = {kind.exit_code for kind in errors_with_a_row()}
    assert table == codes | {0, broken.EXIT_CODE, 130, 141, errors.BROKEN}


def test_messages_that_errors_explains_exist():
    source = "".join(text_of(path) for path in sorted((ROOT / "rebasin_cli").rglob("*.py")))
    source = re.sub(r'"\s*\n\s*f?"', "", source)  # a literal that goes on in the next line
    source = re.sub(r"(?m)^    Example: .*$", "", source)
    page = text_of(DOCS / "errors.md")
    named = re.findall(r"(?m)^\| [^|]+ \| `\w+` \| [^|]+ \| `([^|]*?)` \| [^|]+ \|$", page)
    table = re.findall(r"(?m)^\| `(.*?)`", page.partition("## More than the message says")[2])
    assert len(named) == len(list(errors_with_a_row())) and len(table) > 15
    parts = [part.strip() for message in [*named, *table] for part in message.split("…")]
    assert [part for part in parts if part not in source] == []


def errors_with_a_row() -> Iterator[type]:
    for value in vars(errors).values():
        if isinstance(value, type) and issubclass(value, errors.RebasinError):
            if value is not errors.RebasinError:
                yield value


def test_pages_that_the_program_names_exist():
    named = {
        name
        for path in [*(ROOT / "rebasin_cli").rglob("*.py"), *(ROOT / "benchmarks").glob("*.py")]
        for name in re.findall(r"\b(?:docs|specs|benchmarks)/[\w/-]+\.md\b", text_of(path))
    }
    assert len(named) > 10 and [name for name in sorted(named) if not (ROOT / name).is_file()] == []


def test_no_page_holds_the_marks_of_a_conflict():
    marks = re.compile(r"(?m)^(?:<{7}|>{7}) ")
    assert [name_of(page) for page in PAGES if marks.search(text_of(page))] == []


def test_every_decision_is_listed():
    files = sorted(path.name for path in DOCS.glob("decisions/0*.md"))
    assert re.findall(r"\]\((0.*?\.md)\)", text_of(DOCS / "decisions" / "README.md")) == files


def test_every_make_word_exists():
    targets = set(re.findall(r"(?m)^([a-z-]+):", text_of(ROOT / "Makefile")))
    used = {word for page in PAGES for word in re.findall(r"(?m)(?:`|^    )make ([a-z-]+)", text_of(page))}
    assert {"demo", "test", "test-all"} <= used <= targets


def test_numbers_of_symmetries_hold():
    rows = re.findall(r"\| ([\d.]+) \| `rebasin spec show (.*?)` \|", text_of(DOCS / "how-it-works.md"))
    assert len(rows) == 6
    for number, line in rows:
        name, *options = line.split()
        fresh = specs.Fresh(width=float(options[1]) if options else None)
        assert f"{specs.fit_named(name, fresh=fresh).log10_symmetries():.1f}" == number, line


# --------------------------------------------------------------------------------- the examples work


def test_the_library_example_prints_what_the_page_shows(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (expected,) = blocks(DOCS / "python.md", "text")
    check_shown(expected.splitlines(), succeed(f"python {EXAMPLES / 'library.py'}"))


def mlps(count: int) -> list[dict[str, torch.Tensor]]:
    rng = torch.random.manual_seed(5)
    shapes = {name: tensor.shape for name, tensor in MLP([6, *[24] * 8, 3]).state_dict().items()}
    return [{name: torch.randn(shape, generator=rng) for name, shape in shapes.items()} for _ in range(count)]


def test_the_example_in_the_readme_runs():
    (code,) = blocks(ROOT / "README.md", "python")
    names = dict(zip("abc", mlps(3), strict=True))
    exec(code, names)
    assert names["merged"].keys() == names["a"].keys()


@pytest.fixture
def extras(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """docs/examples installed as the package `extras`, with the entry points of docs/extending.md."""
    shutil.copytree(EXAMPLES, tmp_path / "extras", ignore=shutil.ignore_patterns("__pycache__"))
    (block,) = blocks(DOCS / "extending.md", "toml")
    lines = []
    for group, points in tomllib.loads(block)["project"]["entry-points"].items():
        lines += [f"[{group}]", *(f"{name} = {value}" for name, value in points.items())]
    info = tmp_path / "extras-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: extras\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("\n".join(lines))
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    cached = (library._files, library.builtin)
    for function in cached:
        function.cache_clear()
    yield work
    for function in cached:
        function.cache_clear()
    for name in [name for name in sys.modules if name.partition(".")[0] == "extras"]:
        del sys.modules[name]


SIGNS = {
    "placed.py": """
import torch


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = torch.nn.Linear(6, 12), torch.nn.Linear(12, 3)
        self.register_buffer("places", torch.linspace(0.5, 2, 12))

    def forward(self, x):
        return self.down(torch.tanh(self.places * torch.tanh(self.up(x))))
""",
    "placed.yaml": """
schema: 1
tensors: {up.weight: "h .", up.bias: "h", places: ".", down.weight: ". h", down.bias: "."}
groups: {h: signs}
""",
}


def test_a_group_of_another_package_goes_from_spec_to_file(extras):
    for name, text in SIGNS.items():
        (extras / name).write_text(text)
    rng = torch.Generator().manual_seed(0)
    shapes = {"up.weight": (12, 6), "up.bias": (12,), "down.weight": (3, 12), "down.bias": (3,)}
    a = {name: torch.randn(shape, generator=rng) for name, shape in shapes.items()}
    a["places"] = torch.linspace(0.5, 2, 12)
    signs = torch.where(torch.rand(12, generator=rng) < 0.5, -1.0, 1.0)
    by = {"up.weight": signs[:, None], "up.bias": signs, "down.weight": signs}
    b = {name: tensor * by.get(name, 1) for name, tensor in a.items()}
    noisy = {name: t + 0.05 * torch.randn(t.shape, generator=rng) for name, t in b.items() if name in shapes}
    for file, model in {"a.pt": a, "b.pt": b, "c.pt": noisy | {"places": a["places"]}}.items():
        torch.save(model, file)
    how = "--net placed.py:Net --spec placed.yaml --groups all --input 2x6"
    succeed(f"rebasin align a.pt c.pt {how} -o aligned.safetensors")
    stored = load(Path("aligned.perm.safetensors")).elements
    assert torch.equal(stored.maps["h"], signs.double())
    assert torch.equal(stored.permutations["h"], torch.arange(12))
    succeed("rebasin apply aligned.perm.safetensors b.pt -o back.safetensors")
    back = open_checkpoint(Path("back.safetensors"))
    assert all(torch.equal(back[name], a[name]) for name in a)
    succeed(f"rebasin verify a.pt b.pt {how}")
    Path("claimed.yaml").write_text(SIGNS["placed.yaml"].replace("signs", "signed"))
    wrong = how.replace("placed.yaml", "claimed.yaml")
    code, _, err = run(f"rebasin align a.pt c.pt {wrong} -o wrong.safetensors")
    assert code == 4 and '"h" alone changes them by' in err and not Path("wrong.safetensors").exists()


def test_entry_points_of_another_package_are_found_and_work(extras):
    listed = succeed("rebasin list")
    for name in ("best-of", "rings", "points", "smallnet"):
        assert re.search(rf"(?m)^  {name} ", listed), listed
    for seed in (1, 2):
        net = "mlp --width 16 --depth 1"
        succeed(f"rebasin train {net} --data rings --epochs 30 --seed {seed} -o {seed}.safetensors -q")
    assert "match                best-of, " in succeed(
        "rebasin align 1.safetensors 2.safetensors --method best-of --max-sweeps 50"
    )
    succeed("rebasin barrier 1.safetensors 2.safetensors --report report --skip-checks -q")
    table = (extras / "report" / "points.csv").read_text().splitlines()
    assert table[0] == "row,split,lambda,loss,accuracy"
    naive = [line for line in table if line.startswith(("naive,", "aligned,"))]
    assert len(naive) == 2 * 2 * 25  # rows × splits × points
    succeed("python ../extras/smallnet.py")
    assert "smallnet, 3 permutations" in succeed(
        "rebasin align a.pt b.pt --net ../extras/smallnet.py:SmallNet"
    )


def test_the_example_matcher_keeps_the_promises_of_matchers(extras):
    best_of = importlib.import_module("extras.best_of")
    a, b = mlps(2)
    fitted = fit(library.load("mlp"), {name: tuple(tensor.shape) for name, tensor in a.items()})
    seen = []
    problem = Problem(fitted, (a, b), seed=3, progress=seen.append)
    found = best_of.match(problem)
    assert len(seen) == best_of.Options().starts
    for state in seen:
        again = best_of.match(dataclasses.replace(problem, progress=None, start=state))
        assert same(again, found)
        assert found.objective_after >= state.objective - 1e-9
    seeds = [derive(3, f"best-of {k}") for k in range(3)]
    objectives = [wm.match(dataclasses.replace(problem, seed=seed)).objective_after for seed in seeds]
    assert min(objectives) < found.objective_after == max(objectives)
    planted = random(fitted.words, torch.Generator().manual_seed(1))
    hidden = dict(permuted(a, fitted, planted))
    back = best_of.match(Problem(fitted, (a, hidden))).permutations[0]
    assert all(torch.equal(planted[word][back[word]], torch.arange(len(back[word]))) for word in back)


def same(one, other) -> bool:
    return all(
        torch.equal(one.permutations[0][word], other.permutations[0][word]) for word in one.permutations[0]
    )
