"""Whole workflows with the real rebasin: the main branch, a release, a merge in git, GitLab."""

import shutil
import subprocess

import pytest
import torch
from safetensors.torch import load_file, save_file

from . import cases, junit
from .runner import EXAMPLES, Server, Shell, read

pytestmark = pytest.mark.sweep  # every one of them starts several processes


def git(*words, folder):
    done = subprocess.run(
        ["git", "-c", "user.name=t", "-c", "user.email=t@t", *words],
        cwd=folder,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_main_branch_promotes_its_report_and_the_next_one_is_measured_against_it(
    repository, rebasin, tmp_path
):
    origin = tmp_path / "origin.git"
    git("init", "--quiet", "--bare", "--initial-branch=main", str(origin), folder=tmp_path)
    work = shutil.copytree(repository, tmp_path / "work")
    git("init", "--quiet", "--initial-branch=main", folder=work)
    git("add", ".", folder=work)
    git("commit", "--quiet", "-m", "models", folder=work)
    git("push", "--quiet", str(origin), "main", folder=work)
    server = Server(Shell(tmp_path / "home", rebasin), origin)
    job = server.job(cases.workflow("github_main.yml"))
    assert job.status == "success", job.log
    assert "baseline.json" in git("show", "--stat", "--name-only", "main", folder=origin)
    again = server.job(cases.workflow("github_main.yml"))
    assert again.status == "success", again.log
    assert len(git("log", "--oneline", "main", folder=origin).splitlines()) in (2, 3)


def test_a_release_is_published_after_its_gates_and_not_otherwise(repository, rebasin, tmp_path):
    work = shutil.copytree(repository, tmp_path / "work")
    (work / "merge" / "lock.txt").write_text("")
    server = Server(Shell(tmp_path / "home", rebasin), work)
    merge = server.job(cases.workflow("github_release.yml"))
    assert merge.status == "success", merge.log
    released = server.job(cases.workflow("github_release.yml", "release"))
    assert released.status == "success", released.log
    call = server.shell.calls.read_text().splitlines()[-1]
    assert "release create v1 --repo org/models --verify-tag --notes-file notes/summary.md" in call
    for name in ("merged.safetensors", "merged.intoto.json", "README.md", "report/report.json"):
        assert f"release/{name}" in call and (released.workspace / "release" / name).exists()
    server.artifacts.clear()
    missed = server.job(
        cases.workflow("github_release.yml"), inputs={"arguments": "--set 'steps.path.gate=accuracy >= 1'"}
    )
    assert missed.status == "failed" and "release" not in server.artifacts


def test_a_merge_of_branches_in_a_job_merges_checkpoints(repository, rebasin, tmp_path):
    origin, work = tmp_path / "origin.git", tmp_path / "work"
    git("init", "--quiet", "--bare", "--initial-branch=main", str(origin), folder=tmp_path)
    work.mkdir()
    git("init", "--quiet", "--initial-branch=main", folder=work)
    git("remote", "add", "origin", str(origin), folder=work)
    models = repository / "merge" / "models"
    (work / ".gitattributes").write_text("*.safetensors merge=rebasin -text\n")

    def commit(model, branch):
        shutil.copy(models / model, work / "model.safetensors")
        git("add", ".", folder=work)
        git("commit", "--quiet", "-m", branch, folder=work)

    commit("a.safetensors", "main")
    git("checkout", "--quiet", "-b", "change", folder=work)
    _scaled(work / "model.safetensors", 1.5)
    git("commit", "--quiet", "-am", "change", folder=work)
    git("checkout", "--quiet", "main", folder=work)
    _scaled(work / "model.safetensors", 0.5)
    git("commit", "--quiet", "-am", "on main", folder=work)
    git("push", "--quiet", "origin", "main", "change", folder=work)
    server = Server(Shell(tmp_path / "home", rebasin), origin)
    job = server.job(cases.workflow("github_merge.yml"), given={"branch": "change"})
    assert job.status == "success", job.log
    assert len(git("rev-list", "--merges", "change", folder=origin).splitlines()) == 1
    git("fetch", "--quiet", folder=work)
    git("checkout", "--quiet", "--force", "origin/change", folder=work)
    merged, before = load_file(work / "model.safetensors"), load_file(models / "a.safetensors")
    assert all(torch.allclose(tensor, before[name]) for name, tensor in merged.items())


def _scaled(path, factor):
    save_file({name: tensor * factor for name, tensor in load_file(path).items()}, path)


def test_the_gitlab_jobs_run(repository, rebasin, tmp_path):
    told = read(EXAMPLES / "gitlab.yml")
    merge, publish = told["merge"], told["publish"]
    work = shutil.copytree(repository, tmp_path / "work")
    shell = Shell(tmp_path / "home", rebasin)
    code, log = shell.run("\n".join([*merge["before_script"], *merge["script"]]), work)
    assert code == 0, log
    for path in [*merge["artifacts"]["paths"], merge["artifacts"]["reports"]["junit"]]:
        assert (work / path).exists()
    assert junit.counts(work / "merge" / "gates.xml")["failures"] == 0
    shell.program("curl", f'#!/bin/sh\nprintf "%s\\n" "$*" >> {shell.calls}\n')
    variables = {
        "CI_API_V4_URL": "https://x",
        "CI_PROJECT_ID": "1",
        "CI_COMMIT_SHORT_SHA": "c0",
        "CI_JOB_TOKEN": "t",
    }
    code, log = shell.run("\n".join(publish["script"]), work, **variables)
    assert (
        code == 0 and shell.calls.read_text().count("https://x/projects/1/packages/generic/merged/c0/") == 3
    )
    shutil.rmtree(work / "merge" / "out")
    shell.calls.unlink()
    assert shell.run("\n".join(publish["script"]), work, **variables)[0] == 0 and not shell.calls.exists()
