"""Which criterion is worst: by its outcome, then by how much of its tolerance it uses. Records in, records out."""

import math
from collections.abc import Sequence

from ectype.compare.criteria import Criterion, Outcome
from ectype.compare.held_out_criteria import TOP1

_BADNESS = {Outcome.HOLDS: 0, Outcome.UNCLEAR: 1, Outcome.BROKEN: 2}


def strain(criterion: Criterion) -> float:
    """How much of its tolerance a criterion uses: 1 is at the limit, NaN when there is no saying."""
    if criterion.measured is None or criterion.tolerance is None:
        return math.nan
    measured, tolerance = abs(criterion.measured), abs(criterion.tolerance)
    if criterion.name == TOP1:
        # The one measure that should be large: what is used up is the disagreement.
        measured, tolerance = 1 - measured, 1 - tolerance
    if tolerance == 0:
        return 0.0 if measured == 0 else math.inf
    return measured / tolerance


def worst(criteria: Sequence[Criterion]) -> Criterion:
    """The criterion that is broken, unclear, or nearest to its limit, in this order."""

    def badness(criterion: Criterion) -> tuple[int, float]:
        used = strain(criterion)
        return _BADNESS[criterion.outcome], -1.0 if math.isnan(used) else used

    return max(criteria, key=badness)


def folded(criteria: Sequence[Criterion]) -> list[tuple[Criterion, int]]:
    """Criteria with those of several domains folded into the worst one, and how many domains that was (0: none)."""
    groups: dict[tuple[str, int | None], list[Criterion]] = {}
    for criterion in criteria:
        groups.setdefault((criterion.name, criterion.landmark), []).append(criterion)
    return [(worst(group), len(group) if group[0].domain else 0) for group in groups.values()]
