"""The ledger of landmarks, and evaluation beside training: every landmark once, by however many processes."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from ectype.artifacts import lock
from ectype.cli.main import app
from ectype.evaluate.engine import Settings
from ectype.evaluate.follow import LandmarkLedger, follow_run
from ectype.evaluate.held_out import HeldOutText
from ectype.evaluate.landmarks import landmark_lock
from ectype.evaluate.runner import evaluate_run, run_texts
from ectype.recipe.load import load_recipe
from ectype.recipe.reference import HeldOut, Reference
from ectype.run.paths import RunFolder

FEW = Settings(batch_windows=4, devices=1)


@pytest.fixture
def small(reference: Reference, tmp_path: Path) -> Reference:
    path = tmp_path / "text.npy"
    np.fromfile(reference.held_out.domains["tz"], "<u2")[: 256 * 2].tofile(path)
    return reference.model_copy(update={"held_out": HeldOut(dtype="uint16", domains={"tz": path})})


@pytest.fixture
def texts(small: Reference) -> dict[str, HeldOutText]:
    return run_texts(load_recipe("toy-calm"), small)


def hide(run: Path, step: int) -> Path:
    """Take a checkpoint away, as if training had not come to it."""
    hidden = run / f"hidden-{step}"
    RunFolder(run).checkpoint(step).rename(hidden)
    return hidden


def test_the_ledger_says_what_is_due_done_ahead_and_lost(
    copy_run: Path, small: Reference, texts: dict[str, HeldOutText]
) -> None:
    """Landmark 400 was lost, 640 is not there yet, and one of the others has a record."""
    hidden = hide(copy_run, 640)
    evaluate_run(copy_run, small, landmarks=[80], texts=texts, settings=FEW)
    ledger = LandmarkLedger(copy_run, small, texts, FEW)
    assert ledger.states() == {0: "due", 80: "done", 240: "due", 400: "ahead", 640: "ahead"}
    hidden.rename(RunFolder(copy_run).checkpoint(640))
    assert ledger.states() == {0: "due", 80: "done", 240: "due", 400: "missing", 640: "due"}
    RunFolder(copy_run).evaluation(80).unlink()
    assert LandmarkLedger(copy_run, small, texts, FEW).states()[80] == "due"


def test_a_landmark_lost_by_a_stop_is_found_and_filled_once(
    copy_run: Path, small: Reference, texts: dict[str, HeldOutText]
) -> None:
    """An evaluation was ended between 80 and 240; what it left is filled, and what it did is not done again."""
    evaluate_run(copy_run, small, landmarks=[0, 80], texts=texts, settings=FEW)
    times = {step: RunFolder(copy_run).evaluation(step).stat().st_mtime_ns for step in (0, 80)}
    filled: list[int] = []
    states = follow_run(copy_run, small, texts, FEW, evaluated=lambda step, _: filled.append(step))
    assert filled == [240, 640]
    assert states == {0: "done", 80: "done", 240: "done", 400: "missing", 640: "done"}
    assert times == {step: RunFolder(copy_run).evaluation(step).stat().st_mtime_ns for step in (0, 80)}
    assert follow_run(copy_run, small, texts, FEW, evaluated=lambda *_: pytest.fail("twice")) == states


def test_followers_wait_for_training_and_share_out_its_landmarks(
    copy_run: Path, small: Reference, texts: dict[str, HeldOutText]
) -> None:
    """Two followers, and checkpoints that come while they run: each landmark is evaluated by one of them."""
    hidden = {step: hide(copy_run, step) for step in (240, 640)}
    done: list[tuple[int, int]] = []
    followers = [
        threading.Thread(
            target=follow_run, args=(copy_run, small, texts, FEW),
            kwargs={"evaluated": lambda step, _, who=who: done.append((step, who)), "poll_seconds": 0.05},
        )
        for who in (1, 2)
    ]  # fmt: skip
    for follower in followers:
        follower.start()
    for step, place in hidden.items():
        time.sleep(0.5)
        place.rename(RunFolder(copy_run).checkpoint(step))
    for follower in followers:
        follower.join(60)
        assert not follower.is_alive()
    assert sorted(step for step, _ in done) == [0, 80, 240, 640]


def test_a_landmark_that_another_process_holds_is_left_to_it(
    copy_run: Path, small: Reference, texts: dict[str, HeldOutText]
) -> None:
    filled: list[int] = []
    hide(copy_run, 640).rename(copy_run / "checkpoints" / "00000640")
    with landmark_lock(copy_run, 80):
        follower = threading.Thread(
            target=follow_run, args=(copy_run, small, texts, FEW),
            kwargs={"evaluated": lambda step, _: filled.append(step), "poll_seconds": 0.05},
        )  # fmt: skip
        follower.start()
        deadline = time.monotonic() + 60
        while len(filled) < 3 and time.monotonic() < deadline:
            time.sleep(0.05)
        assert filled == [0, 240, 640]
    follower.join(60)
    assert filled == [0, 240, 640, 80]
    with lock(RunFolder(copy_run).evaluation_lock(80)):
        pass


def test_the_command_follows_is_stopped_by_a_signal_and_goes_on(
    copy_run: Path, small: Reference, tmp_path: Path
) -> None:
    (tmp_path / "ref").mkdir()
    values = small.model_dump(mode="json")
    (tmp_path / "ref" / "reference.json").write_text(json.dumps(values))
    for step in (0, 80):
        hide(copy_run, step)
    hidden = hide(copy_run, 640)
    command = [
        sys.executable, "-m", "ectype.cli", "evaluate", str(copy_run), "--reference", str(tmp_path / "ref"),
        "--follow", "--batch-windows", "2", "--json",
    ]  # fmt: skip
    environment = {**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=1"}
    run = RunFolder(copy_run)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as follower:
        deadline = time.monotonic() + 120
        while not run.evaluation(240).is_file() and time.monotonic() < deadline:
            time.sleep(0.1)
        follower.send_signal(signal.SIGTERM)
        assert follower.wait(30) == 75
    written = run.evaluation(240).stat().st_mtime_ns
    hidden.rename(run.checkpoint(640))
    done = CliRunner().invoke(app, command[3:])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["missing"] == [0, 80, 400]
    assert list(json.loads(done.stdout)["landmarks"]) == ["640"]
    assert run.evaluation(240).stat().st_mtime_ns == written
    done = CliRunner().invoke(app, [*command[3:5], "--reference", str(tmp_path / "ref"), "--status", "--json"])
    states = {"0": "missing", "80": "missing", "240": "done", "400": "missing", "640": "done"}
    assert json.loads(done.stdout) == {"landmarks": states}
