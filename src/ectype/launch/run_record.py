"""How many updates a run has completed, by its own record: on this file system, or in a bucket through `gcloud`.

A checkpoint counts only with its description, which is written last, and the count is the one that stands in the
description, not the folder's name. An answer that could not be had is None, never 0.
"""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ectype.artifacts import parse_json
from ectype.launch.command import Ran
from ectype.run.checkpoints import description_file, finished_steps
from ectype.run.metrics import last_rows, parse_row
from ectype.run.paths import RunFolder

Reader = Callable[[], "Reading"]
_TAIL_BYTES = 65536
_MOST_UPDATES = 1 << 53
_NOTHING_THERE = re.compile(r"matched no objects|No URLs matched|The following URLs matched no objects")


@dataclass(frozen=True)
class Reading:
    """What the run's record shows."""

    completed_updates: int | None
    """Updates in the newest complete checkpoint, 0 for a run not begun; None: could not be read."""
    reached_step: int | None = None
    """The last update in the metrics."""
    why: str = ""
    """Why nothing could be read."""


def read_run(run_dir: Path) -> Reading:
    """The record of a run folder that this machine sees."""
    try:
        if not run_dir.is_dir():
            # A missing mount looks like a run that was never begun.
            if not run_dir.resolve().parent.is_dir():
                return Reading(None, why=f"there is no folder {run_dir.resolve().parent}")
            return Reading(0)
        rows = last_rows(run_dir, 1)
        steps = finished_steps(run_dir)
    except OSError as error:
        return Reading(None, why=f"{run_dir}: {error}")
    reached: int | None = rows[-1]["step"] if rows else None
    fault: Exception | None = None
    for step in reversed(steps):  # The trainer takes an older checkpoint, too, when the newest is damaged.
        try:
            description = parse_json(description_file(RunFolder(run_dir).checkpoint(step)).read_bytes())
            return Reading(_step_in(description), reached)
        except (OSError, ValueError) as error:
            fault = fault or error
    return Reading(0, reached) if fault is None else Reading(None, reached, f"{run_dir}: {fault}")


def read_bucket_run(uri: str, call: Callable[[list[str]], Ran]) -> Reading:
    """The record of a run folder at `gs://...`, through the `gcloud` on PATH.

    Args:
        call: runs a command and gives its exit code and output.
    """
    root = uri.rstrip("/")
    pattern = f"{root}/checkpoints/*/{description_file(Path('checkpoint')).relative_to('checkpoint')}"
    listed = call(["gcloud", "storage", "ls", pattern])
    if listed.code != 0 and _NOTHING_THERE.search(listed.errors):
        return Reading(0)
    names = {line.strip() for line in listed.output.splitlines()}
    steps = [int(found[1]) for name in names if (found := re.search(r"/checkpoints/(\d{8,})/", name))]
    if listed.code != 0 or not steps:
        return Reading(None, why=f"gcloud storage ls: {listed.last_words}")
    newest = description_file(RunFolder(Path("run")).checkpoint(max(steps))).relative_to("run")
    described = call(["gcloud", "storage", "cat", f"{root}/{newest}"])
    try:
        completed = _step_in(parse_json(described.output))
    except ValueError as error:
        return Reading(None, why=f"gcloud storage cat: {described.last_words or error}")
    metrics = call(
        ["gcloud", "storage", "cat", f"--range=-{_TAIL_BYTES}", f"{root}/{RunFolder(Path('run')).metrics.name}"]
    )
    return Reading(completed, _last_step(metrics.output.encode()) if metrics.code == 0 else None)


def _step_in(description: Any) -> int:
    step = description.get("step") if isinstance(description, dict) else None
    if not isinstance(step, int) or isinstance(step, bool) or not 0 <= step < _MOST_UPDATES:
        raise ValueError(f"a checkpoint's description without a step: {json.dumps(description)[:80]}")
    return step


def _last_step(tail: bytes) -> int | None:
    """The step of the last whole row; the first line may be cut, and a crash may have torn the last."""
    for line in reversed(tail.splitlines()):
        try:
            return parse_row(line)["step"]
        except ValueError:
            continue
    return None
