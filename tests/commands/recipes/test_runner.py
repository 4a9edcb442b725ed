"""Steps in their order, and the cache: what is run again, what is not, and what is left after a failure."""

import itertools
import json
import os
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from rebasin_cli.checkpoints.checkpoint import open_checkpoint
from rebasin_cli.checkpoints.locate import ToCome
from rebasin_cli.checkpoints.stages import staged
from rebasin_cli.checkpoints.writer import write_safetensors
from rebasin_cli.commands.recipes import dry_runs, records, runner
from rebasin_cli.commands.recipes.cache import Cache
from rebasin_cli.commands.recipes.runner import How, Performed
from rebasin_cli.errors import GateNotMet, Interrupted, OutputExists, SpecError, UsageError
from rebasin_cli.session.listener import Listener

CHAIN = """
steps:
  - align: {models: [a.safetensors, b.safetensors], out: x.safetensors}
  - merge: {models: [a.safetensors, align], out: y.safetensors}
  - merge: {models: [a.safetensors, b.safetensors], out: z.safetensors}
"""


def put(path, text):
    """As every command writes."""
    with staged(path.parent) as stage, stage.open(path) as file:
        file.write(text.encode())


class Commands:
    """Stands for the command line: writes what it read into its output, and remembers what it was asked."""

    def __init__(self, **errors):
        self.lines, self.errors = [], errors

    def __call__(self, step, more):
        line = step.line(**more)
        self.lines.append(" ".join(line))
        out = Path(line[line.index("--out") + 1])
        error = self.errors.get(out.stem)
        if error is not None and not isinstance(error, GateNotMet):
            return Performed({}, error)
        put(out, " ".join(line[1:3]) + "".join(Path(name).read_text() for name in line[1:3]))
        beside = [out.with_name(f"{out.stem}.perm.safetensors")] if line[0] == "align" else []
        for path in beside:
            put(path, "p")
        return Performed({"written": [str(out), *map(str, beside)]}, error)


@pytest.fixture
def run(recipe, tmp_path):
    """Run a recipe; what became of its steps, and the lines that were run."""

    def run(text=CHAIN, how=How(), say=lambda text: None, cache=None, **errors):  # noqa: B008
        made, problems = recipe(text)
        assert problems == []
        commands = Commands(**errors)
        kept = Cache(cache or tmp_path / ".rebasin", say)
        done = runner.run(made.steps, kept, commands, Listener(say), how)
        return [outcome.status for outcome in done], [line.split()[0] for line in commands.lines], done

    return run


def test_what_nothing_changed_for_is_not_run_again(run):
    assert run()[:2] == (["done"] * 3, ["align", "merge", "merge"])
    statuses, lines, done = run()
    assert statuses == ["unchanged"] * 3 and lines == []
    assert set(done[0].outputs) == {"x.safetensors", "x.perm.safetensors"}


def test_no_cache_runs_everything_and_replaces_its_own_files(run):
    run()
    assert run(how=How(again=True))[:2] == (["done"] * 3, ["align", "merge", "merge"])


def test_a_changed_input_runs_what_depends_on_it(run, tmp_path):
    run()
    (tmp_path / "b.safetensors").write_text("other")
    assert run()[0] == ["done"] * 3
    (tmp_path / "b.safetensors").write_text(
        "b"
    )  # as before: the same digest, but other outputs lie there now
    assert run()[0] == ["done"] * 3


def test_a_touched_input_of_the_same_content_runs_nothing(run, tmp_path):
    run()
    content = (tmp_path / "b.safetensors").read_text()
    (tmp_path / "b.safetensors").unlink()
    (tmp_path / "b.safetensors").write_text(content)
    assert run()[0] == ["unchanged"] * 3


def test_a_changed_option_runs_its_step_and_those_whose_inputs_change_by_it(run):
    run()
    text = CHAIN.replace("out: z", "share: 0.5, out: z")
    assert run(text)[0] == ["unchanged", "unchanged", "done"]


def test_another_version_of_the_program_runs_everything(run, monkeypatch):
    run()
    monkeypatch.setattr("rebasin_cli.commands.recipes.cache.versions", lambda: {"rebasin": "99"})
    assert run()[0] == ["done"] * 3


@pytest.mark.parametrize("lost", ["x.safetensors", "x.perm.safetensors"])
def test_a_cleaned_up_half_is_made_again(run, tmp_path, lost):
    run()
    (tmp_path / lost).unlink()
    said = []
    assert run(say=said.append)[0] == ["done", "unchanged", "unchanged"]
    assert f"align: {lost} is gone, so it is run again" in said


def test_an_output_that_somebody_changed_is_not_overwritten(run, tmp_path):
    run()
    (tmp_path / "z.safetensors").write_text("edited by hand")
    statuses, _, done = run()
    assert statuses == ["unchanged", "unchanged", "failed"]
    assert isinstance(done[2].error, OutputExists) and "no recipe made it" in str(done[2].error)
    assert run(how=How(force=True))[0] == ["unchanged", "unchanged", "done"]


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"outputs": 3}', "\xff"])
def test_a_damaged_record_is_none(run, tmp_path, damage):
    run()
    for record in (tmp_path / ".rebasin").rglob("*.json"):
        record.write_bytes(damage.encode("latin-1"))
    for name in "xyz":
        (tmp_path / f"{name}.safetensors").unlink()
    (tmp_path / "x.perm.safetensors").unlink()
    assert run()[0] == ["done"] * 3


def test_a_record_is_one_of_its_kind_and_of_its_own_name(run, tmp_path):
    """Sealed all the same: the seal is of what was cut off, and no secret."""
    run()
    steps = sorted((tmp_path / ".rebasin/steps").iterdir())
    for kind in ("steps", "files", "started"):
        record = min((tmp_path / ".rebasin" / kind).iterdir())
        whole = json.loads(record.read_text())
        whole.pop("seal")
        for key, odd in itertools.product(whole, (None, 5, [[]], {"a": 1})):
            changed = {**whole, key: odd}
            record.write_text(json.dumps({**changed, "seal": records._seal(changed)}))
            assert set(run()[0]) <= {"done", "unchanged"}, (kind, key, odd)
    content = steps[0].read_text()
    for other in steps:
        other.write_text(content)
    assert run()[0].count("unchanged") <= 1


def test_after_a_failure_nothing_more_is_run(run, tmp_path):
    statuses, lines, done = run(y=SpecError("does not fit"))
    assert statuses == ["done", "failed", "not run"] and lines == ["align", "merge"]
    error = runner.failure(done, [])
    assert isinstance(error, SpecError) and error.message == "line 4, step merge: does not fit"
    assert run()[0] == ["unchanged", "done", "done"]


def test_a_gate_that_is_not_met_ends_the_run_unless_it_shall_go_on(run):
    missed = {"x": GateNotMet("too high")}
    assert run(**missed)[0] == ["gate not met", "not run", "not run"]
    assert run(how=How(keep_going=True), **missed)[0] == ["gate not met", "not run", "done"]


def test_a_gate_that_was_missed_is_not_kept(run):
    run(x=GateNotMet("too high"))
    assert run(x=GateNotMet("too high"))[1] == ["align"]


def test_what_a_missed_gate_left_does_not_stop_the_next_run(run):
    run(x=GateNotMet("too high"))
    assert run()[0] == ["done"] * 3


def test_files_that_came_back_from_a_ci_cache_are_still_its_own(run, tmp_path):
    run()
    for path in tmp_path.glob("*.safetensors"):
        path.rename(tmp_path / "kept")
        path.write_bytes((tmp_path / "kept").read_bytes())  # another inode, other times
        (tmp_path / "kept").unlink()
    assert run()[0] == ["unchanged"] * 3
    assert run(CHAIN.replace("out: z", "share: 0.5, out: z"))[0] == ["unchanged", "unchanged", "done"]


def test_a_folder_may_move_with_its_cache(run, tmp_path, monkeypatch):
    run()
    moved = tmp_path / "elsewhere"
    moved.mkdir()
    for path in [*tmp_path.glob("*.safetensors"), tmp_path / ".rebasin"]:
        path.rename(moved / path.name)
    monkeypatch.chdir(moved)
    cache = Path(".rebasin")
    text = CHAIN.replace("out: z", "share: 0.5, out: z")
    assert run(CHAIN, cache=cache)[0] == ["unchanged"] * 3
    assert run(text, cache=cache)[0] == ["unchanged", "unchanged", "done"]


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_run_that_is_killed_is_run_again(recipe, tmp_path, when):
    class Killed(BaseException):
        pass

    class Kill(Commands):
        def __call__(self, step, more):
            if when == "after":
                super().__call__(step, more)
            raise Killed

    made, _ = recipe(CHAIN)
    cache = Cache(tmp_path / ".rebasin")
    cache._settle = lambda paths: None  # a killed process does nothing more
    with pytest.raises(Killed):
        runner.run(made.steps, cache, Kill(), Listener(), How())
    again = runner.run(made.steps, Cache(tmp_path / ".rebasin"), Commands(), Listener(), How())
    assert [outcome.status for outcome in again] == ["done"] * 3


def test_a_file_of_the_users_own_after_a_kill_is_not_taken_for_one_of_ours(recipe, tmp_path):
    class Killed(BaseException):
        pass

    class Kill(Commands):
        def __call__(self, step, more):
            super().__call__(step, more)
            raise Killed

    made, _ = recipe(CHAIN)
    cache = Cache(tmp_path / ".rebasin")
    cache._settle = lambda paths: None
    with pytest.raises(Killed):
        runner.run(made.steps, cache, Kill(), Listener(), How())
    (tmp_path / "x.safetensors").unlink()
    (tmp_path / "x.safetensors").write_text("mine")
    (done, *_) = runner.run(made.steps, Cache(tmp_path / ".rebasin"), Commands(), Listener(), How())
    assert done.status == "failed" and isinstance(done.error, OutputExists)
    assert (tmp_path / "x.safetensors").read_text() == "mine"


def test_what_is_being_made_stays_ours_while_others_read_it_and_is_never_without_a_record(
    tmp_path, monkeypatch
):
    """A kill may come between any two records."""
    cache, path = Cache(tmp_path / ".rebasin"), tmp_path / "out"
    with monkeypatch.context() as patch, cache.making([path]):
        put(path, "made")
        cache.digest(path)  # a step that reads it asks for its key
        assert cache.is_ours(path)
        patch.setattr(Cache, "_settle", lambda *_: None)
    kept = Cache.put

    def looked_at(self, *record):
        assert cache.is_ours(path)
        kept(self, *record)

    with monkeypatch.context() as patch:
        patch.setattr(Cache, "put", looked_at)
        patch.setattr(Cache, "drop", lambda *_: pytest.fail("a kill here would lose it"))
        cache._settle([path])
    assert cache.is_ours(path)
    path.write_text("somebody's")
    assert not cache.is_ours(path)


@pytest.mark.parametrize("swap", ["file", "link", None])
def test_what_is_put_in_the_place_of_a_file_that_is_moved_is_not_taken_for_it(tmp_path, monkeypatch, swap):
    cache, replace = Cache(tmp_path / ".rebasin"), os.replace
    path, to, other = (tmp_path / name for name in ("x", "y", "z"))
    path.write_text("our")
    other.write_text("his")
    ours = cache.made(path)

    def replaced(source, target):
        if source == path and swap:
            path.unlink()
            path.symlink_to(other) if swap == "link" else replace(other, path)
        replace(source, target)

    monkeypatch.setattr(os, "replace", replaced)
    cache.move(path, to)
    assert cache.is_ours(to) == (swap is None) and (cache.digest(to) == ours) == (swap is None)


def test_an_input_that_changes_while_its_step_runs_fails_it(recipe, tmp_path):
    made, _ = recipe(CHAIN)

    class Changing(Commands):
        def __call__(self, step, more):
            (tmp_path / "b.safetensors").write_text(f"changed {len(self.lines)}")
            return super().__call__(step, more)

    cache = Cache(tmp_path / ".rebasin")
    done = runner.run(made.steps, cache, Changing(), Listener(), How())
    assert [outcome.status for outcome in done] == ["failed", "not run", "not run"]
    assert "b.safetensors was changed while the step ran" in str(done[0].error)
    assert list((tmp_path / ".rebasin").rglob("steps/*")) == []
    done = runner.run(made.steps, cache, Commands(), Listener(), How())
    assert [outcome.status for outcome in done] == ["done"] * 3


def test_a_pin_holds_when_the_step_runs(recipe, tmp_path):
    import hashlib

    digest = hashlib.sha256(b"b").hexdigest()
    made, problems = recipe(
        f"inputs: {{b: {{path: b.safetensors, sha256: {digest}}}}}\n"
        "steps: [{align: {models: [a.safetensors, b], out: x.safetensors}}]"
    )
    assert problems == []
    (tmp_path / "b.safetensors").write_text("replaced")
    (done,) = runner.run(made.steps, Cache(tmp_path / ".rebasin"), Commands(), Listener(), How())
    assert done.status == "failed" and "is not the file that is pinned" in str(done.error)


def test_the_digests_of_what_was_read_are_kept_with_the_step(run, tmp_path):
    import hashlib

    done = run()[2]
    (tmp_path / "a.safetensors").write_text("later")
    assert done[0].reads["a.safetensors"] == hashlib.sha256(b"a").hexdigest()


def test_a_cache_that_cannot_be_written_only_forgets(run, tmp_path):
    (tmp_path / ".rebasin").write_text("a file")
    said = []
    assert run(say=said.append)[0] == ["done"] * 3
    assert len([text for text in said if "cannot be written" in text]) == 1


def test_records_that_were_changed_are_none(run, tmp_path):
    run()
    odd = ["", "null", "[]", "{}", "[" * 100_000, "NaN", '{"outputs": 5, "result": null, "seal": 1}']
    odd += ['{"stat": 5, "sha256": [], "made": {}, "seal": null}']
    for content in odd:
        for path in (tmp_path / ".rebasin").rglob("*.json"):
            path.write_text(content)
        assert run(how=How(force=True))[0] == ["done"] * 3, content
    for path in (tmp_path / ".rebasin").rglob("*.json"):
        path.unlink()
        os.mkfifo(path)  # one that waits for ever
    assert run(how=How(force=True))[0] == ["done"] * 3


def test_a_cache_is_a_folder_of_its_own(tmp_path):
    (tmp_path / ".gitignore").write_text("*.pt\n")
    with pytest.raises(UsageError, match="a cache is a folder of its own"):
        Cache(tmp_path).check()
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / ".gitignore").write_text("*.pt\n")
    (tmp_path / "new" / "steps").symlink_to("..")
    with pytest.raises(UsageError, match="a link in it"):
        Cache(tmp_path / "new").check()
    (tmp_path / "new" / "steps").unlink()
    Cache(tmp_path / "new").digest(tmp_path / "a.safetensors")
    assert (tmp_path / "new" / "files").is_dir()
    assert (tmp_path / "new" / ".gitignore").read_text() == "*.pt\n"


def test_jobs_that_write_the_same_file_by_other_commands_wait_for_one_another(recipe, tmp_path):
    """Needs a thread: a lock is of one job."""
    made, _ = recipe("steps: [{align: {models: [a.safetensors, b.safetensors], out: x.safetensors}}]")
    other, _ = recipe("steps: [{merge: {models: [a.safetensors, b.safetensors], out: ./x.safetensors}}]")
    third, _ = recipe("steps: [{merge: {models: [a.safetensors, b.safetensors], out: y.safetensors}}]")
    cache, said = Cache(tmp_path / ".rebasin"), []

    def job(steps):
        with cache.alone(steps[0], said.append):
            pass

    with cache.alone(made.steps[0], said.append):
        threads = [threading.Thread(target=job, args=(one.steps,)) for one in (other, third)]
        for thread in threads:
            thread.start()
        threads[1].join(10)
        assert not threads[1].is_alive()
        threads[0].join(0.3)
        assert threads[0].is_alive()
    threads[0].join(10)
    assert ["waiting" in text for text in said] == [True]


def test_an_index_counts_with_its_shards(run, tmp_path):
    index = {"weight_map": {"w": "s1.safetensors", "v": "s2.safetensors", "u": "within/s3.safetensors"}}
    (tmp_path / "m.safetensors.index.json").write_text("\ufeff" + json.dumps(index), encoding="utf-8")
    (tmp_path / "within").mkdir()
    for name in ("s1", "s2", "within/s3"):
        (tmp_path / f"{name}.safetensors").write_text(name)
    text = "steps: [{merge: {models: [m.safetensors.index.json, b.safetensors], out: o.safetensors}}]"
    assert run(text)[0] == ["done"] and run(text)[0] == ["unchanged"]
    for name in ("s2", "within/s3"):
        (tmp_path / f"{name}.safetensors").write_text("other")
        assert run(text)[0] == ["done"] and run(text)[0] == ["unchanged"]


def test_metadata_beside_a_torch_file_count_with_it(run, tmp_path):
    about = tmp_path / "m.pt.rebasin.json"
    for path in (tmp_path / "m.pt", about):
        path.write_text("m")
    text = "steps: [{merge: {models: [m.pt, b.safetensors], out: o.safetensors}}]"
    assert run(text)[0] == ["done"] and run(text)[0] == ["unchanged"]
    about.write_text("other")
    assert run(text)[0] == ["done"] and run(text)[0] == ["unchanged"]
    about.unlink()
    assert run(text)[0] == ["done"] and run(text)[0] == ["unchanged"]


def test_ctrl_c_goes_through(run):
    with pytest.raises(Interrupted):
        run(y=Interrupted("interrupted"))
    assert run()[0] == ["unchanged", "done", "done"]


def test_an_interrupted_search_goes_on_if_it_is_of_this_very_step_and_begins_anew_otherwise(recipe, tmp_path):
    made, _ = recipe(CHAIN)
    cache, commands = Cache(tmp_path / ".rebasin"), Commands(x=Interrupted("interrupted"))
    with pytest.raises(Interrupted):
        runner.run(made.steps, cache, commands, Listener(), How())
    (tmp_path / "x.search.safetensors").write_text("state")
    same, other = Commands(), Commands()
    changed, _ = recipe(CHAIN.replace("out: x", "seed: 3, out: x"))
    runner.run(changed.steps[:1], cache, other, Listener(), How())
    assert "--force" in other.lines[0] and "--resume" not in other.lines[0]
    with pytest.raises(Interrupted):
        runner.run(made.steps, cache, Commands(x=Interrupted("interrupted")), Listener(), How())
    runner.run(made.steps[:1], cache, same, Listener(), How())
    assert "--resume" in same.lines[0]


def test_a_search_that_no_recipe_began_is_left_alone(run, tmp_path):
    (tmp_path / "x.search.safetensors").write_text("state")
    statuses, lines, done = run()
    assert statuses == ["failed", "not run", "not run"] and lines == []
    assert isinstance(done[0].error, UsageError) and "no recipe began" in str(done[0].error)


def test_two_jobs_at_once_do_a_step_once(recipe, tmp_path):
    """Needs threads: one job waits for the other's lock."""
    made, _ = recipe(CHAIN)
    begun, go_on, said = threading.Event(), threading.Event(), []

    class Slow(Commands):
        def __call__(self, step, more):
            begun.set()
            go_on.wait(10)
            return super().__call__(step, more)

    slow, quick = Slow(), Commands()
    results = []

    def job(commands, say):
        cache = Cache(tmp_path / ".rebasin")
        results.append(runner.run(made.steps[:1], cache, commands, Listener(say), How()))

    first = threading.Thread(target=job, args=(slow, lambda text: None))
    first.start()
    assert begun.wait(10)

    def say(text):
        said.append(text)
        if "waiting" in text:
            go_on.set()

    job(quick, say)
    first.join(10)
    assert len(slow.lines) == 1 and quick.lines == [] and any("waiting for it" in text for text in said)
    assert sorted(outcome.status for (outcome,) in results) == ["done", "unchanged"]


def test_a_record_says_what_was_run(run, tmp_path):
    run()
    records = [json.loads(path.read_text()) for path in (tmp_path / ".rebasin" / "steps").glob("*.json")]
    assert {record["step"] for record in records} == {"align", "merge", "merge-2"}
    assert (tmp_path / ".rebasin" / ".gitignore").read_text() == "*\n"


def test_everything_is_checked_before_anything_runs(recipe, tmp_path):
    (tmp_path / "y.safetensors").write_text("mine")
    (tmp_path / "z.safetensors").write_text("mine")
    made, _ = recipe(CHAIN)
    commands = Commands()
    with pytest.raises(OutputExists) as refused:
        dry_runs.check(made.steps, Cache(tmp_path / ".rebasin"), commands, How())
    assert [problem.partition(" exists")[0] for problem in refused.value.problems] == [
        "line 4, step merge: y.safetensors",
        "line 5, step merge-2: z.safetensors",
    ]
    assert commands.lines == []


def test_folders_that_were_made_for_a_plan_are_gone_again(tmp_path):
    with runner.folders([tmp_path / "x" / "y" / "z"], keep=False):
        assert (tmp_path / "x" / "y").is_dir()
    assert not (tmp_path / "x").exists()
    with runner.folders([tmp_path / "x" / "y" / "z"], keep=True):
        pass
    assert (tmp_path / "x" / "y").is_dir()
    with pytest.raises(UsageError, match="there is a file of that name"):
        with runner.folders([tmp_path / "a.safetensors" / "z"], keep=True):
            pass


def test_what_is_of_this_run_is_what_was_made_or_missed_its_gate(recipe):
    step = recipe(CHAIN)[0].steps[0]
    states = ("done", "unchanged", "gate not met", "failed", "not run")
    assert [runner.Outcome(step, status).ended for status in states] == [True, True, True, False, False]


def test_a_key_is_of_the_names_in_folders_and_of_whose_recipe_it_is(recipe, tmp_path):
    (tmp_path / "pictures").mkdir()
    step = replace(recipe(CHAIN)[0].steps[0], listed=(tmp_path / "pictures",))
    cache, stranger = (Cache(tmp_path / ".rebasin", stranger=whose) for whose in (False, True))
    before = cache.key(step)
    assert cache.key(step) == before != stranger.key(step)
    (tmp_path / "pictures" / "new.png").write_text("x")
    assert cache.key(step) != before


@pytest.mark.parametrize(("command", "opens"), [({"device"}, False), ({"dry_run", "device"}, True)])
def test_only_a_step_that_plans_opens_models_that_are_there_before_any_runs(command, opens, tmp_path):
    """What has no dry run would measure them; what is to come is opened by none."""
    there, coming = tmp_path / "there.safetensors", tmp_path / "coming.safetensors"
    write_safetensors(there, {"w": torch.ones(2)})
    takes = SimpleNamespace(has=command.__contains__, takes_models=True)
    step = SimpleNamespace(command=takes, reads=[there], writes=[])

    def perform(step_, asked):
        try:
            assert open_checkpoint(there) and opens
            open_checkpoint(coming)
        except ToCome as error:
            return SimpleNamespace(error=error)
        raise AssertionError("it was opened")

    assert dry_runs._judged(step, {os.path.realpath(coming)}, perform) is None
