"""Jobs of this machine: who ended first, who is alive, and that no process is left behind. The programs are stubs."""

import json
import os
import signal
import time
from pathlib import Path

import pytest

from ectype.launch.command import Training
from ectype.launch.keeper import JobFolder
from ectype.launch.local_jobs import LocalJobs, local_backend

PROGRAM = """
import os, signal, sys, time
number = int(sys.argv[sys.argv.index("--process") + 1]) if "--process" in sys.argv else 0
what = os.environ["STUB"].split(",")[number]
if what == "saves":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(75))
if what == "deaf":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("ready", flush=True)
if what == "crashes":
    raise ValueError("bad row")
if what == "unwell":
    sys.exit(65)
if what == "aborts":
    os.abort()
time.sleep(0.1 if what == "ends" else 60)
"""


class Stub(LocalJobs):
    def command(self):
        return ["python", "-c", PROGRAM]


def start(tmp_path, what, **more):
    jobs = Stub(
        tmp_path, Training("r", "run"), len(what.split(",")), failure_seconds=0.2, environment={"STUB": what}, **more
    )
    backend = local_backend(jobs)
    assert backend.submit("job-1", 0) == ""
    return backend, JobFolder(tmp_path / "job-1")


def wait_until(true, seconds=20):
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def ready(folder, count):
    wait_until(lambda: all(folder.log(n).is_file() and "ready" in folder.log(n).read_text() for n in range(count)))


def pids(folder):

    return json.loads(folder.processes.read_text())


def end_of(backend):
    wait_until(lambda: backend.look("job-1").state not in ("pending", "running"))
    return backend.look("job-1")


def test_processes_that_all_end_well_are_a_success(tmp_path):
    backend, _ = start(tmp_path, "ends,ends")
    assert end_of(backend).state == "succeeded"


def test_a_crash_is_a_failure_by_its_own_error_though_the_others_had_to_be_killed(tmp_path):
    backend, _ = start(tmp_path, "sleeps,crashes,deaf")
    report = end_of(backend)
    assert (report.state, report.error) == ("failed", "ValueError: bad row")
    assert "Traceback" in report.tail


def test_a_program_that_aborts_was_not_taken_away(tmp_path):
    backend, _ = start(tmp_path, "sleeps,aborts")
    report = end_of(backend)
    assert (report.state, report.why) == ("failed", "process 1: killed by SIGABRT")


def test_an_end_over_the_runs_health_is_passed_on(tmp_path):
    backend, _ = start(tmp_path, "unwell,sleeps")
    assert (end_of(backend).state, end_of(backend).unhealthy) == ("failed", True)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_process_takes_the_others_with_it_and_counts_as_taken_away(tmp_path, number):
    backend, folder = start(tmp_path, "sleeps,sleeps")
    ready(folder, 2)
    os.kill(pids(folder)["processes"][1], number)
    report = end_of(backend)
    assert (report.state, report.why) == ("preempted", f"process 1: killed by {number.name}")


def test_a_stop_lets_processes_save(tmp_path):
    backend, folder = start(tmp_path, "saves,saves")
    ready(folder, 2)
    assert backend.cancel("job-1") == ""
    report = end_of(backend)
    assert report.state == "preempted"
    assert "exit 75" in report.why


def test_a_process_that_ignores_a_stop_is_ended_by_force(tmp_path):
    backend, folder = start(tmp_path, "deaf", stop_seconds=0.2)
    ready(folder, 1)
    backend.cancel("job-1")
    assert "ended by force" in end_of(backend).why


def test_a_killed_keeper_leaves_no_process_behind(tmp_path):
    backend, folder = start(tmp_path, "deaf,deaf")
    ready(folder, 2)
    os.kill(pids(folder)["keeper"], signal.SIGKILL)
    assert end_of(backend).why == "its keeper was killed"
    for number in pids(folder)["processes"]:
        wait_until(lambda number=number: not Path(f"/proc/{number}").exists() or is_zombie(number))


def is_zombie(number):
    return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] == "Z"


def test_no_job_is_started_beside_a_living_one(tmp_path):
    backend, folder = start(tmp_path, "saves")
    ready(folder, 1)
    assert backend.submit("job-2", 0) == "job-1 still has living processes"
    backend.cancel("job-1")
    end_of(backend)


def test_a_job_that_was_never_there_is_missing(tmp_path):
    assert start(tmp_path, "ends")[0].look("job-9").state == "deleted"
