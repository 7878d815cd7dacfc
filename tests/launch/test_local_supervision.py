"""Real processes under a real supervisor, killed: the run ends exactly at its target with every window read once."""

import random
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

from kills import Trainer, every_window_once
from supervised import Disturbance, Stage, crash_until_it_stops, disturb, finish

from ectype.run.checkpoints import newest_step


def assert_done(stage, code, output):
    assert code == 0, output
    assert newest_step(stage.run) == stage.trainer.steps
    assert every_window_once(stage.trainer, stage.run)


@pytest.mark.slow
def test_kills_of_process_and_supervisor_and_a_crash_leave_a_run_exactly_at_its_target(tmp_path):
    """The supervisor is killed and its job taken up, the job is killed within a save, and a crash that comes at one
    update each time ends it after two tries; mended, the run ends as if nothing had been.
    """
    stage, draw = Stage(Trainer(tmp_path / "cache", 30), tmp_path / "run", processes=1, crash_step=20), random.Random(7)
    supervisor = stage.supervise()
    for kill in (Disturbance("supervisor", "KILL"), Disturbance("one", "KILL", in_save=True)):
        supervisor = disturb(stage, supervisor, kill, draw, 1.0)
    supervisor, facts = crash_until_it_stops(stage, supervisor)
    assert (facts["code"], facts["tries"], facts["completed_updates"]) == (1, 2, 18), facts
    assert "the same error twice after step 19: ValueError: injected at update 20" in facts["output"]
    assert 'raise ValueError("injected at update 20")' in facts["output"]
    assert_done(stage, *finish(stage, supervisor))
    jobs = [row["job"] for row in stage.events("submitted")]
    assert jobs == ["run-1", "run-2", "run-3", "run-4"]  # the killed supervisor's job was not doubled


@pytest.mark.long
def test_twenty_kills_of_four_processes_and_an_injected_crash(tmp_path):
    """`benchmarks/7_supervised_kills.py` holds all of its targets."""
    command = [sys.executable, str(Path(__file__).resolve().parents[2] / "benchmarks/7_supervised_kills.py")]
    ran = subprocess.run([*command, "--folder", str(tmp_path)], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, (ran.stdout, ran.stderr)
