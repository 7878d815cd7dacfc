"""Which landmarks of a run are due, which are evaluated, which are lost; and who evaluates one at the moment."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ectype.artifacts import lock
from ectype.errors import EctypeError
from ectype.recipe.reference import Reference
from ectype.recipe.spec import Recipe
from ectype.run.checkpoints import finished_steps
from ectype.run.manifest import first_step
from ectype.run.paths import RunFolder

State = Literal["ahead", "due", "done", "missing"]
"""The run has not come to it; its checkpoint waits to be evaluated; it is evaluated on every set; the run went past it
and its checkpoint is not there."""


@dataclass(frozen=True)
class Landmarks:
    """A run's landmarks beside its reference's: which to compare, and which can't be."""

    due: tuple[int, ...]
    """Landmarks of the recipe for which the reference has weights; none before the step that a stage counts on from."""
    available: tuple[int, ...]
    """Those of `due` whose checkpoint exists in the run."""

    @property
    def missing(self) -> tuple[int, ...]:
        """Landmarks that are due and that the run holds no checkpoint of."""
        return tuple(step for step in self.due if step not in self.available)


def find_landmarks(run_dir: Path, recipe: Recipe, reference: Reference) -> Landmarks:
    """Which of the recipe's landmarks the reference has too, and which of those the run has reached and kept."""
    shared, first = set(recipe.landmarks) & reference.landmarks.keys(), first_step(run_dir)
    due = tuple(sorted(step for step in shared if step >= first))
    finished = finished_steps(run_dir)
    return Landmarks(due, tuple(step for step in due if step in finished))


def require_due(found: Landmarks, reference: Reference) -> None:
    """Refuse a run that can never be evaluated.

    Raises:
        EctypeError: it shares no landmark with its reference.
    """
    if not found.due:
        raise EctypeError(
            "no landmark of the recipe is one of the reference's",
            f"at least one of {sorted(reference.landmarks)} in the recipe's `landmarks`",
            "train with --set landmarks=[...], or name another reference",
        )


def landmark_states(run_dir: Path, landmarks: Landmarks, done: Mapping[int, bool]) -> dict[int, State]:
    """The ledger: the state of each landmark that is due.

    Args:
        done: whether each one whose checkpoint exists is evaluated on every set.
    """
    newest = max(finished_steps(run_dir), default=-1)

    def state(step: int) -> State:
        if step in landmarks.available:
            return "done" if done[step] else "due"
        return "ahead" if step > newest else "missing"

    return {step: state(step) for step in landmarks.due}


@contextmanager
def landmark_lock(run_dir: Path, step: int, busy: EctypeError | None = None) -> Iterator[None]:
    """Hold a landmark while it is evaluated; a crash releases it.

    Args:
        busy: raised when another process holds it; None waits for that process.
    """
    with lock(RunFolder(run_dir).evaluation_lock(step), busy):
        yield
