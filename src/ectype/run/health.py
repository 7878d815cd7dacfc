"""Whether a run is well, from numbers alone: losses, seconds and signs of life in, findings out.

Arrays are float64 [updates], oldest first, or [processes]; NaN where a number is not known.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from ectype.recipe.placement import Health

FindingKind = Literal["not_finite", "spike", "slow", "skipped", "data_wait", "straggler", "stalled", "lost"]
State = Literal["starting", "training", "stalled", "lost", "stopped", "failed", "unhealthy", "finished"]
BAD_STATES: tuple[State, ...] = ("stalled", "lost", "failed", "unhealthy")
"""Those that somebody should look at."""
Activity = Literal["update", "data", "other"]
"""Of a process: computing an update, waiting for its data, or at something whose length no update tells."""
End = Literal["done", "stopped", "failed", "unhealthy"]
"""How a session ended, as far as it could say so itself."""

_NORMAL_DEVIATIONS_PER_MAD = 1.4826
"""Of a normal distribution: 1 / Phi^-1(3/4) (Rousseeuw and Croux 1993)."""
_MOST_NAMED = 16
_LEAST_BLOCKS = 2
"""Blocks of updates before the recent ones that a settled step time needs."""


@dataclass(frozen=True)
class Finding:
    """Something that is not as it should be; `step` is the update that shows it, `process` the one it is about."""

    kind: FindingKind
    text: str
    step: int | None = None
    process: int | None = None


@dataclass(frozen=True)
class Updates:
    """The last updates of a run. `steps` int64 [n]; all else float64 [n]; `skipped` 1 for yes."""

    steps: np.ndarray
    loss: np.ndarray
    grad_norm: np.ndarray
    skipped: np.ndarray
    step_seconds: np.ndarray
    """With the wait for data."""
    data_wait_seconds: np.ndarray

    @property
    def compute_seconds(self) -> np.ndarray:
        """Without the wait for data."""
        return self.step_seconds - np.nan_to_num(self.data_wait_seconds)

    @property
    def finite(self) -> np.ndarray:
        """bool [n]: loss and gradient norm are finite."""
        return is_finite(self.loss, self.grad_norm)


@dataclass(frozen=True)
class Sign:
    """What one process last said of itself, and how long ago."""

    process: int
    host: str
    step: int
    """Updates that it has finished."""
    phase: str
    phase_seconds: float
    """Until now."""
    activity: Activity
    age_seconds: float
    own_seconds: float | None = None
    """Median of recent updates: what the process did alone between two of them, its wait for data included."""
    probe_seconds: float | None = None
    """Median of recent probes of its slowest device."""
    ended: End | None = None
    processes: int = 1
    """Of its job, itself included."""
    session_seconds: float = 0.0
    """Since its session began, until now."""

    def alive(self, policy: Health) -> bool:
        """Whether it runs, as far as its sign tells."""
        return self.ended is None and self.age_seconds <= policy.lost_after_seconds

    def lost(self, policy: Health) -> bool:
        """Whether it fell silent without a word."""
        return self.ended is None and self.age_seconds > policy.lost_after_seconds


def is_finite(loss: np.ndarray, grad_norm: np.ndarray) -> np.ndarray:
    """Whether loss and gradient norm of each update are both finite; of one update too."""
    return np.isfinite(loss) & np.isfinite(grad_norm)


def is_spike(loss: float, threshold: float | None) -> bool:
    """Whether a loss spikes, by `spike_threshold`. One that is not finite is no spike, but `is_finite` finds it."""
    return threshold is not None and bool(threshold < loss < np.inf)


def spike_threshold(earlier: np.ndarray, policy: Health) -> float | None:
    """The loss above which the next update's is a spike; None while too little is known.

    Median plus deviations, by the median absolute deviation: a spike in the past moves neither.

    Args:
        earlier: losses of the updates before it; those that are not finite count for nothing.
    """
    recent = earlier[-policy.spike_window_updates :]
    recent = recent[np.isfinite(recent)]
    if len(recent) < policy.spike_window_updates // 2:
        return None
    median = np.median(recent)
    deviation = _NORMAL_DEVIATIONS_PER_MAD * np.median(np.abs(recent - median))
    return float(median + max(policy.spike_deviations * deviation, policy.spike_least_nats))


def settled_seconds(compute_seconds: np.ndarray, policy: Health) -> float | None:
    """The session's own settled step time: the least median of its whole blocks of updates before the recent ones.

    The least, so that a slow-down that has lasted for long does not become the rule.
    """
    block = policy.recent_updates
    before = compute_seconds[: max(0, len(compute_seconds) - block)]
    # What does not fill a block is left out at the front, where a session warms up.
    blocks = before[len(before) % block :].reshape(-1, block)
    if len(blocks) < _LEAST_BLOCKS:
        return None
    medians = np.median(blocks, axis=1)
    medians = medians[np.isfinite(medians)]
    return float(medians.min()) if len(medians) else None


def recent_seconds(compute_seconds: np.ndarray, policy: Health) -> float | None:
    """The median step time of the recent updates; None before the first."""
    recent = compute_seconds[-policy.recent_updates :]
    recent = recent[np.isfinite(recent)]
    return float(np.median(recent)) if len(recent) else None


def data_wait_share(session: Updates, policy: Health) -> float | None:
    """Of the recent updates' seconds, the share that went into waiting for data; None before there are so many."""
    waits, seconds = (array[-policy.recent_updates :] for array in (session.data_wait_seconds, session.step_seconds))
    if len(waits) < policy.recent_updates or not np.nansum(seconds):
        return None
    return float(np.nansum(waits) / np.nansum(seconds))


def skipped_share(updates: Updates, policy: Health) -> float | None:
    """The share of the recent updates that were skipped; None before there are so many."""
    recent = updates.skipped[-policy.recent_updates :]
    if len(recent) < policy.recent_updates or not np.isfinite(recent).any():
        return None
    return float(np.nanmean(recent))


def session_goodput(updating_seconds: float, session_seconds: float) -> float | None:
    """The share of a session that went into updates; None before the first."""
    return min(1.0, updating_seconds / session_seconds) if updating_seconds else None


def left_seconds(left_updates: int, step_seconds: float | None, goodput: float | None) -> float | None:
    """Until the target, at a session's pace; None before its first update."""
    return step_seconds * left_updates / goodput if step_seconds is not None and goodput else None


def judge_updates(updates: Updates, session: Updates, policy: Health) -> list[Finding]:
    """What the last updates show.

    Args:
        updates: the run's last ones; `session`: those of them that the current session made.
    """
    return [
        *_not_finite(updates, policy), *_spikes(updates, policy), *_slow(session, policy),
        *_skipped(updates, policy), *_data_wait(session, policy),
    ]  # fmt: skip


def _not_finite(updates: Updates, policy: Health) -> list[Finding]:
    bad = updates.steps[-policy.recent_updates :][~updates.finite[-policy.recent_updates :]]
    if not len(bad):
        return []
    return [Finding("not_finite", f"loss or gradient norm of {len(bad)} recent updates is not finite", int(bad[-1]))]


def _spikes(updates: Updates, policy: Health) -> list[Finding]:
    for place in reversed(range(max(0, len(updates.loss) - policy.recent_updates), len(updates.loss))):
        threshold = spike_threshold(updates.loss[:place], policy)
        if is_spike(updates.loss[place], threshold):
            text = f"loss {updates.loss[place]:.4f}, spikes begin at {threshold:.4f}"
            return [Finding("spike", text, int(updates.steps[place]))]
    return []


def _slow(session: Updates, policy: Health) -> list[Finding]:
    settled, recent = (measure(session.compute_seconds, policy) for measure in (settled_seconds, recent_seconds))
    if settled is None or recent is None or recent <= policy.slow_factor * settled:
        return []
    text = f"updates take {recent:.3g} s, {recent / settled:.2f} times the settled {settled:.3g} s"
    return [Finding("slow", text, int(session.steps[-1]))]


def _skipped(updates: Updates, policy: Health) -> list[Finding]:
    share = skipped_share(updates, policy)
    if share is None or share <= policy.skipped_share:
        return []
    return [Finding("skipped", f"{share:.0%} of the last {policy.recent_updates} updates were skipped")]


def _data_wait(session: Updates, policy: Health) -> list[Finding]:
    share = data_wait_share(session, policy)
    if share is None or share <= policy.data_wait_share:
        return []
    text = f"{share:.0%} of the last {policy.recent_updates} updates' time went into waiting for data"
    return [Finding("data_wait", text)]


def judge_signs(signs: Sequence[Sign], step_seconds: float | None, policy: Health) -> list[Finding]:
    """Which processes are dead, which hold the others up, and which are slower than the others.

    Args:
        step_seconds: of a typical update; None before the first.
    """
    if all(sign.ended is not None for sign in signs):
        return []
    silent = [
        Finding(
            "lost", f"{_who(sign)}: no sign for {sign.age_seconds:.0f} s, last: {sign.phase}", sign.step, sign.process
        )
        for sign in signs
        if sign.lost(policy)
    ]
    alive = [sign for sign in signs if sign.alive(policy)]
    held_up = [*_stalled(alive, step_seconds, policy), *_stragglers(alive, step_seconds, policy)]
    return [*silent, *_never_heard_of(signs, policy), *held_up]


def _never_heard_of(signs: Sequence[Sign], policy: Health) -> list[Finding]:
    """Processes of the job that the others count and that have had time enough to say something."""
    if max(sign.session_seconds for sign in signs) <= policy.lost_after_seconds:
        return []
    missing = sorted(set(range(max(sign.processes for sign in signs))) - {sign.process for sign in signs})
    if len(missing) > _MOST_NAMED:
        some = ", ".join(map(str, missing[:_MOST_NAMED]))
        return [Finding("lost", f"{len(missing)} processes never gave a sign, {some} among them", process=missing[0])]
    return [Finding("lost", f"process {number} never gave a sign", process=number) for number in missing]


def _stalled(alive: Sequence[Sign], step_seconds: float | None, policy: Health) -> list[Finding]:
    """Of the processes that stand still, those that the others wait for: behind them, or not in the update itself."""
    limit = max(policy.stalled_factor * (step_seconds or 0.0), policy.stalled_least_seconds)
    still = [sign for sign in alive if sign.activity != "other" and sign.phase_seconds > limit]
    if not still:
        return []
    furthest = max(sign.step for sign in still)
    awaited = [sign for sign in alive if sign.step < furthest or sign.activity != "update"] or still
    return [
        Finding(
            "stalled",
            f"{_who(sign)}: {sign.phase} for {sign.phase_seconds:.0f} s"
            + (f"; {len(still)} processes stand still" if len(still) > 1 else ""),
            sign.step, sign.process,
        )
        for sign in awaited
    ]  # fmt: skip


def _stragglers(alive: Sequence[Sign], step_seconds: float | None, policy: Health) -> list[Finding]:
    """Each process beside the median of the others: its own work outside updates, and its probe."""
    found = []
    own, probes = (
        np.array([np.nan if value is None else value for value in values], np.float64)
        for values in ([sign.own_seconds for sign in alive], [sign.probe_seconds for sign in alive])
    )
    for place, sign in enumerate(alive):
        usual, probe = (_median_of_others(values, place) for values in (own, probes))
        excess = own[place] - usual
        if step_seconds is not None and excess > policy.straggler_share * step_seconds:
            text = f"{_who(sign)}: {excess:.3g} s more of its own between two updates than the others"
            found.append(Finding("straggler", text, sign.step, sign.process))
        elif probes[place] > policy.straggler_factor * probe:
            text = f"{_who(sign)}: its devices take {probes[place] / probe:.2f} times as long as the others'"
            found.append(Finding("straggler", text, sign.step, sign.process))
    return found


def _median_of_others(values: np.ndarray, place: int) -> float:
    others = np.delete(values, place)
    others = others[np.isfinite(others)]
    return float(np.median(others)) if len(others) else np.nan


def _who(sign: Sign) -> str:
    return f"process {sign.process} on {sign.host}"


def judge_state(signs: Sequence[Sign], findings: Sequence[Finding], saved: int, target: int, policy: Health) -> State:
    """What the run does, or how it ended.

    Args:
        saved: updates in its newest checkpoint; `target`: the recipe's.
    """
    if any(sign.alive(policy) for sign in signs):
        if any(finding.kind in ("stalled", "lost") for finding in findings):
            return "stalled"
        # A session begins with a phase that belongs to no update, and has done none of its own.
        begun = any(sign.activity != "other" or sign.own_seconds is not None for sign in signs)
        return "training" if begun else "starting"
    ends = {sign.ended for sign in signs}
    for worst in ("unhealthy", "failed"):
        if worst in ends:
            return worst
    if saved >= target:
        return "finished"
    return "lost" if None in ends else "stopped"
