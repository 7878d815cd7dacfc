"""Random kills: each run finishes, reads every window once, and computes what the undisturbed run does.

Five kills over one run by `make test`; twelve over one and eight over another by `make test-long`.
"""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

from kills import Trainer, curve, every_window_once, kill_often, largest_loss_difference


@pytest.fixture(scope="module")
def trainer(tmp_path_factory):
    return Trainer(tmp_path_factory.mktemp("cache"), 200)


@pytest.fixture(scope="module")
def straight(trainer, tmp_path_factory):
    run = tmp_path_factory.mktemp("straight") / "run"
    trainer.finish(run, placement=("checkpoints.every_steps=100000",))
    return run


@pytest.mark.slow
@pytest.mark.parametrize(("count", "in_saves"), [(3, 1), pytest.param(12, 3, marks=pytest.mark.long)])
def test_kills_change_nothing(trainer, straight, tmp_path, count, in_saves):
    kills = []
    kill_often(trainer, tmp_path / "run", range(1, count + 1), hop=False, seed=7, tell=kills.append)
    assert sum(kill.in_save for kill in kills) >= in_saves
    trainer.finish(tmp_path / "run")
    assert every_window_once(trainer, tmp_path / "run")
    assert curve(tmp_path / "run") == curve(straight)


@pytest.mark.long
def test_kills_while_the_device_count_changes(trainer, straight, tmp_path):
    kill_often(trainer, tmp_path / "run", range(1, 9), hop=True, seed=8, tell=lambda kill: None)
    trainer.finish(tmp_path / "run")
    assert every_window_once(trainer, tmp_path / "run")
    assert largest_loss_difference(tmp_path / "run", straight) < 1e-4
