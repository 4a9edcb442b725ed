"""Which process this one is, by the variables of those that start several."""

from datetime import timedelta

import pytest

from rebasin_cli.errors import UsageError
from rebasin_cli.runtime import launchers, rendezvous

SLURM = {
    "SLURM_STEP_NUM_TASKS": "6",
    "SLURM_PROCID": "3",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "1",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2),1(x2)",
    "SLURM_STEP_NODELIST": "a[01-03,7]-x,b2",
    "SLURM_JOB_ID": "4711",
    "SLURM_STEP_ID": "2",
    "SLURM_LAUNCH_NODE_IPADDR": "10.0.0.99",  # of the machine where srun was typed: never the first one's
}
OPEN_MPI = {
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_RANK": "2",
    "OMPI_COMM_WORLD_LOCAL_RANK": "2",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
    "PMIX_NAMESPACE": "prterun-a-1@1",
}
PMI = {"PMI_SIZE": "2", "PMI_RANK": "1", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}
TORCHRUN = {
    "WORLD_SIZE": "8",
    "RANK": "5",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "4",
    "MASTER_ADDR": "first",
    "MASTER_PORT": "29500",
}


@pytest.fixture
def started(monkeypatch):
    """Set these variables, and none else that a launcher knows; this process's place, or None if alone."""

    def by(*variables):
        for name in {**SLURM, **OPEN_MPI, **PMI, **TORCHRUN, "SLURM_JOBID": ""}:
            monkeypatch.delenv(name, raising=False)
        for name, value in {k: v for some in variables for k, v in some.items()}.items():
            monkeypatch.setenv(name, value)
        return launchers.place() if launchers.found() else None

    return by


@pytest.mark.parametrize(
    ("variables", "name", "rank", "size", "here", "local_size", "address", "port"),
    [
        ([TORCHRUN], "torchrun", 5, 8, 1, 4, "first", 29500),
        ([SLURM], "Slurm", 3, 6, 1, 2, "a01-x", 19713),
        ([SLURM, {"SLURM_NODEID": "3"}], "Slurm", 3, 6, 1, 1, "a01-x", 19713),
        ([SLURM, {"SLURM_JOB_ID": "", "SLURM_JOBID": "4711"}], "Slurm", 3, 6, 1, 2, "a01-x", 19713),
        ([SLURM, {"MASTER_ADDR": "::1", "MASTER_PORT": "1024"}], "Slurm", 3, 6, 1, 2, "::1", 1024),
        ([SLURM, TORCHRUN], "torchrun", 5, 8, 1, 4, "first", 29500),  # torchrun, that srun started
        ([SLURM, {"PMI_SIZE": "6", "PMI_RANK": "3"}], "Slurm", 3, 6, 1, 2, "a01-x", 19713),
        ([SLURM, OPEN_MPI], "Open MPI", 2, 4, 2, 4, "127.0.0.1", None),  # mpirun, whose daemons srun started
        ([SLURM, PMI, {"MASTER_PORT": "2000"}], "PMI", 1, 2, 1, 2, "127.0.0.1", 2000),
        ([OPEN_MPI], "Open MPI", 2, 4, 2, 4, "127.0.0.1", None),
        ([PMI, {"MASTER_ADDR": "first", "MASTER_PORT": "2000"}], "PMI", 1, 2, 1, 2, "first", 2000),
    ],
)
def test_the_place_of_a_process(started, variables, name, rank, size, here, local_size, address, port):
    place = started(*variables)
    assert (place.launcher.name, place.rank, place.size) == (name, rank, size)
    assert (place.launcher.here, place.local_size) == (here, local_size)
    where, number = place.meeting()
    assert where == address and number == (port or number) and 1024 <= number < 32768
    assert launchers.who() == f"rank {rank} of {size}: "
    assert (place.patience > timedelta(minutes=5)) == (name == "torchrun")
    assert launchers.is_first() == (name != "torchrun")  # a task of a job may have files of its own


def test_a_job_and_a_step_have_ports_of_their_own(started):
    steps = [started(SLURM, {"SLURM_STEP_ID": step}) for step in ("0", "1")]
    assert len({place.meeting()[1] for place in steps}) == len({place.job for place in steps}) == 2


@pytest.mark.parametrize(
    "variables",
    [
        [],
        [{"WORLD_SIZE": "1", "RANK": "0"}],
        [{"WORLD_SIZE": "1"}, SLURM],  # said by hand
        [SLURM, {"SLURM_STEP_NUM_TASKS": "1"}],
        [SLURM, {"SLURM_STEP_NUM_TASKS": ""}],  # the batch script itself
        [SLURM, OPEN_MPI, {"OMPI_COMM_WORLD_SIZE": "1"}],
        [PMI, {"PMI_SIZE": "1"}],
    ],
)
def test_one_process_is_alone(started, variables):
    assert started(*variables) is None and launchers.who() == "" and launchers.is_first()


@pytest.mark.parametrize(
    ("variables", "told", "hint"),
    [
        ([{"WORLD_SIZE": "2"}], "WORLD_SIZE is 2, but RANK is not set", "torchrun, which sets them all"),
        ([{"RANK": "1"}], "RANK is 1, but WORLD_SIZE is not set", "or unset RANK"),
        ([{"RANK": "1", "WORLD_SIZE": "two"}], "RANK is 1, but WORLD_SIZE is two", "unset RANK"),
        ([{"RANK": "1", "WORLD_SIZE": "9" * 5000}], "RANK is 1, but WORLD_SIZE is 9", "unset RANK"),
        ([SLURM, {"SLURM_PROCID": ""}], "SLURM_STEP_NUM_TASKS is 6, but SLURM_PROCID is not set", "Slurm"),
        ([SLURM, {"SLURM_PROCID": "6"}], "SLURM_PROCID is 6, and SLURM_STEP_NUM_TASKS is 6", "Slurm"),
        ([SLURM, {"WORLD_SIZE": "8"}], "WORLD_SIZE is 8, but SLURM_STEP_NUM_TASKS is 6", "Unset WORLD_SIZE"),
        ([SLURM, {"SLURM_STEP_NODELIST": ""}], "MASTER_ADDR is not set", "machine of the first process"),
        ([SLURM, {"SLURM_JOB_ID": ""}], "MASTER_PORT is not set", "a port that is free there"),
        ([SLURM, {"SLURM_STEP_NUM_TASKS": "1", "WORLD_SIZE": "2"}], "WORLD_SIZE is 2, but RANK", "torchrun"),
        ([SLURM, {"MASTER_PORT": "0"}], "MASTER_PORT is '0', and no port", "1024 to 65535"),
        ([SLURM, {"MASTER_PORT": "70000"}], "MASTER_PORT is '70000', and no port", "1024 to 65535"),
        ([SLURM, {"MASTER_PORT": "9" * 5000}], "MASTER_PORT is '9999", "1024 to 65535"),
        ([OPEN_MPI, {"OMPI_COMM_WORLD_LOCAL_SIZE": "2"}], "MASTER_ADDR is not set", "first process"),
        ([PMI], "MASTER_PORT is not set", "a port that is free there"),
        ([TORCHRUN, {"MASTER_PORT": ""}], "MASTER_PORT is not set", "torchrun, which sets it"),
    ],
)
def test_what_is_missing_is_named(started, variables, told, hint):
    with pytest.raises(UsageError) as error:
        started(*variables).meeting()
    assert error.value.message.startswith(told) and hint in error.value.hint


@pytest.mark.parametrize(
    "odd",
    [
        {"SLURM_NODEID": "²"},
        {"SLURM_NODEID": "9" * 5000},
        {"SLURM_STEP_TASKS_PER_NODE": "9" * 5000},
        {"SLURM_STEP_TASKS_PER_NODE": "1(x100000)," * 10_000},
        {"SLURM_JOB_ID": "9" * 5000},
    ],
)
def test_odd_words_about_a_place_are_no_errors(started, odd):
    assert launchers.PORTS.start <= started(SLURM, odd).meeting()[1] < launchers.PORTS.stop


def test_a_list_of_tasks_is_read_up_to_the_machine_that_asks(started):
    tasks = {"SLURM_STEP_TASKS_PER_NODE": "2(x3),3(x2)", "SLURM_STEP_NODELIST": "a"}
    for node, here in (("2", 2), ("3", 3), ("4", 3), ("5", 1)):
        assert started(SLURM, tasks, {"SLURM_NODEID": node}).local_size == here


def test_a_rank_alone_says_nothing_of_others(started):
    """Of a container that numbers its replicas, say: what runs in one process runs there, and prints."""
    with pytest.raises(UsageError):
        started({"RANK": "3"})
    assert launchers.is_first() and launchers.who() == ""
    assert not (started({"RANK": "1", "WORLD_SIZE": "2"}) is None or launchers.is_first())
    with pytest.raises(UsageError):
        started({"WORLD_SIZE": "2"})
    assert launchers.is_first()  # or nobody would say what is missing


@pytest.mark.parametrize(
    ("names", "first"),
    [
        ("a[01-03,7]-x,b2", "a01-x"),
        ("gpu-node", "gpu-node"),
        ("r[1-2]n[09-10]", "r1n09"),
        ("10.9.0.[1-2]", "10.9.0.1"),
        ("a[0-999999999]" + ",a[0-99999]" * 99, "a0"),
    ],
)
def test_the_first_of_slurms_short_form_of_machines(names, first):
    assert launchers.first_host(names) == first


@pytest.mark.parametrize("names", ["", "a[1-", "a[1-2]]", "a[1-x]", "a[]", "a[1-2],", ",", "a[9999999999]"])
def test_no_list_of_machines(names):
    with pytest.raises(UsageError, match="no list of machines"):
        launchers.first_host(names)


@pytest.mark.parametrize(("said", "seconds"), [("", 600), ("90s", 90), ("3h", 600)])
def test_the_variable_holds_until_all_have_started(started, monkeypatch, said, seconds):
    monkeypatch.setenv(rendezvous.TIMEOUT, said)
    assert rendezvous.patience_to_start(started(TORCHRUN)) == timedelta(seconds=seconds)
    assert rendezvous.patience_to_start(started(SLURM)) == timedelta(seconds=60)


@pytest.mark.parametrize(
    "told", ["wait timeout after 20000ms, keys: /here", "Timed out waiting 2s", "timed-out"]
)
def test_what_came_too_late_names_the_variable(told):
    assert rendezvous.TIMEOUT in rendezvous.lost(RuntimeError(told)).message
