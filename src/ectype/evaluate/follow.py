"""Evaluate a run's landmarks beside its training: what is due now, then each one as it comes, until the last."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ectype.errors import EctypeError
from ectype.evaluate.disjoint import CHECKED_WINDOWS, require_disjoint
from ectype.evaluate.engine import Settings
from ectype.evaluate.held_out import HeldOutText
from ectype.evaluate.landmarks import State, find_landmarks, landmark_lock, landmark_states, require_due
from ectype.evaluate.record import Evaluation
from ectype.evaluate.runner import evaluate_locked, is_evaluated
from ectype.progress import Progress, silent
from ectype.recipe.held_out_sets import MAIN_SET
from ectype.recipe.reference import Reference
from ectype.run.checkpoints import description_file, newest_step
from ectype.run.manifest import load_run_recipe
from ectype.run.paths import RunFolder

POLL_SECONDS = 5.0
_BUSY = EctypeError("another process evaluates this landmark", "one at a time", "wait for it")


@dataclass
class LandmarkLedger:
    """Landmarks of a run with their states, read again at each call.

    Finding out whether a record still counts takes hashing the weights, so a landmark that was found done is looked at
    again only when its checkpoint was written anew.
    """

    run_dir: Path
    reference: Reference
    texts: Mapping[str, HeldOutText]
    settings: Settings
    _done: dict[int, int] = field(default_factory=dict)

    def states(self) -> dict[int, State]:
        """Step -> state, for each landmark that is due."""
        landmarks = find_landmarks(self.run_dir, load_run_recipe(self.run_dir), self.reference)
        return landmark_states(self.run_dir, landmarks, {step: self._is_done(step) for step in landmarks.available})

    def _is_done(self, step: int) -> bool:
        written = description_file(RunFolder(self.run_dir).checkpoint(step)).stat().st_mtime_ns
        if self._done.get(step) != written:
            if not is_evaluated(self.run_dir, step, self.reference, self.texts, self.settings):
                return False
            self._done[step] = written
        return True


def follow_run(
    run_dir: Path,
    reference: Reference,
    texts: Mapping[str, HeldOutText],
    settings: Settings,
    *,
    evaluated: Callable[[int, Evaluation], None],
    poll_seconds: float = POLL_SECONDS,
    disjoint_windows: int = CHECKED_WINDOWS,
    progress: Progress = silent,
) -> dict[int, State]:
    """Evaluate each landmark once its checkpoint is there, until the run has come to its last one.

    Several processes may follow one run: they share out what is due, and none evaluates what another does. What an
    earlier one left undone is due like anything else.

    Args:
        texts: from `run_texts`.
        evaluated: is told of each landmark that this process evaluated.
        disjoint_windows: as for `evaluate_run`.

    Returns:
        The ledger at the end: every landmark done or missing.

    Raises:
        EctypeError: nothing is due ever, training reads held-out text, or a landmark can't be evaluated.
    """
    recipe = load_run_recipe(run_dir)
    require_due(find_landmarks(run_dir, recipe, reference), reference)
    require_disjoint(run_dir, recipe, texts, most_windows=disjoint_windows, progress=progress)
    ledger = LandmarkLedger(run_dir, reference, texts, settings)
    while True:
        states = ledger.states()
        due = [step for step, state in states.items() if state == "due"]
        if not due and newest_step(run_dir) >= max(states, default=0):
            return states
        if not any(_evaluate(ledger, step, evaluated, progress) for step in due):
            time.sleep(poll_seconds)


def _evaluate(
    ledger: LandmarkLedger, step: int, evaluated: Callable[[int, Evaluation], None], progress: Progress
) -> bool:  # fmt: skip
    """Evaluate one landmark unless another process holds it or has done it since; whether it was."""
    try:
        with landmark_lock(ledger.run_dir, step, _BUSY):
            if ledger.states().get(step) != "due":
                return False
            found = evaluate_locked(ledger.run_dir, step, ledger.reference, ledger.texts, ledger.settings, progress)
    except EctypeError as error:
        if error is _BUSY:
            return False
        raise
    evaluated(step, found[MAIN_SET])
    return True
