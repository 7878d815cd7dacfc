"""What a run folder says about its run: how far it is, whether it runs, and what is wrong with it."""

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ectype.run.checkpoints import newest_step
from ectype.run.health import (
    BAD_STATES,
    Finding,
    Sign,
    State,
    Updates,
    data_wait_share,
    judge_signs,
    judge_state,
    judge_updates,
    left_seconds,
    recent_seconds,
    session_goodput,
    settled_seconds,
    skipped_share,
)
from ectype.run.heartbeats import Heartbeat, read_heartbeats
from ectype.run.manifest import load_run_recipe, read_manifest
from ectype.run.metrics import Row, last_rows
from ectype.run.paths import RunFolder

_ROWS = 4096
"""Updates that are looked at: enough for a settled step time, and read in a moment however long the run is."""


@dataclass(frozen=True)
class RunStatus:
    """One look at a run. Seconds and shares of updates are of the recent ones; None where nothing says it."""

    run: str
    recipe: str
    recipe_hash: str
    state: State
    words: str
    """What ended it, or what it does, in a sentence."""
    at_unix_seconds: float
    completed_updates: int
    """By its metrics. Those after `saved_updates` are lost should it end now."""
    saved_updates: int
    target_updates: int
    starts: int
    last: Row | None
    """Its newest row of metrics."""
    step_seconds: float | None
    settled_step_seconds: float | None
    """The session's own usual one; both without waits for data."""
    data_wait_share: float | None
    skipped_share: float | None
    session_goodput: float | None
    """Share of the session's seconds that its updates took, without waits for data."""
    left_seconds: float | None
    """Until the target, at the pace of this session."""
    processes: tuple[Sign, ...]
    findings: tuple[Finding, ...]

    @property
    def bad_state(self) -> bool:
        """Whether its state alone is one to look at."""
        return self.state in BAD_STATES

    @property
    def well(self) -> bool:
        """Whether nobody need look at it: it runs, is done, or was stopped, and nothing was found."""
        return not self.findings and not self.bad_state

    def record(self) -> dict[str, Any]:
        """As plain values; a number that is not finite is null."""
        return _plain(asdict(self)) | {"well": self.well}


def run_status(run_dir: Path, now_unix_seconds: float | None = None) -> RunStatus:
    """Look at the run in `run_dir`; nothing in it is changed or locked.

    Raises:
        EctypeError: it is no run's folder, or its records can't be read.
    """
    now = time.time() if now_unix_seconds is None else now_unix_seconds
    RunFolder(run_dir).require()
    recipe, manifest = load_run_recipe(run_dir), read_manifest(run_dir)
    policy, beats = manifest.placement.health, read_heartbeats(run_dir)
    signs = tuple(beat.sign(now) for beat in beats)
    rows = last_rows(run_dir, _ROWS)
    first = manifest.sessions[-1].from_step if manifest.sessions else 0
    updates = _updates(rows)
    session = _updates([row for row in rows if row["step"] > first])
    recent, settled = (measure(session.compute_seconds, policy) for measure in (recent_seconds, settled_seconds))
    findings = (*judge_updates(updates, session, policy), *judge_signs(signs, recent, policy))
    saved, target = newest_step(run_dir), recipe.duration_steps
    completed = max(saved, rows[-1]["step"] if rows else 0)
    state = judge_state(signs, findings, saved, target, policy)
    first_beat = next((beat for beat in beats if beat.process == 0), None)
    goodput = None if first_beat is None else session_goodput(first_beat.updating_seconds, first_beat.session_seconds)
    return RunStatus(
        run=str(run_dir), recipe=recipe.name, recipe_hash=manifest.recipe_hash, state=state,
        words=_words(state, beats, signs), at_unix_seconds=now, completed_updates=completed, saved_updates=saved,
        target_updates=target, starts=len(manifest.sessions), last=rows[-1] if rows else None, step_seconds=recent,
        settled_step_seconds=settled, data_wait_share=data_wait_share(session, policy),
        skipped_share=skipped_share(updates, policy), session_goodput=goodput,
        left_seconds=left_seconds(target - completed, recent, goodput),
        processes=signs, findings=findings,
    )  # fmt: skip


def _updates(rows: Sequence[Row]) -> Updates:
    def series(name: str) -> np.ndarray:
        return np.array([np.nan if row.get(name) is None else row[name] for row in rows], np.float64)

    return Updates(
        np.array([row["step"] for row in rows], np.int64),
        *(series(name) for name in ("loss", "grad_norm", "skipped", "step_seconds", "data_wait_seconds")),
    )


def _words(state: State, beats: Sequence[Heartbeat], signs: Sequence[Sign]) -> str:
    """A line for people: why it ended, or what process 0 does."""
    faults = [beat for beat in beats if beat.error is not None and beat.ended == state]
    if faults:  # The others' errors may be effects of the first one's.
        return str(min(faults, key=lambda beat: beat.at_unix_seconds).error)
    if not signs:
        return "no process has told of itself"
    sign = min(signs, key=lambda sign: sign.process)
    if state in ("finished", "stopped"):
        return f"ended {sign.age_seconds:.0f} s ago"
    lasted = max(0.0, sign.phase_seconds - sign.age_seconds)
    return f"last sign {sign.age_seconds:.0f} s ago: {sign.phase} for {lasted:.0f} s"


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    return None if isinstance(value, float) and not np.isfinite(value) else value
