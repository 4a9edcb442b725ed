"""rebasin merge-driver: alone, and as git calls it."""

import errno
import json
import os
import subprocess
import sys

import pytest
import torch

from rebasin_cli.checkpoints.checkpoint import open_checkpoint
from rebasin_cli.checkpoints.writer import write_safetensors

from .conftest import rebasin, tensors

W = torch.arange(4.0)
BASE = {"body.weight": W, "head.weight": W, "norm.weight": W}


@pytest.fixture
def three(tmp_path):
    """Ancestor, ours and theirs, under names like those that git gives."""
    paths = [tmp_path / f".merge_file_{name}" for name in ("O", "A", "B")]
    changes = [{}, {"body.weight": W + 1}, {"head.weight": W + 2, "body.weight": W + 3}]
    for path, change in zip(paths, changes, strict=True):
        store(path, BASE | change)
    return paths


def store(path, named, **metadata):
    held = path.with_name("held.safetensors")
    write_safetensors(held, named, metadata=metadata, force=True)
    os.replace(held, path)
    return path


def test_ours_becomes_the_merge_and_the_others_stay(three, done, tmp_path):
    before = [path.read_bytes() for path in three]
    outcome = done("merge-driver", *three, "7", "models/a.safetensors")
    assert "models/a.safetensors: tensors merged: 1 averaged, 1 ours, 1 theirs" in outcome.err
    assert "models/a.safetensors" in outcome.out and ".merge_file" not in outcome.out + outcome.err
    merged = tensors(three[1])
    assert torch.equal(merged["body.weight"], W + 2) and torch.equal(merged["head.weight"], W + 2)
    assert [three[k].read_bytes() for k in (0, 2)] == [before[0], before[2]]
    told = open_checkpoint(three[1]).metadata
    assert (
        told["rebasin.command"] == "merge-driver" and json.loads(told["rebasin.options"])["both"] == "average"
    )
    assert {path.name for path in tmp_path.iterdir()} == {path.name for path in three}


def test_another_output_leaves_ours(three, done, tmp_path):
    before = three[1].read_bytes()
    done("merge-driver", *three, "--both", "sum", "-o", tmp_path / "merged")
    assert three[1].read_bytes() == before
    assert torch.equal(tensors(tmp_path / "merged")["body.weight"], W + 4)


def test_a_conflict_leaves_ours_and_tells_what_can_be_done(three, refused):
    says = (
        "models/a.safetensors: 1 of 3 tensors conflict",
        "body.weight  changed by both",
        "git checkout --ours|--theirs -- models/a.safetensors",
    )
    refused(1, "merge-driver", *three, "7", "models/a.safetensors", "--both", "conflict", says=says)


@pytest.mark.parametrize("name", ["rotary_emb.inv_freq", "fc.indices"])
def test_weights_are_not_mixed_where_one_side_has_another_function(three, refused, done, name):
    table = W + 1 if name.endswith("freq") else torch.arange(4)
    for path, other in zip(three, (table, table, table.flip(0)), strict=True):
        store(path, tensors(path) | {name: other})
    before = three[1].read_bytes()
    refused(
        4, "merge-driver", *three, "7", "models/a.safetensors", says=(name, "git checkout --ours|--theirs")
    )
    told = refused(4, "merge-driver", *three, "7", "models/a.safetensors", says=("other values in",))
    assert "(theirs) than in models/a.safetensors (ours)" in told.err
    assert three[1].read_bytes() == before
    store(three[1], tensors(three[0]))  # which only theirs has changed
    done("merge-driver", *three, "7", "models/a.safetensors")
    assert torch.equal(tensors(three[1])[name], table.flip(0))


@pytest.mark.parametrize(
    ("ours", "theirs", "says"),
    [
        ({"config": '{"act": "relu"}'}, {"config": '{"act": "gelu"}'}, "config.act  is relu in models/"),
        (
            {"mean": "[0.5]", "std": "[0.5]"},
            {"mean": "[0.0]", "std": "[1.0]"},
            "mean  is 0.5 ± 0.5 in models/",
        ),
        (
            {"classes": '["a", "b", "c", "d"]'},
            {"classes": '["b", "a", "c", "d"]'},
            "class 'a'  is 0 in models/",
        ),
    ],
)
def test_weights_are_not_mixed_where_one_side_says_another_function(three, refused, done, ours, theirs, says):
    changed = {"head.weight": W + 4}
    for path, change, said in zip(three, ({}, changed, {}), (ours, ours, theirs), strict=True):
        store(path, tensors(path) | change, **said)
    before = three[1].read_bytes()
    says = says, "(ours)", "(theirs)", "git checkout --ours|--theirs"
    told = refused(4, "merge-driver", *three, "7", "models/a.safetensors", says=says)
    assert "--skip-checks" not in told.err and three[1].read_bytes() == before
    store(three[1], tensors(three[0]), **ours)  # which only theirs has changed
    done("merge-driver", *three, "7", "models/a.safetensors")
    assert torch.equal(tensors(three[1])["head.weight"], W + 2)


def test_without_an_ancestor(three, refused, done):
    three[0].write_bytes(b"")
    refused(
        1, "merge-driver", *three, says=("2 of 3 tensors conflict", "no common ancestor", "rebasin merge")
    )
    done("merge-driver", *three, "--both", "average")


NAMES = (
    "-o.safetensors",
    "-o/{out}",
    "--out={out}",
    "-o",
    "--json",
    "-h",
    "--both=theirs",
    "--nothing",
    "-x",
)


def test_a_file_called_like_an_option_is_a_file(three, tmp_path):
    """Lines as they were configured once, and as they are now: theirs' change is never lost."""
    before = three[1].read_bytes()
    for name in NAMES:
        name = name.format(out=tmp_path / "stolen.safetensors")
        lines = [("merge-driver", "--", *three, "7", name), ("merge-driver", *three, "7", name)]
        lines += [("merge-driver", *three, "7", name, "--both", "average")]
        lines += [("merge-driver", *three, name)] * (name not in ("-o", "--json", "-h", "--both=theirs"))
        for line in lines:
            outcome = rebasin(*line)
            if outcome.code:  # named, and a conflict to git: ours is as it was
                assert outcome.code == 2 and "docs/git.md" in outcome.err, (line, outcome)
                assert three[1].read_bytes() == before
            elif "-h" not in line:
                assert torch.equal(tensors(three[1])["head.weight"], W + 2), line
            three[1].write_bytes(before)
            assert not (tmp_path / "stolen.safetensors").exists(), line


def test_a_path_that_leads_out_of_the_repository_is_none(three, refused, tmp_path):
    for name in ("/etc/x.safetensors", "../x.safetensors", "a/../../x.safetensors", "..\\x.safetensors"):
        refused(2, "merge-driver", *three, "7", name, says="is no path in a repository")
    refused(
        2, "merge-driver", *three, "7", "a", "-o", tmp_path / "x", says="the result is to be where ours is"
    )


def test_nothing_that_is_there_is_replaced_but_ours(three, refused, done, tmp_path):
    refused(2, "merge-driver", *three, "-o", three[2], says="is read by this very command")
    (tmp_path / "mine").write_text("mine")
    refused(2, "merge-driver", *three, "-o", tmp_path / "mine", says="exists")
    (tmp_path / "mine").write_bytes(b"")  # as Git LFS does
    done("merge-driver", *three, "-o", tmp_path / "mine")


def test_what_has_no_end_is_no_empty_ancestor(three, refused, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for base in ("/dev/zero", "/dev/null", tmp_path / "pipe", tmp_path):
        refused(3, "merge-driver", base, *three[1:], "7", "a.safetensors", says="the ancestor")


def test_a_hint_can_be_pasted_into_a_shell(three, refused):
    name = "a $(touch ran);b.safetensors"
    refused(1, "merge-driver", *three, "7", name, "--both", "conflict", says=f"-- '{name}'")


def test_pointers_of_git_lfs_say_what_to_do(three, refused):
    three[2].write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")
    says = ("a.safetensors: git gives pointers of Git LFS", "theirs", "git lfs merge-driver", "docs/git.md")
    refused(2, "merge-driver", *three, "7", "a.safetensors", says=says)


NO_CHECKPOINTS = (b"", b"just some text", b"{}", b"version https://git-lfs.github.com/spec/v1", b"PK\3\4")


def test_no_end_tells_of_a_temporary_name(three, refused, monkeypatch, tmp_path):
    line = ("merge-driver", *three, "7", "models/a.safetensors")

    def ends(code, *more, says="models/a.safetensors"):
        told = refused(code, *line, *more, says=says).err
        assert ".merge_file" not in told and str(tmp_path) not in told, told

    for content in NO_CHECKPOINTS:
        three[2].write_bytes(content)
        ends(2 if content[:1] in (b"{", b"v") else 3)
    store(three[2], BASE | {"body.weight": W / 0})
    ends(3, says="models/a.safetensors (theirs)")
    store(three[2], BASE | {"body.weight": W[:2]})
    ends(1)

    def full(*_, **__):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    store(three[2], BASE | {"body.weight": W + 3})
    monkeypatch.setattr(os, "replace", full)
    ends(5)


def test_files_that_git_does_not_name_are_called_as_they_are(three, refused, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    for path, name in zip(three, "oat", strict=True):
        path.rename(name)
    (tmp_path / "t").write_bytes(b"just some text")
    told = refused(3, "merge-driver", "o", "a", "t").err
    assert told.startswith("rebasin: t is no checkpoint"), told
    told = refused(3, "merge-driver", "o", "a", "t", "7", "m.safetensors").err
    assert told.startswith("rebasin: m.safetensors (theirs) is no checkpoint"), told


@pytest.mark.parametrize(
    "content, code, says",
    [
        (b"just some text\n", 3, "a.safetensors (theirs) is no checkpoint"),
        (b"", 3, "a.safetensors (theirs) is empty"),
        (b'{"weight_map": {}}', 2, "an index of shards is text, which git merges itself"),
    ],
)
def test_what_is_no_checkpoint_is_a_conflict_with_a_reason(three, refused, content, code, says):
    three[2].write_bytes(content)
    refused(code, "merge-driver", *three, "7", "a.safetensors", says=says)


def test_a_file_of_torch_save_is_not_replaced_by_another_format(three, refused):
    with open(three[1], "wb") as file:  # by its name alone torch would not write one without a suffix
        torch.save(BASE, file)
    says = ("a.pt is a file of torch.save", "git checkout --ours|--theirs")
    refused(2, "merge-driver", *three, "7", "a.pt", says=says)


def test_what_is_no_number_is_not_mixed(three, refused):
    store(three[2], BASE | {"body.weight": W / 0})
    refused(3, "merge-driver", *three, "7", "a.safetensors", says=("a.safetensors (theirs)", "body.weight"))


# ------------------------------------------------------------------------------ a repository, with git itself


class Repository:
    def __init__(self, folder):
        self.folder = folder
        driver = f'"{sys.executable}" -m rebasin_cli merge-driver %O %A %B %L %P'
        self.git("init", "-q", "-b", "main")
        for key, value in (
            ("user.name", "a"),
            ("user.email", "a@b"),
            ("commit.gpgsign", "false"),
            ("merge.rebasin.name", "three-way merge of checkpoints"),
            ("merge.rebasin.driver", driver),
        ):
            self.git("config", key, value)
        (folder / ".gitattributes").write_text("*.safetensors merge=rebasin -text -diff\n")

    def git(self, *words, code=0):
        own = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull, "OMP_NUM_THREADS": "1"}
        own |= {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        done = subprocess.run(
            ["git", *words], cwd=self.folder, capture_output=True, text=True, env=os.environ | own
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    def commit(self, message, **named):
        store(self.folder / "model.safetensors", named)
        self.git("add", "-A")
        self.git("commit", "-qm", message)


@pytest.fixture
def repository(tmp_path):
    """Two branches that both changed the body, and one other tensor each.

    Git itself, and rebasin in a process of its own: what is tested is how git calls it.
    """
    folder = tmp_path / "repository"
    folder.mkdir()
    made = Repository(folder)
    made.commit("base", **BASE)
    made.git("checkout", "-qb", "theirs")
    made.commit("theirs", **BASE | {"body.weight": W + 3, "head.weight": W + 2})
    made.git("checkout", "-q", "main")
    made.commit("ours", **BASE | {"body.weight": W + 1, "norm.weight": W + 5})
    return made


@pytest.mark.sweep  # below, git merges files of odd names
@pytest.mark.parametrize("command", ["merge", "rebase"])
def test_git_merges_and_rebases_a_checkpoint(repository, command):
    if command == "merge":
        told = repository.git("merge", "--no-edit", "theirs")
    else:
        repository.git("checkout", "-q", "theirs")
        told = repository.git("rebase", "main")
    assert "tensors merged: 1 averaged, 1 ours, 1 theirs" in told
    merged = tensors(repository.folder / "model.safetensors")
    assert torch.equal(merged["body.weight"], W + 2)
    assert torch.equal(merged["head.weight"], W + 2) and torch.equal(merged["norm.weight"], W + 5)
    assert repository.git("status", "--porcelain") == ""


@pytest.mark.parametrize(
    "name", ["-o{outside}/x.safetensors", pytest.param("-o.safetensors", marks=pytest.mark.sweep)]
)
def test_git_merges_files_that_are_called_like_options(tmp_path, name):
    """With a driver's line without `--`: no file outside is written, no change is lost."""
    outside = tmp_path / "outside"
    repository = Repository(tmp_path)
    names = [name.format(outside=outside)]
    outside.mkdir()
    for branch, change in (("base", {}), ("b", {"head.weight": W + 2}), ("ours", {"body.weight": W + 1})):
        repository.git("checkout", "-q", *(["base"] if branch == "ours" else []), "-b", branch)
        for name in names:
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            store(tmp_path / name, BASE | change)
        repository.git("add", "--", *names, ".gitattributes")
        repository.git("commit", "-qm", "a change")
    told = repository.git("merge", "--no-edit", "b")
    assert told.count("1 theirs") == len(names)
    for name in names:
        merged = tensors(tmp_path / name)
        assert torch.equal(merged["head.weight"], W + 2) and torch.equal(merged["body.weight"], W + 1)
    assert list(outside.iterdir()) == []


@pytest.mark.sweep
def test_git_stops_at_a_conflict_with_ours_in_place(repository):
    repository.git("checkout", "-q", "theirs")
    repository.commit("theirs", **{"body.weight": torch.ones(7), "head.weight": W})
    repository.git("checkout", "-q", "main")
    ours = (repository.folder / "model.safetensors").read_bytes()
    told = repository.git("merge", "--no-edit", "theirs", code=1)
    assert "CONFLICT (content)" in told and "body.weight  changed by both: float32 4 in ours" in told
    assert (repository.folder / "model.safetensors").read_bytes() == ours
    assert repository.git("status", "--porcelain").startswith("UU model.safetensors")
    assert not [path for path in repository.folder.iterdir() if path.name.startswith((".rebasin", ".merge"))]
    repository.git("checkout", "--theirs", "--", "model.safetensors")
    assert tensors(repository.folder / "model.safetensors")["body.weight"].shape == (7,)
