"""Both ranks of test_torchrun.py: several commands one after the other, each going wrong in its own way."""

import contextlib
import errno
import io
import json
import os
import signal
import sys
import time
from unittest import mock

import torch.distributed as dist

from rebasin_cli.__main__ import main
from rebasin_cli.checkpoints.writer import write_safetensors
from rebasin_cli.runtime import launchers

os.chdir(sys.argv[1])
RANK = launchers.place().rank
SEARCH = ("align", "a.safetensors", "b.safetensors", "-o", "out.safetensors")
told = {}


def files():
    return set(os.listdir()) - {"rank0.json", "rank1.json"}


def command(name, *arguments):
    before, err, out, code = files(), io.StringIO(), io.StringIO(), 0
    with contextlib.redirect_stderr(err), contextlib.redirect_stdout(out):
        try:
            main([str(argument) for argument in arguments])
        except SystemExit as stop:
            code = stop.code or 0
    told[name] = [code, err.getvalue(), sorted(files() - before)]
    return out.getvalue()


def at_step(number, action):
    def step(self, task, done, total, detail):
        if done == number:
            action()

    return mock.patch("rebasin_cli.cli.screen.Screen.step", step)


def interrupt():
    raise KeyboardInterrupt


def full(descriptor):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def slowly(end=dist.destroy_process_group):
    end()
    time.sleep(0.3 if RANK == 0 else 0)


def end_as_one():
    """Rank 1 is killed when rank 0 has come as far: what it still had to say would be lost with it."""
    if RANK == 0:
        open("swept", "x").close()
    else:
        while not os.path.exists("swept"):  # the test has a limit of time
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGKILL)


def keep_late(*arguments, **options):
    """torchrun tells rank 0 to stop just as it keeps the search."""
    os.kill(os.getpid(), signal.SIGTERM)
    return write_safetensors(*arguments, **options)


if os.environ.get("KILLED"):
    late = mock.patch("rebasin_cli.commands.verbs.resume.write_safetensors", keep_late)
    with at_step(2, end_as_one), late:
        main(list(SEARCH))

with mock.patch("torch.distributed.destroy_process_group", slowly):  # the other is ahead by then
    command("whole", *SEARCH[:-1], "whole.safetensors")
command("exists", *SEARCH[:-1], "a.safetensors")
command("missing", "align", "a.safetensors", ("b.safetensors", "nowhere.safetensors")[RANK], *SEARCH[3:])
with mock.patch("rebasin_cli.checkpoints.checkpoint.Checkpoint.__getitem__", autospec=True) as read:
    read.side_effect = lambda self, name: self.read(name) + (RANK if self.path.name[0] == "b" else 0)
    command("differ", *SEARCH)
with mock.patch("os.fsync", full):
    command("full", *SEARCH)
command("plan", *SEARCH, "--dry-run")
with at_step(2, interrupt if RANK == 0 else str):
    command("interrupted", *SEARCH)
command("resumed", *SEARCH, "--resume")
EVAL = ("eval", "a.safetensors", "--data", "digits", "--batch-size", "50", "--skip-checks")
told["figures"] = command("measured", *EVAL, "--json")
command("missed", *EVAL, "--gate", "accuracy >= 0.9")
command("others", *EVAL, "--limit", str(100 + RANK))
command("batches", *EVAL, "--batch-size", str(50 + RANK))
command("gates", *EVAL, "--gate", f"accuracy >= 0.{RANK}")
command("against", *EVAL, *("--against", "b.safetensors") * RANK)
command("losses", *EVAL, *("--loss", "torch.nn.functional:cross_entropy") * RANK)
command("commands", *(EVAL if RANK == 0 else SEARCH))
with open(f"rank{RANK}.json", "w") as file:
    json.dump(told, file)
