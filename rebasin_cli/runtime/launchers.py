"""Who started this process beside others, and which of them it is: by the variables that launchers set.

torchrun names everything. Slurm's `srun`, Open MPI and launchers that speak PMI (MPICH, Intel MPI) name the
processes; where they meet is `MASTER_ADDR` and `MASTER_PORT`, or follows from what they say of the job.
"""

from __future__ import annotations

import math
import os
import re
import zlib
from dataclasses import dataclass
from datetime import timedelta

from ..errors import UsageError

PORTS = range(15_000, 30_000)  # of jobs: below those that systems give to outgoing connections
NUMBERS = r"\d{1,9}(?:-\d{1,9})?"  # of machines, one or some in a row, in Slurm's short form of their names
MACHINES = rf"(?:[^,\[\]]|\[{NUMBERS}(?:,{NUMBERS})*\])+"


@dataclass(frozen=True)
class Launcher:
    """The names of its variables; how to start one process alone is told where processes wait in vain."""

    name: str
    size: str
    rank: str
    local_rank: str
    local_size: str
    alone: str

    @property
    def said(self) -> str:
        """How many processes there are, as it says; "" where it says nothing."""
        return os.environ.get(self.size, "")

    @property
    def here(self) -> int:
        """The number of this process among those on its machine; 0 where nobody says."""
        return _number(self, self.local_rank, default=0)


TORCHRUN = Launcher("torchrun", "WORLD_SIZE", "RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "unset WORLD_SIZE")
OPEN_MPI = Launcher(
    "Open MPI",
    "OMPI_COMM_WORLD_SIZE",
    "OMPI_COMM_WORLD_RANK",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "OMPI_COMM_WORLD_LOCAL_SIZE",
    "mpirun -n 1",
)
SLURM = Launcher("Slurm", "SLURM_STEP_NUM_TASKS", "SLURM_PROCID", "SLURM_LOCALID", "", "srun -n1")
PMI = Launcher("PMI", "PMI_SIZE", "PMI_RANK", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", "mpiexec -n 1")


@dataclass(frozen=True)
class Place:
    """This process is number `rank` of `size`; `local_size` are on its machine.

    `job` tells runs apart that meet at one port: what those of one start have in common, "" if nobody says.
    """

    launcher: Launcher
    rank: int
    size: int
    local_size: int
    job: str

    @property
    def patience(self) -> timedelta:
        """Between the first process and the last one. What a job only inherits is soon told."""
        return timedelta(minutes=10) if self.launcher is TORCHRUN else timedelta(seconds=60)

    @property
    def hint(self) -> str:
        together = "Start all of them together, on machines that reach one another"
        if self.launcher is TORCHRUN:
            return together
        return (
            f"{self.launcher.name} says {self.size} processes. {together}; one alone: {self.launcher.alone}"
        )

    def meeting(self) -> tuple[str, int]:
        """The address and the port at which the first one waits. Raises UsageError where nothing says so."""
        return _address(self), _port(self)


def found() -> Launcher | None:
    """Who started several processes, of whom this is one; None where it is alone.

    Whoever sets RANK and WORLD_SIZE means this program. Slurm's numbers are those of the daemons where mpirun
    starts one on each machine, so that the numbers of MPI go before them.
    """
    said = TORCHRUN.said
    if said == "1" or (said and "RANK" in os.environ):
        return TORCHRUN if said != "1" else None
    for launcher in (OPEN_MPI, SLURM, PMI):
        if launcher is SLURM and PMI.said not in ("", SLURM.said):
            continue
        if launcher.said:
            if launcher.said != "1":
                return launcher
            if launcher is not SLURM:
                return None
    return TORCHRUN if said or os.environ.get("RANK", "").isdigit() else None


def who() -> str:
    """What a message of one of several processes begins with; "" for one that is alone."""
    launcher = found()
    if launcher is None or not launcher.said or not (rank := os.environ.get(launcher.rank)):
        return ""
    return f"rank {rank} of {launcher.said}: "


def by_torchrun() -> bool:
    """Whether several were started for one work; tasks of a job may each have files of their own.

    A rank without a number of processes says nothing of others: things besides launchers are called RANK.
    """
    return found() is TORCHRUN and bool(TORCHRUN.said)


def is_first() -> bool:
    """Whether this process prints and writes what each finds by itself: torchrun's first one alone does."""
    return not by_torchrun() or not os.environ.get(TORCHRUN.rank, "").strip("0")


def place() -> Place:
    """Where this process stands among several. Raises UsageError with what is missing or contradicts."""
    launcher = found()
    assert launcher is not None, "found() says whether there are others"
    size, rank = _number(launcher, launcher.size), _number(launcher, launcher.rank)
    world = os.environ.get("WORLD_SIZE", "")
    if world not in ("", str(size)):
        raise UsageError(
            f"WORLD_SIZE is {world}, but {launcher.size} is {size}",
            hint=f"Unset WORLD_SIZE, which {launcher.name} does not need, or set RANK, too",
        )
    if not rank < size:
        raise UsageError(
            f"{launcher.rank} is {rank}, and {launcher.size} is {size}: numbers begin at 0",
            hint=f"Start with {launcher.name}, which sets them, or unset them",
        )
    local_size = _tasks_here() if launcher is SLURM else _number(launcher, launcher.local_size, default=1)
    return Place(launcher, rank, size, local_size, _job(launcher))


def _number(launcher: Launcher, name: str, *, default: int | None = None) -> int:
    value = os.environ.get(name, "")
    if _counts(value):
        return int(value)
    if not value and default is not None:
        return default
    beside = launcher.rank if name == launcher.size else launcher.size
    raise UsageError(
        f"{beside} is {os.environ.get(beside) or 'not set'}, but {name} is {value or 'not set'}",
        hint=f"Start with {launcher.name}, which sets them all, or unset {beside}",
    )


def _counts(value: str) -> bool:
    """Whether it is a number of processes or machines; what is longer is none."""
    return value.isascii() and value.isdigit() and len(value) < 10


def _address(place: Place) -> str:
    launcher = place.launcher
    if given := os.environ.get("MASTER_ADDR"):
        return given
    if launcher is SLURM and (names := os.environ.get("SLURM_STEP_NODELIST")):
        return first_host(names)
    if launcher is not TORCHRUN and place.local_size == place.size:
        return "127.0.0.1"
    raise _missing(launcher, "MASTER_ADDR")


def _port(place: Place) -> int:
    launcher, given = place.launcher, os.environ.get("MASTER_PORT", "")
    if given:
        if _counts(given) and 0 < int(given) < 65_536:
            return int(given)
        raise UsageError(
            f"MASTER_PORT is {given[:60]!r}, and no port", hint="Give a number from 1024 to 65535"
        )
    if launcher is TORCHRUN or not place.job:
        raise _missing(launcher, "MASTER_PORT")
    number = zlib.crc32(place.job.encode())
    if launcher is SLURM:  # neighbours in the queue are not to meet
        number = sum(int(part) for part in re.findall(r"\d{1,9}", place.job))
    return PORTS[number % len(PORTS)]


def _job(launcher: Launcher) -> str:
    if launcher is SLURM:
        job = os.environ.get("SLURM_JOB_ID") or os.environ.get("SLURM_JOBID", "")
        return f"{job}.{os.environ.get('SLURM_STEP_ID', '')}" if job else ""
    if launcher is OPEN_MPI:
        return os.environ.get("PMIX_NAMESPACE") or os.environ.get("OMPI_MCA_ess_base_jobid", "")
    return ""


def _missing(launcher: Launcher, name: str) -> UsageError:
    hint = "Set MASTER_ADDR to the machine of the first process, and MASTER_PORT to a port that is free there"
    if launcher is TORCHRUN:
        hint = "Start with torchrun, which sets it"
    return UsageError(f"{name} is not set", hint=hint)


def _tasks_here() -> int:
    """Of Slurm's list of tasks for each machine, as 2(x3),1: how many this one has; 1 where nothing says."""
    node = os.environ.get("SLURM_NODEID", "0")
    before = int(node) if _counts(node) else math.inf  # machines that come before this one
    tasks = os.environ.get("SLURM_STEP_TASKS_PER_NODE", "")
    for count, times in re.findall(r"(\d{1,9})(?:\(x(\d{1,9})\))?", tasks):
        before -= int(times or 1)
        if before < 0:
            return int(count)
    return 1


def first_host(names: str) -> str:
    """The first machine of Slurm's short form: a01-x of a[01-03,7]-x,b2, which is five of them.

    Raises UsageError for what is no such list.
    """
    listed = re.fullmatch(rf"({MACHINES})(?:,{MACHINES})*", names)
    if listed is None:
        raise UsageError(
            f"SLURM_STEP_NODELIST is {names[:60]!r}, and no list of machines",
            hint="Set MASTER_ADDR to the machine of the first process",
        )
    return re.sub(r"\[(\d+)[^\]]*\]", r"\1", listed[1])
