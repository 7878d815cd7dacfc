"""The matrix of measures by landmarks: each cell a value, what it may be, and whether it holds. Records in, markup out.

Perplexity and bits per byte are the held-out loss in other units, so that they take its outcome, and its tolerance
turned into theirs.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape

from ectype.compare.criteria import Criterion, Outcome
from ectype.compare.held_out_criteria import KL, LOSS, LOSS_BY_DOMAIN, LOSS_BY_SET, TOP1
from ectype.compare.ranking import strain, worst
from ectype.evaluate.record import Evaluation, Summary
from ectype.recipe.held_out_sets import plain_set_name
from ectype.report.judgement import OUTCOME_TONES
from ectype.report.markup import Cell, Column, Html, Tone, bound, icon, number, percent, table
from ectype.report.records import RunRecords
from ectype.tasks.record import TaskEvaluation, TaskResult

_PREFERRED_METRICS = ("acc_norm", "acc", "exact_match")


@dataclass(frozen=True)
class _Row:
    """One measure at every landmark."""

    name: str
    unit: str
    cells: Mapping[int, Html]


def matrix(records: RunRecords, steps: Sequence[int]) -> str:
    """The table: one row per measure, one column per landmark, in order of `steps`."""
    rows = [*_held_out_rows(records), *_set_rows(records), *_task_rows(records.tasks)]
    columns = [Column("ours against the reference"), *(Column(f"update {step:,}", "number") for step in steps)]
    absent = Html('<span class="nothing">not evaluated</span>')
    cells: list[list[Cell]] = [
        [Html(f"{escape(row.name)}<small>{escape(row.unit)}</small>"), *(row.cells.get(s, absent) for s in steps)]
        for row in rows
    ]
    marked = table("Measures by landmarks", columns, cells)
    legend = (
        "A tick holds, a cross is broken, a question mark is unclear, a dash is not judged. The bar is how much of its "
        "tolerance a value uses. Perplexity and bits per byte are the held-out loss in other units, and so are their "
        "tolerances."
    )
    return f'<div class="matrix">{marked}</div><p class="fine">{legend}</p>'


def _criteria(records: RunRecords) -> Sequence[Criterion]:
    """What was judged, if it is still what is there."""
    return () if records.verdict is None or records.changed_since_verdict else records.verdict.criteria


def _held_out_rows(records: RunRecords) -> list[_Row]:
    judged = _criteria(records)

    def difference(summary: Summary) -> float | None:
        return summary.loss.difference

    rows = [
        ("Held-out loss", "difference, nats per token", LOSS, _as_it_is, difference),
        ("Held-out loss, worst domain", "difference, nats per token", LOSS_BY_DOMAIN, _as_it_is, None),
        ("Perplexity", "relative difference", LOSS, _as_perplexity, difference),
        ("Bits per byte", "difference", LOSS, _as_bits_per_byte, difference),
        ("Token KL, mean", "nats per token", KL, _as_it_is, lambda s: s.kl_mean),
        ("Top-1 agreement", "share of tokens", TOP1, _as_it_is, lambda s: s.top1_agreement),
    ]
    made = []
    for name, unit, kind, turn, measure in rows:
        cells = {}
        for step, evaluation in records.evaluations.items():
            found = [c for c in judged if c.name == kind and c.landmark == step]
            criterion = turn(worst(found), evaluation.overall) if found else None
            value = _worst_domain(evaluation) if measure is None else measure(evaluation.overall)
            cells[step] = _cell(criterion or turn(_unjudged(kind, step, value), evaluation.overall), bool(found))
        made.append(_Row(name, unit, cells))
    return made


def _set_rows(records: RunRecords) -> list[_Row]:
    """Further sets; only those that recipe or reference name are judged."""
    found = [c for c in _criteria(records) if c.name == LOSS_BY_SET and c.measured is not None]
    judged = {(plain_set_name(criterion.domain or ""), criterion.landmark): criterion for criterion in found}
    rows = []
    for name, evaluations in records.sets.items():
        cells = {}
        for step, evaluation in evaluations.items():
            criterion = judged.get((name, step))
            cells[step] = _cell(
                criterion or _unjudged(LOSS, step, evaluation.overall.loss.difference), criterion is not None
            )
        rows.append(_Row(f"Held-out loss, {name}", "difference, nats per token", cells))
    return rows


def _task_rows(tasks: Mapping[int, TaskEvaluation]) -> list[_Row]:
    """Our own results on downstream tasks: the reference's are not in the record, so that none is judged."""
    names = dict.fromkeys(name for evaluation in tasks.values() for name in evaluation.tasks)
    rows = []
    for name in names:
        found = {step: evaluation.tasks[name] for step, evaluation in tasks.items() if name in evaluation.tasks}
        metric = _metric(next(iter(found.values())))
        if metric is not None:
            cells = {step: _task_cell(result, metric) for step, result in found.items()}
            rows.append(_Row(f"Task {name}", f"{metric}, ours", cells))
    return rows


def _metric(result: TaskResult) -> str | None:
    return next((name for name in (*_PREFERRED_METRICS, *result.metrics) if name in result.metrics), None)


def _task_cell(result: TaskResult, metric: str) -> Html:
    found = result.metrics.get(metric)
    if found is None:
        return Html('<span class="nothing">not evaluated</span>')
    spread = "" if found.standard_error is None else f" ± {number(found.standard_error, 2)}"
    return _marked("none", f"{number(found.value)}{spread}", f"of {result.items:,} items, not judged", math.nan)


def _cell(criterion: Criterion, judged: bool) -> Html:
    as_share = criterion.name == TOP1
    value = percent(criterion.measured, 3) if as_share else number(criterion.measured)
    if not judged:
        return _marked("none", value, "not judged", math.nan)
    limit = f"≥ {percent(criterion.tolerance, 1)}" if as_share else f"≤ {bound(criterion.tolerance)}"
    domain = f" · {escape(criterion.domain)}" if criterion.name == LOSS_BY_DOMAIN and criterion.domain else ""
    return _marked(
        OUTCOME_TONES[criterion.outcome], value, f"{criterion.outcome.value}, {limit}{domain}", strain(criterion)
    )


def _marked(tone: Tone, value: str, below: str, used: float) -> Html:
    bar = ""
    if not math.isnan(used):
        bar = f'<i class="used" style="--used:{min(1.0, used):.3f}" aria-hidden="true"></i>'
    return Html(f'<span class="mark {tone}">{icon(tone)}</span>{value}<small>{below}</small>{bar}')


def _unjudged(name: str, step: int, value: float | None) -> Criterion:
    return Criterion(name, step, None, value, "", None, None, "", None, Outcome.UNCLEAR)


def _as_it_is(criterion: Criterion, summary: Summary) -> Criterion:
    return criterion


def _as_perplexity(criterion: Criterion, summary: Summary) -> Criterion:
    """exp(loss) ours over the reference's, less 1."""
    return _turned(criterion, math.expm1)


def _as_bits_per_byte(criterion: Criterion, summary: Summary) -> Criterion:
    """Nats per token times tokens over ln 2 and bytes; nothing where the bytes are not known."""
    if not summary.bytes:
        return replace(criterion, measured=None, tolerance=None)
    factor = summary.targets / summary.bytes / math.log(2)
    return _turned(criterion, lambda value: value * factor)


def _turned(criterion: Criterion, turn: Callable[[float], float]) -> Criterion:
    measured, tolerance = criterion.measured, criterion.tolerance
    return replace(
        criterion,
        measured=None if measured is None else turn(measured),
        tolerance=None if tolerance is None else turn(tolerance),
    )


def _worst_domain(evaluation: Evaluation) -> float | None:
    differences = [domain.summary.loss.difference for domain in evaluation.domains.values()]
    return max((d for d in differences if d is not None), key=abs, default=None)
