"""What is written for CI servers: valid by their schemas, and their shell lines do what the pages say.

Here rebasin is a stub that writes down how it was called; `test_cases.py` runs the real one.
"""

import json
import re
import subprocess
from pathlib import Path

import jsonschema
import pytest
import yaml
from check_jsonschema.cli import main as check_jsonschema

from . import cases, junit
from .expressions import Context
from .runner import ACTION, EXAMPLES, ROOT, Job, Server, Shell, read

GITHUB = sorted(EXAMPLES.glob("github*.yml"))
WORKFLOWS = [*sorted((ROOT / ".github" / "workflows").glob("*.yml")), *GITHUB]
STUB = """\
[ "$1" != promote ] || exit 0
case "$*" in *--key*) echo "${KEY:-0123456789abcdef-fedcba9876543210}"; exit 0 ;; esac
printf '%s\\n' "$@" > words
env > environment
while [ $# -gt 0 ]; do
  case "$1" in --result) result=$2 ;; --junit) junit=$2 ;; esac
  shift
done
mkdir -p out .rebasin; echo made > out/merged.safetensors; echo told > out/README.md
STATUS=${STATUS:-done}; CODE=${CODE:-0}
outputs='{"out/merged.safetensors": "", "out/README.md": ""}'
steps="[{\\"status\\": \\"$STATUS\\", \\"outputs\\": $outputs}]"
echo "{\\"exit_code\\": $CODE, \\"steps\\": $steps}" > "$result"
echo '<testsuites/>' > "$junit"
echo '## summary' >> "$GITHUB_STEP_SUMMARY"
exit "$CODE"
"""


@pytest.mark.parametrize(
    "schema, files",
    [
        ("vendor.github-workflows", WORKFLOWS),
        ("custom.github-workflows-require-timeout", WORKFLOWS),
        ("vendor.github-actions", [ACTION]),
        ("vendor.gitlab-ci", [EXAMPLES / "gitlab.yml"]),
    ],
)
def test_files_satisfy_the_schema_of_their_server(schema, files, capsys):
    assert checked(schema, *files) == 0, capsys.readouterr()


def test_a_file_that_is_none_of_a_servers_is_noticed(tmp_path, capsys):
    (tmp_path / "x.yml").write_text("jobs: 3")
    assert checked("vendor.github-workflows", tmp_path / "x.yml") == 1


def checked(schema, *files):
    with pytest.raises(SystemExit) as ended:
        check_jsonschema(["--builtin-schema", schema, *map(str, files)])
    return ended.value.code


def test_recipes_of_the_pages_satisfy_the_schema_of_recipes():
    schema = json.loads((ROOT / "docs" / "recipe.schema.json").read_text(encoding="utf-8"))
    check = jsonschema.Draft202012Validator(schema)
    for name in ("first.yaml", "gated.yaml"):
        check.validate(yaml.safe_load((EXAMPLES / name).read_text(encoding="utf-8")))
    assert not check.is_valid(yaml.safe_load((EXAMPLES / "wrong.yaml").read_text(encoding="utf-8")))


# ---------------------------------------------------------------------------------- what plays the server


def test_expressions_are_those_of_the_server_and_no_others(tmp_path):
    (tmp_path / "a.txt").write_text("a")
    values = {"inputs": {"cache": "true", "n": ""}, "steps": {"run": {"outputs": {}}}, "runner": {"os": "X"}}
    context = Context(values, tmp_path)
    for text, value in {
        "inputs.cache == 'true' && steps.run.outputs.key != ''": False,
        "always() && !(inputs.cache != 'TRUE')": True,
        "success() && inputs.n || 'else'": "else",
        "format('{0}/{1}', runner.os, 'it''s')": "X/it's",
        "failure()": False,
        "hashFiles('none/*')": "",
    }.items():
        assert context.value(text) == value, text
    assert len(context.value("hashFiles('*.txt')")) == 64
    assert context.filled("a-${{ runner.os }}-${{ inputs.n }}") == "a-X-"
    for text in ("inputs.cach", "secrets.TOKEN", "toJSON(inputs)", "inputs.n ? 1", "steps.other"):
        with pytest.raises((AssertionError, IndexError)):
            context.value(text)
    for status, held in {"success": "success", "failed": "failure", "cancelled": "cancelled"}.items():
        stands = Context(values, tmp_path, status)
        assert [word for word in ("success", "failure", "cancelled") if stands.holds(f"{word}()")] == [held]
        assert stands.holds("always()") and stands.holds("") == (status == "success")


@pytest.fixture
def server(tmp_path):
    """One whose rebasin is the stub, which reads no models."""
    (tmp_path / "models").mkdir()
    cases.checkout(tmp_path / "repository", tmp_path / "models")
    return Server(Shell(tmp_path / "home", rebasin=STUB), tmp_path / "repository")


def job(server, inputs=None, head=cases.HERE, **more):
    return server.job(cases.workflow(), inputs=inputs or {}, event=cases.event(head), **more)


def words(done):
    return (done.workspace / "merge" / "words").read_text().splitlines()


def calls(server, program):
    found = server.shell.calls.read_text().splitlines() if server.shell.calls.exists() else []
    return [line.partition(" ")[2] for line in found if line.split()[0].endswith(f"/{program}")]


# ------------------------------------------------------------------------------------ inputs of the action


@pytest.mark.parametrize(
    "arguments, expected",
    [
        ("", []),
        ("--set a=1\n--set b=2\n\n  --force\n", ["--set", "a=1", "--set", "b=2", "--force"]),
        ("--set 'a=x  y'\n\"b c\" ''", ["--set", "a=x  y", "b c", ""]),
        (r"--cache C:\new # * ~ $HOME `x`", ["--cache", r"C:\new", "#", "*", "~", "$HOME", "`x`"]),
        (
            "; touch broken $(touch broken2) --set ü=é",
            [";", "touch", "broken", "$(touch", "broken2)", "--set", "ü=é"],
        ),
    ],
)
def test_arguments_are_words_and_no_shell(server, arguments, expected):
    done = job(server, {"arguments": arguments})
    assert done.status == "success", done.log
    assert words(done)[:4] == ["run", "recipe.yaml", "--time-limit", "50m"]
    assert words(done)[4 : 4 + len(expected)] == expected
    assert words(done)[4 + len(expected) :: 2] == ["--result", "--junit"]
    assert not list(done.workspace.rglob("broken*"))


def test_a_quote_that_is_not_closed_stops_the_action(server):
    done = job(server, {"arguments": "--set 'a=1"})
    assert done.status == "failed" and "a quote is not closed" in done.log
    assert not done.outputs["result"] and not (done.workspace / "merge" / "words").exists()


INSTALLS = [
    ({}, ["rebasin-cli"]),
    ({"version": "0.2.0"}, ["rebasin-cli==0.2.0"]),
    ({"constraints": "c.txt", "requirements": "r.txt"}, ["-c c.txt -r r.txt rebasin-cli"]),
    (
        {"torch-index": "https://index/cpu", "constraints": "my c.txt"},
        ["-c my c.txt --index-url https://index/cpu torch", "-c my c.txt rebasin-cli"],
    ),
    ({"lock": "lock.txt"}, ["--require-hashes -r lock.txt"]),
    ({"lock": "lock.txt", "version": "1"}, None),
    ({"untrusted": "true", "requirements": "r.txt"}, None),
    ({"untrusted": "true", "lock": "/base/lock.txt"}, ["--require-hashes -r /base/lock.txt"]),
    ({"untrusted": "yes"}, None),
    ({"version": "1; touch broken"}, ["rebasin-cli==1; touch broken"]),
]


def test_what_is_installed_is_what_the_inputs_say(server):
    """One test for all rows, and of the action its first steps alone."""
    told = read(ACTION)
    defaults = {name: about.get("default", "") for name, about in told["inputs"].items()}
    for number, (inputs, expected) in enumerate(INSTALLS):
        server.shell.calls.unlink(missing_ok=True)
        done = Job(server, server.home / str(number))
        done.play(told["runs"]["steps"][:2], defaults | inputs)
        found = [call.partition("install --quiet ")[2] for call in calls(server, "python")]
        assert found == (expected or []), inputs
        assert (done.status == "success") == (expected is not None), done.log
        assert expected is not None or "::error title=rebasin::" in done.log
    assert not list(server.home.rglob("broken*"))


def test_a_fork_is_untrusted_has_no_cache_and_is_not_imported(server):
    merge = server.repository / "merge"
    for name in ("json", "shlex", "pip"):
        (merge / f"{name}.py").write_text("from pathlib import Path\nPath('ran').touch()\n")
    done = job(server, head="stranger/models")
    assert done.status == "success" and not list(done.workspace.rglob("ran"))
    assert words(done)[4:7] == ["--untrusted", "--allow-env", "BASELINE"]
    assert "--untrusted" not in words(job(server))
    assert len(server.caches) == 1  # of the other job
    assert not any("what steps have made" in name for name in job(server, head="stranger/models").ran)


def test_the_baseline_reaches_the_recipe_by_its_variable_alone(server):
    done = job(server, {"baseline": "$(x) b.json"})
    environment = (done.workspace / "merge" / "environment").read_text().splitlines()
    assert "BASELINE=$(x) b.json" in environment
    done = job(server, {"baseline": ""})
    assert "BASELINE" not in (done.workspace / "merge" / "environment").read_text()


# ------------------------------------------------------------------------------------------------ the cache


@pytest.mark.sweep
def test_keys_part_jobs_and_find_the_nearest(server, monkeypatch):
    """Of asked, then of inputs; a run of its own; what is kept by one key is kept for good."""
    asked, other, inputs, newer = ("a" * 16, "b" * 16, "1" * 16, "2" * 16)
    environment = server.shell.environment

    def played(key, status="done", code="0", run=""):
        monkeypatch.setattr(
            server.shell, "environment", lambda **m: environment(KEY=key, STATUS=status, CODE=code, **m)
        )
        return job(server, run=run)

    def kept():
        return [key.split("-", 2)[2] for key in server.caches]

    played(f"{asked}-{inputs}", run="1")
    played(f"{other}-{inputs}", run="1")  # another job of the same run, with other arguments
    assert len(kept()) == 2, "the second save is lost"
    near = {key.split("-")[0] for key in kept()}
    assert len(near) == 1, "one recipe has one name"
    assert played(f"{asked}-{inputs}", "unchanged").status == "success" and len(kept()) == 2
    played(f"{asked}-{newer}", "gate not met", "1")
    assert len(kept()) == 3 and f"{asked}-{newer}" in kept()[-1]
    first = server.caches[next(iter(server.caches))]
    (first / "merge" / "out" / "of-the-first").touch()
    for key, found in (
        (f"{asked}-{inputs}", True),
        (f"{other}-{inputs}", False),
        ("c" * 16 + f"-{inputs}", False),
    ):
        done = played(key, "unchanged")
        assert (done.workspace / "merge" / "out" / "of-the-first").exists() == found, key
    assert (done.workspace / "merge" / "out").exists(), "a recipe that is another one finds what was there"


def test_without_a_key_nothing_is_restored_or_kept(server):
    server.shell.program("rebasin", '#!/bin/sh\ncase "$*" in *--key*) exit 2 ;; esac\n' + STUB)
    done = job(server)
    assert not server.caches and not any("made" in name for name in done.ran)
    assert job(server, {"cache": "false"}).outputs["exit-code"] == "0"


# ------------------------------------------------------------------------------------ what is left, and where


def test_a_cancelled_job_ends_rebasin_itself_and_keeps_what_is_done(server):
    """The signal goes to the shell alone; what it began without `exec` would live on."""
    waits = "trap 'ended=yes' INT; touch reached; while [ -z \"${ended:-}\" ]; do sleep 0.02; done"
    _, key, told = STUB.partition("case")
    lines = [waits, "CODE=130 STATUS=interrupted", told.partition("esac\n")[2]]
    asked = key + told.partition("esac\n")[0] + "esac"
    server.shell.program("rebasin", "\n".join(["#!/bin/bash", asked, *lines]))
    done = job(server, signals=cases.slow(cases.cancel))
    assert (done.code, done.status) == (130, "cancelled") and done.outputs["exit-code"] == "130"
    assert set(server.artifacts) == {"reports"} and len(server.caches) == 1 and not done.outputs["files"]


def test_outputs_name_what_this_run_left_and_nothing_else(server):
    done = job(server)
    assert done.outputs["files"].splitlines() == ["merge/out/merged.safetensors", "merge/out/README.md"]
    assert done.outputs["exit-code"] == "0" and done.summary.count("## summary") == 1
    assert {path.name for path in server.artifacts["merged"].rglob("*") if path.is_file()} == {
        "merged.safetensors",
        "README.md",
    }
    reports = {
        path.relative_to(server.artifacts["reports"]).as_posix()
        for path in server.artifacts["reports"].rglob("*.*")
    }
    assert reports == {"result.json", "junit.xml", "summary.md", "out/README.md"}  # weights are elsewhere
    forged = STUB.replace("out/README.md", "junit.xml").replace(
        "echo made", "echo forged > junit.xml; echo made"
    )
    server.shell.program("rebasin", f"#!/bin/sh\n{forged}")
    assert Path(job(server).outputs["junit"]).read_text() == "<testsuites/>\n"
    server.shell.program("rebasin", "#!/bin/sh\nexit 70\n")  # and nothing of before is named after it
    done = job(server)
    assert done.status == "failed" and "::error title=rebasin::rebasin left no result" in done.log
    assert not any(done.outputs[name] for name in ("files", "result", "exit-code"))
    assert junit.told(done.outputs["junit"]) == "1 in error"
    assert Path(done.outputs["summary"]).read_text().startswith("## rebasin run: no result")


def test_the_comment_is_of_a_job_that_reads_no_models_and_not_for_forks(server):
    told = cases.workflow(job="comment")
    assert told["permissions"] == {"pull-requests": "write"} and told["needs"] == "merge"
    here = Context({"github": {"repository": cases.HERE, "event": cases.event()}}, server.home, "failed")
    there = Context({"github": {"repository": cases.HERE, "event": cases.event("x/y")}}, server.home)
    assert here.holds(told["if"]) and not there.holds(told["if"])
    job(server)
    commented = server.job(told, event=cases.event())
    assert calls(server, "gh")[-1].startswith("pr comment 7 --repo org/models --edit-last --create-if-none")
    assert "## summary" in (commented.workspace / "comment.md").read_text()


@pytest.mark.sweep
def test_whoever_is_on_call_is_told_by_exit_code(server):
    told = {
        "0": None,
        "1": "a gate was not met",
        "6": "exit code 6",
        "124": None,
        "137": "killed, or rebasin did not",
    }
    for code, words in told.items():
        server.shell.program("rebasin", f"#!/bin/sh\nCODE={code}; [ $CODE != 137 ] || kill -9 $$\n{STUB}")
        server.shell.program("git", "#!/bin/sh\n")
        server.shell.calls.unlink(missing_ok=True)
        done = server.job(cases.workflow("github_main.yml"))
        issues = [call for call in calls(server, "gh") if call.startswith("issue create")]
        assert [f"--title merge: {words}" in call for call in issues] == ([True] if words else []), done.log


def test_the_container_is_run_as_who_owns_the_folder():
    text = (EXAMPLES / "Containerfile").read_text(encoding="utf-8")
    (line,) = [line for line in text.splitlines() if "docker run" in line]
    assert '--user "$(id -u):$(id -g)"' in line


def shell_lines():
    for path in WORKFLOWS:
        for job in read(path)["jobs"].values():
            yield from (step["run"] for step in job["steps"] if "run" in step)
    yield from (step["run"] for step in read(ACTION)["runs"]["steps"] if "run" in step)
    for job in read(EXAMPLES / "gitlab.yml").values():
        yield from (*job.get("before_script", ()), *job["script"])
    text = (EXAMPLES / "Containerfile").read_text(encoding="utf-8").replace("\\\n", "")
    yield from (line.removeprefix("RUN ") for line in text.splitlines() if line.startswith("RUN "))
    yield from (path.read_text(encoding="utf-8") for path in EXAMPLES.glob("*.sh"))


def test_all_shell_lines_can_be_parsed_and_hold_no_expression():
    """In a process: a shell reads them. What a stranger chose reaches them through the environment alone."""
    lines = list(shell_lines())
    assert len(lines) >= 15
    for text in lines:
        done = subprocess.run(["bash", "-n", "-c", text], capture_output=True, text=True)
        assert done.returncode == 0, (text, done.stderr)
        assert not re.search(r"\$\{\{(?! matrix\.)", text), text


def test_a_job_has_the_rights_that_it_needs_and_no_others():
    rights = {}
    for path in WORKFLOWS:
        told = read(path)
        assert told["permissions"] == {"contents": "read"}, path.name
        rights[path.name] = {
            name: job["permissions"] for name, job in told["jobs"].items() if "permissions" in job
        }
        for job in told["jobs"].values():
            writes = "write" in job.get("permissions", {}).values()
            checkouts = [step for step in job["steps"] if step.get("uses", "").startswith("actions/checkout")]
            for step in checkouts:  # who may not write has no token in .git, either
                assert writes or step["with"]["persist-credentials"] == "false", path.name
    assert rights == {
        "release.yml": {"publish": {"id-token": "write"}},
        "test.yml": {},
        "github.yml": {"comment": {"pull-requests": "write"}},
        "github_main.yml": {"merge": {"contents": "write", "issues": "write"}},
        "github_merge.yml": {"merge": {"contents": "write"}},
        "github_release.yml": {"release": {"contents": "write"}},
    }
    publish = read(ROOT / ".github" / "workflows" / "release.yml")["jobs"]["publish"]["steps"]
    assert [step["uses"].partition("@")[0] for step in publish] == [
        "actions/download-artifact",
        "pypa/gh-action-pypi-publish",
    ]


def test_gitlab_keeps_weights_after_success_alone():
    told = read(EXAMPLES / "gitlab.yml")
    merge, publish = told["merge"], told["publish"]
    assert merge["artifacts"].get("when", "on_success") == "on_success" and publish["needs"] == ["merge"]
    assert merge["artifacts"]["exclude"] == ["merge/out/**/not-passed/**/*"]
    kept = [cache for cache in merge["cache"] if "merge/out" in cache["paths"]]
    assert [cache["when"] for cache in kept] == ["always"]
