"""A search that was interrupted is kept whole."""

import json

import pytest
import torch

from rebasin_cli.commands.verbs import resume as keeping
from rebasin_cli.errors import CheckpointError, UsageError
from rebasin_cli.matchers import State


def test_a_kept_search_comes_back_as_it_was(tmp_path):
    output, words, said = tmp_path / "out.safetensors", {"h": 3}, []
    state = State(({"h": torch.tensor([2, 0, 1])},), 4, 0.1 + 0.2, {"attempt": 2, "first": 1 / 3})

    def begun(resume):
        return keeping.resumable(output, {"rebasin.seed": "1"}, words, resume=resume, say=said.append)

    with pytest.raises(KeyboardInterrupt), begun(False) as kept:
        kept.reached(state)
        raise KeyboardInterrupt
    with begun(True) as kept:
        assert torch.equal(kept.start.permutations[0]["h"], state.permutations[0]["h"])
        assert (kept.start.sweep, kept.start.objective, kept.start.notes) == (4, 0.1 + 0.2, state.notes)
    assert "going on after sweep 4" in said and not keeping.state_path(output).exists()


def test_what_a_method_itself_needs_is_kept_too(tmp_path):
    output, words = tmp_path / "out.safetensors", {"h": 3}
    tensors = {
        "dummy.0": torch.randn(5),
        "optimizer.0.step": torch.tensor(7.0),
        "at.0.h": torch.tensor([1, 0, 2]),
    }
    state = State(({"h": torch.arange(3)},), 12, -0.5, {"loss": 0.25}, tensors)
    with (
        pytest.raises(KeyboardInterrupt),
        keeping.resumable(output, {}, words, resume=False, say=print) as kept,
    ):
        kept.reached(state)
        raise KeyboardInterrupt
    with keeping.resumable(output, {}, words, resume=True, say=print) as kept:
        assert kept.start.tensors.keys() == tensors.keys()
        assert all(torch.equal(kept.start.tensors[name], tensors[name]) for name in tensors)


def test_the_state_is_written_after_so_many_steps(tmp_path):
    output, seen = tmp_path / "out.safetensors", []
    with keeping.resumable(output, {}, {"h": 3}, resume=False, say=print, every=5) as kept:
        for step in range(1, 13):
            kept.reached(State(({"h": torch.arange(3)},), step, 0.0, {}, {"x": torch.zeros(1)}))
            seen.append(keeping.state_path(output).exists())
    assert seen == [False] * 4 + [True] * 8 and not keeping.state_path(output).exists()


def test_the_log_of_a_search_that_goes_on_has_every_step_once(tmp_path):
    output, log = tmp_path / "out.safetensors", tmp_path / "log.jsonl"

    def state(step, looked=0):
        notes = {"loss": step / 10, "changed": 0.0, "held_out_loss": 1.0, "held_out_accuracy": 0.5}
        notes |= {"held_out_calibrated": 0.75, "looked": looked}
        return State(({"h": torch.arange(3)},), step, 0.0, notes, {"x": torch.zeros(1)})

    def search(steps, *, resume, killed=False):
        with keeping.resumable(output, {}, {"h": 3}, resume=resume, say=print, every=2, log=log) as kept:
            for step in steps:
                kept.reached(state(step))
                if step == 4:
                    kept.reached(state(step, looked=step))
            if killed:
                keeping.state_path(output).rename(tmp_path / "state")  # nothing else is left of it
        if killed:
            (tmp_path / "state").rename(keeping.state_path(output))

    search([1, 2, 3, 4, 5], resume=False, killed=True)  # the state is that of step 4
    search([5, 6], resume=True)
    rows = [json.loads(line) for line in log.read_text().splitlines()]
    assert [row["step"] for row in rows] == [1, 2, 3, 4, 4, 5, 6]
    assert rows[3] == {"step": 4, "loss": 0.4, "changed": 0.0}
    assert rows[4] == {"step": 4, "held_out_loss": 1.0, "held_out_accuracy": 0.5, "held_out_calibrated": 0.75}
    search([1], resume=False)
    assert len(log.read_text().splitlines()) == 1  # another search, another log


def test_a_log_that_was_cut_off_in_a_line_is_gone_on_with(tmp_path):
    output, log = tmp_path / "out.safetensors", tmp_path / "log.jsonl"

    def interrupted(*, resume):
        with (
            pytest.raises(KeyboardInterrupt),
            keeping.resumable(output, {}, {"h": 3}, resume=resume, say=print, log=log) as kept,
        ):
            step = kept.start.sweep + 1 if kept.start else 1
            kept.reached(State(({"h": torch.arange(3)},), step, 0.0, {"loss": 0.5, "changed": 0.0}))
            raise KeyboardInterrupt

    interrupted(resume=False)
    with log.open("a") as file:
        file.write('{"step": 2, "lo')
    interrupted(resume=True)
    assert [json.loads(line)["step"] for line in log.read_text().splitlines()] == [1, 2]
    for text in ("mine\nand mine\n", "mine"):
        log.write_text(text)
        with pytest.raises(UsageError, match="is not the log of a search"):
            interrupted(resume=True)
        assert log.read_text() == text


def test_a_kept_search_that_was_cut_off_is_said_to_be_begun_anew(tmp_path):
    output = tmp_path / "out.safetensors"
    keeping.state_path(output).write_bytes(b"\x10")
    with (
        pytest.raises(CheckpointError, match="Remove it, and start anew"),
        keeping.resumable(output, {}, {"h": 3}, resume=True, say=print),
    ):
        pass
