"""Signals at any moment, disks that fill up, and what is kept, skipped and deleted."""

import contextlib
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ectype import stopping
from ectype.errors import EctypeError, Stopped
from ectype.run.checkpoints import finished_steps
from ectype.run.goodput import GoodputLog, read_goodput
from ectype.stopping import StopSignals

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

from kills import Trainer, curve

STEPS = 60


@pytest.fixture(scope="module")
def trainer(tmp_path_factory):
    return Trainer(tmp_path_factory.mktemp("cache"), STEPS)


@pytest.fixture(scope="module")
def straight(trainer, tmp_path_factory):
    run = tmp_path_factory.mktemp("straight") / "run"
    trainer.finish(run)
    return run


def unfinished(run):
    return list((run / "checkpoints").glob("*tmp*"))


def wait_for(process, condition):
    while not condition():
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.002)


def listens(process):
    """Whether the process has taken over SIGTERM: before that, Python itself is still starting."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    caught = next(int(line.split()[1], 16) for line in status.splitlines() if line.startswith("SigCgt:"))
    return caught >> (signal.SIGTERM - 1) & 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_before_the_first_update_ends_with_75_and_nothing_half_written(trainer, straight, tmp_path, number):
    run = tmp_path / "run"
    process = trainer.start(run)
    wait_for(process, lambda: listens(process))  # Importing, opening the run or compiling.
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 75, errors
    assert "stopped" in errors
    assert finished_steps(run) in ([], [0])
    assert not unfinished(run)
    trainer.finish(run)
    assert curve(run) == curve(straight)


def test_a_second_signal_does_not_lose_the_save(trainer, straight, tmp_path):
    run = tmp_path / "run"
    process = trainer.start(run)
    wait_for(process, lambda: len(finished_steps(run)) > 2 and unfinished(run))
    for _ in range(4):
        process.send_signal(signal.SIGTERM)
        time.sleep(0.02)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 75, errors
    assert f"saved at step {max(finished_steps(run))} of {STEPS}" in errors
    assert not unfinished(run)
    trainer.finish(run)
    assert curve(run) == curve(straight)


def test_a_full_disk_leaves_the_last_good_checkpoint(trainer, straight, tmp_path):
    """No file may grow beyond 20 kB, which a checkpoint's arrays exceed; then there is room again."""
    run = tmp_path / "run"
    process = trainer.start(run)
    wait_for(process, lambda: len(finished_steps(run)) > 2)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    kept = finished_steps(run)
    limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))  # noqa: E731
    process = trainer.start(run, preexec_fn=limit)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 2, errors
    assert str(run) in errors
    assert "bytes free" in errors
    assert finished_steps(run) == kept
    trainer.finish(run)
    assert curve(run) == curve(straight)
    assert read_goodput(run)[1][1].ended == "failed"


def test_what_killed_saves_left_is_deleted_and_nothing_else(tmp_path):
    from ectype.run.checkpoints import damaged_folders, remove_leftovers

    folder = tmp_path / "checkpoints"
    ours = ["00000004.orbax-checkpoint-tmp", "00000005.orbax-checkpoint-tmp-17", "00000003.deleting"]
    others = ["00000007", "999", "notes", "00000004.orbax-checkpoint-tmp.bak", "rolled-back-1", "7.deleting"]
    for name in (*ours, *others):
        (folder / name / "weights").mkdir(parents=True)
    assert sorted(path.name for path in remove_leftovers(tmp_path)) == sorted(ours)
    assert sorted(path.name for path in folder.iterdir()) == sorted(others)
    assert [path.name for path in damaged_folders(tmp_path)] == ["00000007"]


def test_a_stopped_evaluation_ends_with_75_and_goes_on(tmp_path):
    run = tmp_path / "run"
    ectype = [sys.executable, "-m", "ectype.cli"]
    train = ["train", "toy-calm", "--run", str(run), "--until", "1", "--set", "landmarks=[0]"]
    subprocess.run([*ectype, *train], check=True, capture_output=True)
    process = subprocess.Popen([*ectype, "evaluate", str(run)], stderr=subprocess.PIPE, text=True)
    wait_for(process, lambda: listens(process))
    time.sleep(1.0)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 75, errors
    assert "nothing half-written" in errors
    assert not list((run / "evaluations").glob("*"))
    subprocess.run([*ectype, "evaluate", str(run)], check=True, capture_output=True)
    assert len(list((run / "evaluations").glob("*"))) == 1
    assert read_goodput(run)[0].evaluation_seconds > 0


def test_a_start_killed_while_it_opened_the_run_can_be_repeated(trainer, straight, tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    (run / "recipe.yaml").write_text("name: torn")
    (run / ".run.json.x1y2").write_text("{")
    trainer.finish(run)
    assert curve(run) == curve(straight)


def test_goodput_counts_each_second_once(tmp_path):
    rows = [(1, 2.0, 0.5), (2, 2.0, 0.0), (3, 1.0, 0.0)]
    (tmp_path / "metrics.jsonl").write_text(
        "".join(f'{{"step": {n}, "step_seconds": {s}, "data_wait_seconds": {w}}}\n' for n, s, w in rows)
    )
    first = GoodputLog(tmp_path)
    first.begin(0)
    first.add("start", 1.0)
    first.add("compile", 3.0)
    with open(tmp_path / "goodput.jsonl", "ab") as stream:
        stream.write(b'{"what": "save_st')  # A kill tore this line; the next one is whole all the same.
    second = GoodputLog(tmp_path)
    second.begin(2)
    second.add("restore", 0.5)
    second.lost(4.0, 2)
    second.end("done")
    GoodputLog(tmp_path).add("evaluation", 2.0)
    whole, sessions = read_goodput(tmp_path)
    assert [(s.from_step, s.ended) for s in sessions] == [(0, "killed"), (2, "done")]
    assert (whole.productive_seconds, whole.data_wait_seconds) == (4.5, 0.5)
    assert (whole.start_seconds, whole.compile_seconds, whole.restore_seconds) == (1.0, 3.0, 0.5)
    assert (whole.lost_seconds, whole.lost_steps, whole.evaluation_seconds) == (4.0, 2, 2.0)
    assert whole.other_seconds < 0.1
    assert whole.fraction == pytest.approx(4.5 / 15.5, rel=0.01)
    assert sessions[0].goodput.productive_seconds == 3.5


def interrupted(words, work):
    with StopSignals() as signals, signals.at_once(words):
        work(signals)


def ask_and_wait(signals):
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(5)


def ask_and_swallow(signals):
    """What a callback does that ignores all exceptions."""
    with contextlib.suppress(BaseException):
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.2)
    assert signals.asked


def ask_and_turn_into_an_error(signals):
    try:
        ask_and_wait(signals)
    except BaseException:
        raise ImportError("as compiled code does, with no cause of its own") from None


@pytest.mark.parametrize("work", [ask_and_wait, ask_and_swallow, ask_and_turn_into_an_error])
def test_a_signal_ends_a_block_in_which_nothing_can_be_lost(work):
    began = time.monotonic()
    with pytest.raises(Stopped, match="nothing was lost"):
        interrupted("nothing was lost", work)
    assert time.monotonic() - began < 2


def test_an_import_is_not_interrupted_but_what_follows_is(tmp_path, monkeypatch):
    (tmp_path / "slow_to_import.py").write_text(
        "import os, signal, time\nos.kill(os.getpid(), signal.SIGTERM)\ntime.sleep(0.3)\nDONE = True\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    imported = []

    def work(signals):
        import slow_to_import

        imported.append(slow_to_import.DONE)
        time.sleep(5)

    began = time.monotonic()
    with pytest.raises(Stopped):
        interrupted("nothing was lost", work)
    assert imported == [True]
    assert time.monotonic() - began < 2


def test_an_error_without_a_signal_keeps_its_kind():
    with pytest.raises(ImportError), StopSignals() as signals, signals.at_once("nothing lost"):
        raise ImportError("a real one")


def test_an_inner_block_knows_of_a_signal_that_an_outer_one_lost():
    def work(outer):
        ask_and_swallow(outer)
        with StopSignals() as inner:
            assert inner.asked
            inner.asked = False
            time.sleep(0.6)  # The outer block's grace is over, and its watch leaves the process alone.

    began, grace = time.monotonic(), stopping.GRACE_SECONDS
    stopping.GRACE_SECONDS = 0.3
    try:
        with pytest.raises(Stopped):
            interrupted("outer", work)
    finally:
        stopping.GRACE_SECONDS = grace
    assert time.monotonic() - began < 2


def test_elsewhere_signals_are_only_remembered():
    with StopSignals() as signals:
        for _ in range(3):
            os.kill(os.getpid(), signal.SIGINT)
        assert signals.asked
        with pytest.raises(Stopped), signals.at_once("came before"):
            raise AssertionError("the block must not begin")


def test_a_call_that_does_not_come_back_is_ended_from_outside():
    """A compilation holds the main thread, so that no handler runs there; what is under way is finished first."""
    program = """
import hashlib, os, signal, threading
from ectype import stopping
stopping.GRACE_SECONDS = 0.3
threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGTERM)).start()
with stopping.StopSignals() as signals, signals.at_once("nothing lost", finish=lambda: print("saved", flush=True)):
    hashlib.pbkdf2_hmac("sha256", b"a minute", b"of work", 100_000_000)
"""
    began = time.monotonic()
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stdout.strip()) == (75, "saved"), done.stderr
    assert "nothing lost" in done.stderr
    assert time.monotonic() - began < 10


@pytest.mark.parametrize("text", ["", "3-", "a", "0", "-2", "2-x"])
def test_profiled_steps_are_checked(text):
    from ectype.train.profile import parse_profiled_steps

    with pytest.raises(EctypeError, match="--profile"):
        parse_profiled_steps(text)
