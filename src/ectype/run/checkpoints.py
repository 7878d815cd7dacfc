"""Which folders are checkpoints, and which of a run's are complete.

A checkpoint appears by one rename when all of it is written, and its description is written last. So a folder of the
right name that holds a description is complete, and nothing else is.
"""

import re
import shutil
from pathlib import Path

from ectype.errors import EctypeError
from ectype.run.paths import RunFolder

WEIGHTS_ITEM, OPTIMIZER_ITEM, META_ITEM = "weights", "optimizer", "ectype"
"""Parts of a checkpoint: the parameter tree; moments, counters and history; the description."""
_ARCHIVE = "rolled-back-"
_DELETING = ".deleting"
_LEFTOVER = re.compile(r"\d{8,}\.(orbax-checkpoint-tmp(-\d+)?|deleting)")
"""Names under which only a save, by Orbax, and `delete` work."""


def description_file(checkpoint: Path) -> Path:
    """The JSON file that says what a checkpoint holds."""
    return checkpoint / META_ITEM / "metadata"


def is_checkpoint(path: Path) -> bool:
    """Whether `path` is a complete checkpoint."""
    return (path / META_ITEM).is_dir()


def finished_steps(run_dir: Path) -> list[int]:
    """Steps of the run's complete checkpoints, ascending; folders of another form don't count."""
    run = RunFolder(run_dir)
    children = run.checkpoints.iterdir() if run.checkpoints.is_dir() else ()
    steps = (int(child.name) for child in children if child.name.isascii() and child.name.isdigit())
    return sorted({step for step in steps if is_checkpoint(run.checkpoint(step))})


def newest_step(run_dir: Path) -> int:
    """Updates in the run's newest complete checkpoint; 0 without any."""
    return max(finished_steps(run_dir), default=0)


def find_checkpoint(path: Path, step: int | None = None) -> Path:
    """`path` itself when it is a checkpoint, else the newest complete one of a run folder, or that of `step`.

    Raises:
        EctypeError: there is none.
    """
    if is_checkpoint(path):
        return path
    steps = finished_steps(path)
    if not steps or (step is not None and step not in steps):
        raise EctypeError(
            f"{path} holds no {'checkpoint' if step is None else f'checkpoint of step {step}'}",
            "an Ectype checkpoint, a run folder with checkpoints/, or a Hugging Face folder with config.json",
            f"steps found: {steps}" if steps else "check the path",
        )  # fmt: skip
    return RunFolder(path).checkpoint(steps[-1] if step is None else step)


def damaged_folders(run_dir: Path) -> list[Path]:
    """Folders with the name of a checkpoint that are none: each was complete once, since a save ends in a rename."""
    run = RunFolder(run_dir)
    children = sorted(run.checkpoints.iterdir()) if run.checkpoints.is_dir() else []
    return [
        child
        for child in children
        if child.name.isascii() and child.name.isdigit() and child == run.checkpoint(int(child.name))
        and not is_checkpoint(child)
    ]  # fmt: skip


def delete(run_dir: Path, step: int) -> None:
    """Delete the checkpoint of `step`. Killed half-way, it leaves no folder that looks complete."""
    path = RunFolder(run_dir).checkpoint(step)
    doomed = path.with_name(path.name + _DELETING)
    path.rename(doomed)
    shutil.rmtree(doomed)


def remove_leftovers(run_dir: Path) -> list[Path]:
    """Delete what saves and deletions of this run left when they were killed, and nothing else; returns it."""
    folder = RunFolder(run_dir).checkpoints
    children = sorted(folder.iterdir()) if folder.is_dir() else []
    found = [child for child in children if _LEFTOVER.fullmatch(child.name)]
    for path in found:
        shutil.rmtree(path)
    return found


def roll_back(run_dir: Path, step: int) -> None:
    """Make `step` the newest checkpoint: later ones move to `checkpoints/rolled-back-<n>/` and never count again.

    Raises:
        EctypeError: there is no checkpoint of `step`.
    """
    run, steps = RunFolder(run_dir), finished_steps(run_dir)
    if step not in steps:
        raise EctypeError(f"{run_dir} has no checkpoint of step {step}", f"one of {steps}", "name a step that was kept")
    later = [other for other in steps if other > step]
    if later:
        archive = run.checkpoints / f"{_ARCHIVE}{len(list(run.checkpoints.glob(f'{_ARCHIVE}*'))) + 1}"
        archive.mkdir()
        # The newest first: whatever a crash leaves is a run that was rolled back less far, never one with a hole.
        for other in reversed(later):
            run.checkpoint(other).rename(archive / run.checkpoint(other).name)
