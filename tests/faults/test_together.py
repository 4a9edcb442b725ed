"""Ten jobs at once, in processes of their own: in one folder, into one output."""

import contextlib
import os
import signal
import time

import pytest

from rebasin_cli.checkpoints.checkpoint import open_checkpoint

from .cases import hidden, inputs
from .together import at_once, into_one_cache, into_one_folder, into_one_output


@pytest.mark.sweep
def test_ten_jobs_into_one_folder_leave_ten_outputs(tmp_path):
    assert into_one_folder(inputs(tmp_path / "made"), tmp_path / "here") == []


@pytest.mark.sweep
def test_ten_jobs_into_one_output_leave_that_of_one_of_them(tmp_path):
    assert into_one_output(inputs(tmp_path / "made"), tmp_path / "here") == []


@pytest.mark.sweep
def test_of_ten_jobs_with_one_recipe_one_does_a_step_and_the_others_find_it_done(tmp_path):
    assert into_one_cache(inputs(tmp_path / "made"), tmp_path / "here") == []


def test_of_ten_jobs_without_force_one_writes_and_the_others_say_so(tmp_path):
    folder = inputs(tmp_path / "made")
    merge = ("merge", "a.safetensors", "b.safetensors", "--method", "none", "-o", "out.safetensors")
    ended = at_once(folder, [merge] * 10)
    assert sorted(code for code, _ in ended) == [0] + [2] * 9
    assert all("exists" in said for code, said in ended if code)
    assert len(open_checkpoint(folder / "out.safetensors")) and not hidden(folder)


def test_a_run_leaves_alone_what_a_living_one_is_writing(tmp_path):
    folder = inputs(tmp_path / "made")
    child = os.fork()
    if child == 0:  # it stages a file, and waits
        with contextlib.suppress(BaseException):
            from rebasin_cli.checkpoints.stages import staged

            with staged(folder) as stage, stage.open(folder / "slow.safetensors") as file:
                file.write(b"half")
                file.flush()
                time.sleep(60)
        os._exit(0)
    try:
        while len(hidden(folder)) < 2:
            time.sleep(0.01)
        theirs = hidden(folder)
        ((code, said),) = at_once(
            folder, [("merge", "a.safetensors", "b.safetensors", "-o", "out.safetensors")]
        )
        assert code == 0 and "removed" not in said and hidden(folder) == theirs
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    ((code, said),) = at_once(folder, [("merge", "a.safetensors", "b.safetensors", "-o", "new.safetensors")])
    assert code == 0 and hidden(folder) == []
    assert "removed 1 unfinished file of a run that was killed (4 bytes)" in said
