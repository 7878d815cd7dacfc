"""The verdict: criteria in, one of three answers out."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ectype.compare.criteria import Criterion, Outcome
from ectype.compare.held_out_criteria import KL, LOSS, TOP1
from ectype.errors import EXIT_DONE, EXIT_NEGATIVE, EXIT_NOT_ENOUGH_EVIDENCE

Answer = Literal["same model", "not the same model", "not enough evidence"]
SAME: Answer = "same model"
DIFFERENT: Answer = "not the same model"
UNDECIDED: Answer = "not enough evidence"
EXIT_CODES = {SAME: EXIT_DONE, DIFFERENT: EXIT_NEGATIVE, UNDECIDED: EXIT_NOT_ENOUGH_EVIDENCE}
_NEEDED_AT_EACH_LANDMARK = (LOSS, KL, TOP1)


@dataclass(frozen=True)
class Verdict:
    """The answer, the criteria that decided it, and why in one sentence."""

    answer: Answer
    decided_by: tuple[str, ...]
    reason: str
    tokens_needed: int | None = None
    """Held-out tokens with which every unclear criterion would be settled, each on its own text, if estimates stayed as
    they are. None where nothing is unclear, or where more tokens alone would not do."""

    @property
    def exit_code(self) -> int:
        """What the command line ends with."""
        return EXIT_CODES[self.answer]


def decide(
    criteria: Sequence[Criterion], due_landmarks: Sequence[int], first_step: int = 0, next_action: str = ""
) -> Verdict:
    """Judge all criteria together.

    One criterion that is clearly broken suffices for `not the same model`. `same model` needs held-out loss, token KL
    and top-1 agreement at every landmark that is due, at least one of them after training began, and every criterion
    to hold. Anything else is `not enough evidence`; training loss alone can never be more.

    Args:
        criteria: everything that was judged.
        due_landmarks: landmarks that the recipe names and the reference has.
        first_step: that the run counts on from; a landmark there speaks of what it took over alone.
        next_action: what would bring the evidence of landmarks that lack it, in words.
    """
    broken = [criterion for criterion in criteria if criterion.outcome is Outcome.BROKEN]
    if broken:
        return Verdict(DIFFERENT, _labels(broken), _counted(broken, "is broken", "are broken"))
    present = {(criterion.name, criterion.landmark) for criterion in criteria}
    missing = [step for step in due_landmarks if any((name, step) not in present for name in _NEEDED_AT_EACH_LANDMARK)]
    if missing or not any(step > first_step for step in due_landmarks):
        steps = ", ".join(map(str, missing)) or f"after step {first_step}"
        reason = f"no held-out evidence at landmark {steps}; training loss alone proves nothing"
        return Verdict(UNDECIDED, (), f"{reason}; {next_action}" if next_action else reason)
    unclear = [criterion for criterion in criteria if criterion.outcome is not Outcome.HOLDS]
    if unclear:
        reason, needed = _counted(unclear, "is unclear", "are unclear"), _tokens_needed(unclear)
        settled = "more held-out tokens alone would not settle it"
        if needed is not None:
            settled = f"about {needed:,} held-out tokens of each text that is unclear would settle it"
        return Verdict(UNDECIDED, _labels(unclear), f"{reason}; {settled}", needed)
    decisive = tuple(dict.fromkeys(criterion.name for criterion in criteria))
    return Verdict(SAME, decisive, f"all {len(criteria)} criteria hold at {len(due_landmarks)} landmarks")


def label(criterion: Criterion) -> str:
    """A criterion's name with its landmark and domain."""
    place = [f"at step {criterion.landmark}"] if criterion.landmark is not None else []
    return " ".join([criterion.name, *place, *([f"({criterion.domain})"] if criterion.domain else [])])


def _tokens_needed(unclear: Sequence[Criterion]) -> int | None:
    needed = [criterion.tokens_needed for criterion in unclear]
    return None if None in needed else max(filter(None, needed), default=None)


def _labels(criteria: Sequence[Criterion]) -> tuple[str, ...]:
    return tuple(label(criterion) for criterion in criteria)


def _counted(criteria: Sequence[Criterion], one: str, several: str) -> str:
    """Which criteria decided, and the first of them with its numbers."""
    kinds = Counter(criterion.name for criterion in criteria)
    first = criteria[0]
    measured = "" if first.measured is None else f": {first.measured:.3g} {first.unit}"
    bound = "" if first.tolerance is None else f" against {first.tolerance:.3g}"
    note = f" ({first.note})" if first.note else ""
    if len(criteria) == 1:
        return f"{label(first)} {one}{measured}{bound}{note}"
    counts = ", ".join(f"{name} ({count})" if count > 1 else name for name, count in kinds.items())
    return f"{counts} {several}; first {label(first)}{measured}{bound}{note}"
