"""Which checkpoints of a run count: complete ones of the right name, and none that was rolled back."""

from pathlib import Path

import pytest

from ectype.errors import EctypeError
from ectype.run.checkpoints import META_ITEM, find_checkpoint, finished_steps, newest_step, roll_back
from ectype.run.paths import RunFolder


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """A run with three checkpoints, one still being written, and a folder that is none."""
    run = RunFolder(tmp_path)
    for step in (0, 8, 16):
        (run.checkpoint(step) / META_ITEM).mkdir(parents=True)
    (run.checkpoints / "00000024.orbax-checkpoint-tmp" / META_ITEM).mkdir(parents=True)
    (run.checkpoints / "32" / META_ITEM).mkdir(parents=True)
    (run.checkpoint(40) / "weights").mkdir(parents=True)
    return tmp_path


def test_only_complete_checkpoints_of_the_right_name_count(run_dir: Path) -> None:
    assert finished_steps(run_dir) == [0, 8, 16]
    assert newest_step(run_dir) == 16
    assert newest_step(run_dir / "none") == 0


def test_a_run_stands_for_its_newest_checkpoint_or_the_one_asked_for(run_dir: Path) -> None:
    run = RunFolder(run_dir)
    assert find_checkpoint(run_dir) == run.checkpoint(16)
    assert find_checkpoint(run_dir, 8) == run.checkpoint(8)
    assert find_checkpoint(run.checkpoint(8)) == run.checkpoint(8)
    with pytest.raises(EctypeError, match="holds no checkpoint of step 40") as failure:
        find_checkpoint(run_dir, 40)
    assert failure.value.mend == "steps found: [0, 8, 16]"


def test_rolled_back_checkpoints_do_not_count(run_dir: Path) -> None:
    roll_back(run_dir, 8)
    assert finished_steps(run_dir) == [0, 8]
    assert (RunFolder(run_dir).checkpoints / "rolled-back-1" / "00000016").is_dir()
