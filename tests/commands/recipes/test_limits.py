"""A stranger's recipe: what `rebasin run --untrusted` refuses, each with its line, and before it is used."""

import os
import sys

import pytest

from rebasin_cli.checkpoints import torch_file
from rebasin_cli.commands.recipes import familiar, reader
from rebasin_cli.commands.recipes.cache import of_run
from rebasin_cli.commands.recipes.limits import MOST_STEPS, Limits
from rebasin_cli.commands.recipes.recipe import parse
from rebasin_cli.commands.recipes.vocabulary import vocabulary
from rebasin_cli.errors import UsageError
from rebasin_cli.registry import import_reference, references
from rebasin_cli.registry.options import REQUIRED, UNSAID, Option

from .conftest import command

OUT = "output_dir: out\n"


@pytest.fixture(autouse=True)
def checkout(tmp_path, monkeypatch):
    """A folder as a pull request may leave it, with links and hidden files of every kind."""
    monkeypatch.chdir(tmp_path)
    secret = tmp_path.parent / f"{tmp_path.name}-secret"
    secret.mkdir()
    for name in ("key.safetensors", "config.json"):
        (secret / name).write_text("SECRET")
    for folder in (".git", "runs", "images", "shards", "specs", "plain", "away", "deep"):
        (tmp_path / folder).mkdir()
    (tmp_path / ".git" / "config").write_text("SECRET")
    for name in ("runs/step1", "plain/model", "away/model"):
        (tmp_path / f"{name}.safetensors").write_text(name)
    (tmp_path / "evil.py").write_text("raise SystemExit('code was run')\n")
    (tmp_path / "link.safetensors").symlink_to(secret / "key.safetensors")
    (tmp_path / "hidden.safetensors").symlink_to(".git/config")
    (tmp_path / "folder").symlink_to(secret)
    (tmp_path / "out-link").symlink_to(secret)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "link").symlink_to(secret)
    (tmp_path / "images" / "x.png").symlink_to(secret / "key.safetensors")
    (tmp_path / "away" / "config.json").symlink_to(secret / "config.json")
    (tmp_path / "shards" / "m.safetensors.index.json").write_text('{"weight_map": {"w": "w.safetensors"}}')
    (tmp_path / "shards" / "w.safetensors").symlink_to(secret / "key.safetensors")
    (tmp_path / "deep" / "m.safetensors.index.json").write_text(
        '{"weight_map": {"w": "away/key.safetensors"}}'
    )
    (tmp_path / "deep" / "away").symlink_to(secret)
    (tmp_path / "specs" / "own.yaml").write_text("include: other\ntensors: {}\n")
    (tmp_path / "specs" / "other.yaml").symlink_to(secret / "config.json")
    return tmp_path


@pytest.fixture
def judged():
    """What is wrong with a recipe, and the recipe; as with --untrusted, and these variables allowed."""

    def judged(text, *, environment=None, variables=(), assignments=()):
        problems, limits = reader.Problems(), Limits(variables)
        root = reader.read(text, environment or {}, problems, allowed=variables)
        root = familiar.as_recipe(root, problems) if familiar.is_mergekit(root) else root
        root = reader.with_set(root, list(assignments), environment or {}, problems)
        return problems, parse(root, vocabulary(), problems, limits=limits), limits

    return judged


def step(**options):
    body = ", ".join(f"{key}: {value}" for key, value in options.items())
    return OUT + "steps:\n  - align: {models: [a.safetensors, b.safetensors], " + body + "}\n"


CODE = "is code, or may be"
TRUST = "only the command line may say"
OUTSIDE = "a plain name below the folder"
LINK = "is a link"
REFUSED = {
    # code of files
    step(net="'evil.py:build'"): CODE,
    step(net="'os:system'"): CODE,
    step(net="os.path"): CODE,
    step(net="['evil.py:build']"): "expected",
    step(data="'evil.py:load'"): CODE,
    step(data="'digits:load'"): CODE,
    step(data="'npz:../x.npz'"): OUTSIDE,
    step(data="'imagefolder:images?size=3'"): LINK,
    step(data="'text:.git/config'"): OUTSIDE,
    step(data="'text:hidden.safetensors?window=3'"): LINK,
    step(loss="'torch.nn.functional:cross_entropy'"): "is code",
    "defaults: {net: 'evil.py:build'}\n" + step(seed=1): CODE,
    OUT + "steps: [{barrier: {models: [a, b], metric: 'evil:m'}}]": "is code",
    OUT + "steps: [{eval: {models: [a], held_out: 'evil.py:m'}}]": CODE,
    OUT + "steps: [{train: {net: 'evil.py:build', data: digits}}]": CODE,
    OUT + "steps: [{lab run: {name: halves, set: ['data=evil.py:load']}}]": CODE,
    # trust from inside
    **{step(**{key: "true"}): TRUST for key in ("trust_code", "unsafe_load", "no_prove")},
    OUT + "steps: [{barrier: {models: [a, b], skip_checks: true}}]": TRUST,
    step(force="true"): "has no 'force'",
    step(download="true"): "has no 'download'",
    # files that are read
    OUT + "inputs: {x: /etc/passwd}": OUTSIDE,
    OUT + "inputs: {x: ../x.safetensors}": OUTSIDE,
    OUT + "inputs: {x: runs/../../x.safetensors}": OUTSIDE,
    OUT + "inputs: {x: ~/x.safetensors}": OUTSIDE,
    OUT + "inputs: {x: 'C:\\x.safetensors'}": OUTSIDE,
    OUT + "inputs: {x: .git/config}": OUTSIDE,
    OUT + "inputs: {x: 'runs/\u200b.safetensors'}": "holds '\\u200b'",
    OUT + "inputs: {x: 'runs/\u202esrotcart.pt'}": "holds",
    OUT + "inputs: {x: '*/../../*'}": OUTSIDE,
    OUT + "inputs: {x: '**/*.safetensors'}": "only the last part",
    OUT + "inputs: {x: '*/*.safetensors'}": "only the last part",
    OUT + "inputs: {x: 'folder/*.json'}": LINK,
    OUT + "inputs: {x: 'l*.safetensors'}": LINK,
    OUT + "inputs: {x: link.safetensors}": LINK,
    OUT + "inputs: {x: folder/key.safetensors}": LINK,
    OUT + "inputs: {x: folder}": LINK,
    OUT + "inputs: {x: images}": LINK,
    OUT + "inputs: {x: hidden.safetensors}": LINK,
    OUT + "inputs: {x: shards/m.safetensors.index.json}": LINK,
    OUT + "inputs: {x: deep/m.safetensors.index.json}": LINK,
    OUT + "inputs: {x: deep}": LINK,
    OUT + f"inputs: {{x: {{path: link.safetensors, sha256: '{'0' * 64}'}}}}": LINK,
    OUT + f"inputs: {{x: {{path: /etc/passwd, sha256: '{'0' * 64}'}}}}": OUTSIDE,
    OUT + f"inputs: {{x: {{url: 'https://h/x', sha256: '{'0' * 64}'}}}}": "--download",
    OUT + "inputs: {x: 'hf:a/b@main'}": "may mean another model tomorrow",
    OUT + "steps: [{align: {models: [/etc/a, link.safetensors]}}]": LINK,
    OUT + "steps: [{align: {models: [a, b]}, depends: [/etc/*]}]": OUTSIDE,
    OUT + "steps: [{barrier: {models: [a, b], pair: ['/etc/a,/etc/b']}}]": OUTSIDE,
    OUT + "steps: [{barrier: {models: [a, b], pair: [[runs/step1.safetensors, link.safetensors]]}}]": LINK,
    OUT + "steps: [{barrier: {models: [a, b], baseline: folder/config.json}}]": LINK,
    OUT + "steps: [{card: {models: [a], recipe: .git/config}}]": OUTSIDE,
    OUT + "steps: [{merge: {models: [away/model.safetensors, a], copy_files: true}}]": LINK,
    OUT + "defaults: {copy_files: true}\nsteps: [{merge: {models: [away/model.safetensors, a]}}]": LINK,
    step(spec="specs/own.yaml"): LINK,
    step(spec="/etc/spec.yaml"): OUTSIDE,
    step(init="../x.perm.safetensors"): OUTSIDE,
    OUT + "steps: [{align: {models: [a, b], data: mnist, data_root: data}}]": TRUST,
    "models: [{model: /etc/a}, {model: b}]\nmerge_method: linear\n": OUTSIDE,
    # files that are written
    "steps: [{align: {models: [a, b]}}]": "output_dir: out",
    "output_dir: .\n": "output_dir: out",
    "output_dir: ./\n": "output_dir: out",
    "output_dir: ../out\n": OUTSIDE,
    "output_dir: /tmp/out\n": OUTSIDE,
    "output_dir: .git\n": OUTSIDE,
    "output_dir: .github/workflows\n": OUTSIDE,
    "output_dir: out-link/x\n": LINK,
    step(out="../../x.safetensors"): "below the output folder",
    step(out="[../../x.safetensors]"): "expected",
    step(out="/tmp/x.safetensors"): "below the output folder",
    step(out=".x.safetensors"): "below the output folder",
    step(log="x/../../../conftest.py"): "below the output folder",
    step(log="conftest.py"): "found as a module",
    step(attest="link/x.json"): LINK,
    step(attest="../x.json"): "below the output folder",
    OUT + "steps: [{barrier: {models: [a, b], html: ../x.html}}]": "below the output folder",
    OUT + "steps: [{barrier: {models: [a, b], step_summary: /tmp/x}}]": "below the output folder",
    OUT + "junit: ../gates.xml\n": "below the output folder",
    OUT + "attest: /tmp/x.json\n": "below the output folder",
    OUT + "step_summary: ../../x.md\n": "below the output folder",
    # how much
    OUT + "steps:\n" + "  - inspect: {models: [runs/step1.safetensors]}\n" * (MOST_STEPS + 1): "at most",
}


def test_a_strangers_recipe_says_nothing_that_reaches_beyond_its_folder(judged):
    for text, what in REFUSED.items():
        problems, _, _ = judged(text)
        told = [line for line in problems if what in line]
        assert told and all(line.startswith("line ") for line in told), (text, list(problems))
        assert not any("SECRET" in line or "did you mean" in line and "/etc" in line for line in problems), (
            text
        )


def test_all_that_is_refused_is_told_at_once(judged):
    text = step(net="'evil.py:build'", out="../x", trust_code="true").replace("a.safetensors", "/etc/a")
    assert len([line for line in judged(text)[0] if "no such file" not in line]) == 4


def test_one_refusal_is_known_whatever_is_allowed_behind_it(judged):
    """The hint of a run names the limits then."""
    assert not judged(step(data="digits", net="mlp"))[2].refused
    assert judged(step(data="'evil.py:load'", net="mlp", out="out.safetensors"))[2].refused


def test_a_document_that_is_refused_is_none_of_the_recipe(judged):
    """At the end of a run that is refused, too, documents are written."""
    for text in ("junit: ../x\n", "step_summary: /tmp/x\n", "attest: link/x\n"):
        _, recipe, _ = judged(OUT + text)
        assert (recipe.junit, recipe.step_summary, recipe.attest) == (None, None, None)
    _, recipe, _ = judged("output_dir: ../x\njunit: gates.xml\n")
    assert recipe.junit is None


def test_what_stays_below_the_folder_is_taken(judged):
    text = OUT + (
        "junit: reports/gates.xml\ninputs: {x: './runs/step*.safetensors', y: plain/model.safetensors}\n"
        "steps:\n"
        "  - align: {models: [x, y], data: digits, spec: mlp, net: 'rebasin_cli.nets.mlp:from_shapes'}\n"
        "  - merge: {models: [align, y], out: merged/, copy_files: true, trust_code: false}\n"
        "  - barrier: {models: [x, align], pair: ['x,align'], held_out: 0.1, net: mlp}\n"
        "  - card: {models: [y]}\n"
        "  - lab run: {name: halves, set: ['data=digits', 'rate=0.5,1e-3']}\n"
    )
    problems, recipe, _ = judged(text)
    assert problems == []
    assert all(str(path).startswith("out/") for path in recipe.files)
    assert {"out/README.md", "out/lab"} <= {str(path) for path in recipe.files}
    assert "out/align.safetensors" in recipe.steps[2].line()[4 + 1 :][-0] or recipe.steps[2].needs == (
        "align",
    )


def test_the_command_lines_own_words_are_held_to_none_of_it(judged, checkout):
    elsewhere = checkout.parent / f"{checkout.name}-secret" / "key.safetensors"
    problems, recipe, limits = judged(
        "inputs: {x: a, y: plain/model.safetensors}\nsteps: [{align: {models: [x, y]}}]",
        assignments=[
            f"inputs.x={elsewhere}",
            "output_dir=/tmp/out",
            "steps.align.net=evil.py:build",
            "steps.align.trust_code=true",
        ],
    )
    assert problems == [] and recipe.steps[0].writes[""].parent.name == "out"
    assert limits.own == {"evil.py:build", "trust_code"}


def test_a_stranger_gets_the_variables_that_are_named_and_no_secret(judged):
    environment = {"RUN": "step1", "HOME": "/root", "API_TOKEN": "hunter2", "SLY": "${API_TOKEN}"}
    text = OUT + "inputs: {x: 'runs/${RUN}.safetensors'}\nsteps: [{inspect: {models: [x]}}]"
    assert judged(text, environment=environment, variables={"RUN"})[0] == []
    refused = {
        "${RUN}": (),
        "${HOME}": {"RUN"},
        "${HOME:-x}": {"RUN"},
        "${MISSING:-x}": {"RUN"},
        "${API_TOKEN}": {"API_TOKEN"},
    }
    for variable, variables in refused.items():
        problems, _, _ = judged(
            OUT + f"description: '{variable}'", environment=environment, variables=variables
        )
        assert len(problems) >= 1 and problems[0].startswith(f"line 2: description: {variable[:4]}"), problems
    for variable in ("API_TOKEN", "SLY"):  # not in an address, either, nor by another variable's value
        address = f"inputs: {{x: {{url: 'https://h/?${{{variable}}}', sha256: '{'0' * 64}'}}}}"
        problems, _, _ = judged(OUT + address, environment=environment, variables={variable})
        assert any("is a secret by its name" in line or "holds no ${" in line for line in problems)
        assert "hunter2" not in "".join(problems)
    for given in ("HF_TOKEN=hf_abc", "BRANCH=main", "", "a b"):
        with pytest.raises(UsageError, match="expected the name of a variable alone") as raised:
            Limits({given}).check_start(__file__)
        assert "abc" not in str(raised.value)
    with pytest.raises(UsageError, match="--allow-env API_TOKEN"):
        Limits({"API_TOKEN"}).check_start(__file__)


def test_a_folder_that_has_a_hand_in_the_process_is_refused(checkout, monkeypatch):
    Limits().check_start(checkout / "recipe.yaml")
    monkeypatch.setattr(sys, "path", [*sys.path, "named.__path_hook__"])
    Limits().check_start(checkout / "recipe.yaml")  # what is not there holds no module
    for place in ("", str(checkout), "runs"):
        monkeypatch.setattr(sys, "path", [*sys.path[:-1], place])
        with pytest.raises(UsageError, match="Python looks for modules in"):
            Limits().check_start(checkout / "recipe.yaml")
    monkeypatch.undo()
    os.chdir(checkout)
    with pytest.raises(UsageError, match="leads out"):
        Limits().check_start(checkout / "link.safetensors")
    (checkout / "matplotlibrc").touch()
    with pytest.raises(UsageError, match="matplotlib"):
        Limits().check_start(checkout / "recipe.yaml")
    with pytest.raises(UsageError, match="every file lies below /"):
        Limits(home="/").check_start(checkout / "recipe.yaml")


def test_no_record_in_the_strangers_folder_is_believed(checkout):
    told = []
    with of_run(checkout / ".rebasin", told.append, stranger=True) as cache:
        assert not str(cache.folder).startswith(str(checkout)) and "nothing in it is believed" in told[0]
        cache.put("steps", "key", {})
    assert not cache.folder.exists() and not (checkout / ".rebasin").exists()
    elsewhere = checkout.parent / f"{checkout.name}-cache"
    recipe = parse(reader.read(OUT + "steps: [{lab list: }]", {}, []), vocabulary(), reader.Problems())
    with (
        of_run(elsewhere, told.append, stranger=True) as his,
        of_run(elsewhere, told.append, stranger=False) as own,
    ):
        assert his.folder == own.folder == elsewhere
        assert his.key(recipe.steps[0]) != own.key(recipe.steps[0])


def test_code_that_has_got_past_the_recipe_meets_a_second_lock(checkout):
    limits = Limits()
    with limits.second_lock():
        with pytest.raises(UsageError, match="evil.py:build is code"):
            import_reference("evil.py:build", error=UsageError)
        with pytest.raises(UsageError, match="would run code of its own"):
            torch_file.load_by_its_code(checkout / "evil.py")
        assert not references.may_download()
        limits.own.add("os.path:join")
    with limits.second_lock():
        assert import_reference("os.path:join", error=UsageError) is os.path.join
    assert references.may_download()


def test_somebody_has_said_of_every_option_of_every_command_what_it_may_name():
    """Say what a new one is where it is declared (`role`); until then no stranger's recipe has it."""
    known = vocabulary().values()
    unsaid = [f"{c.name} {p.flag or p.key}" for c in known for p in c.parameters if p.brings == UNSAID]
    assert unsaid == [] and [c.name for c in known if not c.operation.said] == []


def test_an_option_that_nobody_has_said_anything_of_is_refused():
    value = reader.Value("x", "", "line 1")
    assert "nobody has said" in Limits().wrong(Option("new", str, None, flag="--new"), value)
    assert "nobody has said" in Limits().wrong_command(
        command("new", Option("new", str, REQUIRED, positional=True))
    )
