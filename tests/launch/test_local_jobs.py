"""Jobs of this machine: who ended first, who is alive, and that no process is left behind. The programs are stubs."""

import fcntl
import os
import signal
import sys
import time
from pathlib import Path

import pytest

from ectype.launch.command import Training
from ectype.launch.job_folder import End, JobFolder, Living, Plan, jobs_in
from ectype.launch.local_jobs import LocalJobs, local_backend

PROGRAM = """
import os, signal, sys, time
number = int(sys.argv[sys.argv.index("--process") + 1]) if "--process" in sys.argv else 0
what = os.environ["STUB"].split(",")[number]
if what == "saves":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(75))
if what == "fails":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))
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
        return [sys.executable, "-c", PROGRAM]


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
    os.kill(folder.read(Living).processes[1], number)
    report = end_of(backend)
    assert (report.state, report.why) == ("preempted", f"process 1: killed by {number.name}")


@pytest.mark.parametrize(
    ("what", "first", "second", "end"),
    [
        ("sleeps,saves", signal.SIGABRT, signal.SIGTERM, ("preempted", "process 1: exit 75")),
        ("sleeps,fails", signal.SIGABRT, signal.SIGTERM, ("failed", "process 1: exit 3")),
        ("fails,sleeps", signal.SIGTERM, signal.SIGSEGV, ("failed", "process 1: killed by SIGSEGV")),
        ("fails,sleeps", signal.SIGTERM, signal.SIGKILL, ("preempted", "process 1: killed by SIGKILL")),
    ],
)
def test_of_two_that_end_at_once_the_cause_is_told_from_the_effect(tmp_path, what, first, second, end):
    """The keeper sleeps while both end. A process that JAX aborts, or that fails, may do so since the other left."""
    backend, folder = start(tmp_path, what)
    ready(folder, 2)
    living = folder.read(Living)
    os.kill(living.keeper, signal.SIGSTOP)
    for process, number in zip(living.processes, (first, second), strict=True):
        os.kill(process, number)
    wait_until(lambda: all(is_zombie(process) for process in living.processes))
    os.kill(living.keeper, signal.SIGCONT)
    report = end_of(backend)
    assert (report.state, report.why) == end


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
    os.kill(folder.read(Living).keeper, signal.SIGKILL)
    assert end_of(backend).why == "its keeper was killed"
    for number in folder.read(Living).processes:
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
    backend = local_backend(Stub(tmp_path, Training("r", "run"), 1))
    assert backend.look("job-9").state == "deleted"


def test_a_job_runs_from_its_submission_on_however_slowly_its_keeper_starts(tmp_path):
    backend, _ = start(tmp_path, "ends")
    assert backend.look("job-1").state == "running"
    assert backend.submit("job-1", 0) != ""
    assert end_of(backend).state == "succeeded"


def test_the_next_job_may_begin_as_soon_as_one_is_over(tmp_path):
    backend, _ = start(tmp_path, "crashes,sleeps")
    while backend.look("job-1").state == "running":
        pass
    assert backend.submit("job-2", 0) == ""
    wait_until(lambda: backend.look("job-2").state == "failed")


def test_a_stop_right_after_the_submission_reaches_the_job(tmp_path):
    backend, _ = start(tmp_path, "sleeps")
    assert backend.cancel("job-1") == ""
    assert end_of(backend).state == "preempted"


class Missing(LocalJobs):
    def command(self):
        return ["no-such-program"]


def test_a_keeper_that_fails_leaves_its_words(tmp_path):
    backend = local_backend(Missing(tmp_path, Training("r", "run"), 1))
    assert backend.submit("job-1", 0) == ""
    report = end_of(backend)
    assert report.state == "preempted"
    assert "FileNotFoundError" in report.tail


DAMAGED = {
    Living: ("{}", '{"keeper": 0, "processes": []}', '{"keeper": 1, "processes": []}', "x"),
    End: (
        "{}", '{"at": 1.0, "processes": [{"code": 1}], "order": [0]}', '{"at": 1.0, "processes": [], "order": []}',
        '{"at": 1.0, "processes": [{"code": 1, "ended_by_keeper": false}], "order": [1]}',
    ),
}  # fmt: skip


@pytest.mark.parametrize(("kind", "text"), [(kind, text) for kind, texts in DAMAGED.items() for text in texts])
def test_a_damaged_record_makes_a_job_unknown_and_no_process_is_signalled(tmp_path, kind, text):
    """Numbers 0 and 1 above all: as a group's they mean our own group, and every process there is."""
    folder = JobFolder(tmp_path / "job-1")
    folder.path.mkdir()
    folder.write(Plan(command=("x",), processes=1, failure_seconds=1, stop_seconds=1, environment={}))
    folder.file(kind).write_text(text)
    backend = local_backend(LocalJobs(tmp_path, Training("r", "run"), 1))
    with folder.job_lock.open("w") as orphan:
        fcntl.flock(orphan, fcntl.LOCK_EX)
        report = backend.look("job-1")
    assert report.state == "unknown"
    assert str(folder.file(kind)) in report.why
    with folder.keeper_lock.open("w") as keeper:
        fcntl.flock(keeper, fcntl.LOCK_EX)
        assert kind is End or str(folder.file(kind)) in backend.cancel("job-1")


def test_jobs_and_their_logs_come_in_order(tmp_path):
    for number, name in enumerate(("job-9", "job-10")):
        folder = JobFolder(tmp_path / name)
        folder.path.mkdir()
        folder.write(Plan(command=("x",), processes=1, failure_seconds=1, stop_seconds=1, environment={}))
        os.utime(folder.file(Plan), (number, number))
    assert [job.path.name for job in jobs_in(tmp_path)] == ["job-9", "job-10"]
    for name in ("output-10.log", "output-2.log", "keeper.log", "output-2-copy.log", "output-.log"):
        (folder.path / name).touch()
    assert [path.name for path in folder.logs()] == ["output-2.log", "output-10.log"]


def test_what_an_earlier_job_of_the_same_name_left_does_not_end_the_next(tmp_path):
    """As when the supervisor's memory was moved away and jobs are counted anew."""
    backend, _ = start(tmp_path, "ends")
    assert end_of(backend).state == "succeeded"
    backend, _ = start(tmp_path, "saves")
    assert backend.look("job-1").state == "running"
    assert backend.cancel("job-1") == ""
    assert end_of(backend).state == "preempted"
