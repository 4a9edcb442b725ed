"""Since when a file is what it is: by git where git has it so, else by its time."""

import os
import subprocess

import pytest

from rebasin_cli.commands.verbs import before

DAY = "2026-11-20T10:00:00+00:00"
WHO = {f"GIT_{who}_{what}": f"{what}@x" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
WHO |= {"GIT_AUTHOR_DATE": DAY, "GIT_COMMITTER_DATE": DAY}


def git(*words):
    """In processes: it is git that is asked."""
    told = subprocess.run(["git", *words], env=os.environ | WHO, check=True, capture_output=True, text=True)
    return told.stdout.strip()


@pytest.fixture
def report(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before._account.cache_clear()
    path = tmp_path / "report.json"
    path.write_text("{}")
    os.utime(path, (1_764_000_000, 1_764_000_000))
    return path.relative_to(tmp_path)


def test_without_git_it_is_the_files_own_time(report):
    told = before.account(report)
    assert (
        told == "report.json, sha256 44136fa355b3…, last written 2025-11-24 16:00 UTC by the file's own time"
    )
    report.unlink()
    assert before.account(report) == "report.json, which is gone"


def test_a_commit_tells_more_than_the_time_of_a_checkout_but_only_of_this_very_content(report, tmp_path):
    git("init", "-q", ".")
    git("add", "report.json")
    git("commit", "-qm", "good")
    commit = git("rev-parse", "--short", "HEAD")
    git("commit", "-q", "--allow-empty", "-m", "later")
    assert before.account(report).endswith(f", in git since 2026-11-20 (commit {commit})")
    git("clone", "-q", "--depth", "1", f"file://{tmp_path}", "shallow")
    later = git("rev-parse", "--short", "HEAD")
    shallow = before.account(tmp_path / "shallow" / "report.json")
    assert shallow.endswith(f", in git since 2026-11-20 or before (commit {later}, a shallow clone)")
    report.write_text("[]")
    assert "by the file's own time" in before.account(report)


def test_a_name_is_no_pattern(report):
    named = report.rename("report[0-9]*.json")
    git("init", "-q", ".")
    git("add", "--all")
    git("commit", "-qm", "good")
    commit = git("rev-parse", "--short", "HEAD")
    report.with_name("report5.json").write_text("another")
    git("add", "--all")
    git("commit", "-qm", "later")
    assert before.account(named).endswith(f"(commit {commit})")


def test_a_folder_that_is_made_like_a_repository_starts_no_program(report, tmp_path):
    """Whoever makes a folder to be checked out can write its `config`, and sign its commit, too."""
    git("init", "-q", "--bare", ".")
    told = tmp_path / "started"
    program = tmp_path / "program.sh"
    program.write_text(f"#!/bin/sh\ntouch {told}\n")
    program.chmod(0o755)
    for setting in ("core.bare=false", "core.worktree=.", "log.showSignature=true", f"gpg.program={program}"):
        git("config", *setting.split("=", 1))
    git("--git-dir=.", "--work-tree=.", "add", "-f", "report.json")
    tree = git("--git-dir=.", "write-tree")
    signed = f"tree {tree}\nauthor a <a@x> 1 +0000\ncommitter a <a@x> 1 +0000\ngpgsig "
    signature = "-----BEGIN PGP SIGNATURE-----\n \n iQ==\n -----END PGP SIGNATURE-----"
    (tmp_path / "commit").write_text(f"{signed}{signature}\n\nx\n")
    git(
        "--git-dir=.", "update-ref", "HEAD", git("--git-dir=.", "hash-object", "-t", "commit", "-w", "commit")
    )
    assert "by the file's own time" in before.account(report)
    assert not told.exists()
