"""The report's top: the verdict, the figures that matter most, and the table of criteria. Records in, markup out."""

import math
from collections.abc import Sequence
from html import escape

from ectype.compare.criteria import Criterion, Outcome
from ectype.compare.held_out_criteria import TOP1
from ectype.compare.ranking import strain, worst
from ectype.compare.verdict import DIFFERENT, SAME, UNDECIDED, label
from ectype.report.markup import (
    Cell,
    Column,
    Html,
    Part,
    Tone,
    bound,
    chip,
    icon,
    missing,
    number,
    percent,
    section,
    table,
)
from ectype.report.records import RunRecords

_TONES: dict[str, Tone] = {SAME: "good", DIFFERENT: "bad", UNDECIDED: "open"}
OUTCOME_TONES: dict[Outcome, Tone] = {Outcome.HOLDS: "good", Outcome.BROKEN: "bad", Outcome.UNCLEAR: "open"}
"""How an outcome is shown: each tone has a sign of its own beside its colour."""


def verdict_part(records: RunRecords) -> Part:
    """The verdict in large letters, why, and the figures behind it."""
    verdict = records.verdict
    if verdict is None:
        tone: Tone = "none"
        heading, reason = "No verdict yet", "This run has not been compared with its reference."
        more = escape(f"{records.command('compare')} gives one.")
    elif records.changed_since_verdict:
        tone, heading = "none", "The verdict is out of date"
        changed = ", ".join(records.changed_since_verdict)
        reason = f"It said “{verdict.verdict}”, of records that have changed since: {changed}."
        more = escape(f"{records.command('compare')} gives one of what is there now.")
    else:
        tone = _TONES.get(verdict.verdict, "none")
        heading, reason = verdict.verdict[:1].upper() + verdict.verdict[1:], _sentence(verdict.reason)
        behind = _second_sentence(verdict.verdict, verdict.criteria)
        more = f"{behind} Horizon of the comparison step by step: {escape(verdict.horizon.text)}."
    markup = (
        f'<section id="verdict" aria-labelledby="verdict-title"><div class="verdict {tone}">'
        f'<div class="sign">{icon(tone)}</div><h2 id="verdict-title">{escape(heading)}</h2>'
        f"<p>{escape(reason)}</p><p>{more}</p></div>{_tiles(records)}{_landmark_notes(records)}</section>"
    )
    return Part("verdict", "Verdict", markup)


def criteria_part(records: RunRecords) -> Part:
    """Each kind of criterion by its most telling case, and the whole list below."""
    title = "Criteria"
    lead = "Each kind of criterion with its worst case: the one that is broken, unclear, or nearest to its limit."
    if records.verdict is None:
        none = missing("There are no criteria without a comparison.", records.command("compare"))
        return Part("criteria", "Criteria", section("criteria", title, lead, none))
    criteria = records.verdict.criteria
    kinds = list(dict.fromkeys(criterion.name for criterion in criteria))
    columns = [
        Column("criterion"), Column("outcome"), Column("measured", "number"), Column("95 % interval", "number"),
        Column("tolerance", "number"), Column("source of the tolerance"),
    ]  # fmt: skip
    rows = [_kind_row([criterion for criterion in criteria if criterion.name == kind]) for kind in kinds]
    summary = table("Worst case of each kind", columns, rows, stack=True)
    every = table(f"All {len(criteria)} criteria", columns, [_row(c, label(c), _chip(c)) for c in criteria])
    details = f'<details class="card"><summary>All {len(criteria)} criteria</summary>{every}</details>'
    return Part("criteria", "Criteria", section("criteria", title, lead, summary, details))


def _second_sentence(answer: str, criteria: Sequence[Criterion]) -> str:
    """How near the nearest criterion is to its limit. A verdict's reason says what would settle an open question."""
    if answer == SAME and criteria:
        nearest = worst(criteria)
        used = strain(nearest)
        share = "" if math.isnan(used) else f", {percent(used, 1)} of what it may be"
        return f"Nearest to its limit: {escape(label(nearest))}, {_value(nearest, nearest.measured)}{share}."
    return ""


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}{'' if text.endswith('.') else '.'}"


def _tiles(records: RunRecords) -> str:
    last = records.evaluations[max(records.evaluations)] if records.evaluations else None
    done = 0 if records.metrics is None else int(records.metrics.steps[-1])
    tiles = [_tile("Updates", f"{done:,}", f"of {records.recipe.duration_steps:,}")]
    if records.overlay is not None:
        aside = f"nats, at update {records.overlay.largest_step:,}"
        tiles.append(_tile("Largest training-loss difference", number(records.overlay.largest), aside))
    if last is not None:
        when = f"after update {last.step:,}"
        tiles += [
            _tile("Held-out loss difference", number(last.overall.loss.difference), f"nats per token, {when}"),
            _tile("Mean token KL", number(last.overall.kl_mean), f"nats, {when}"),
            _tile("Top-1 agreement", percent(last.overall.top1_agreement, 3), f"of {last.overall.targets:,} tokens"),
        ]
    return f'<dl class="tiles">{"".join(tiles)}</dl>'


def _tile(name: str, value: str, aside: str) -> str:
    return f'<div><dt>{escape(name)}</dt><dd class="value">{value}</dd><dd class="aside">{escape(aside)}</dd></div>'


def _landmark_notes(records: RunRecords) -> str:
    if records.verdict is None:
        return ""
    notes = []
    for steps, what in (
        (records.verdict.landmarks.missing, "have no evaluation"),
        (records.verdict.landmarks.stale, "were evaluated on other weights than those on disk now, and did not count"),
    ):
        if steps:
            notes.append(f'<p class="note" role="note">Landmarks {", ".join(map(str, steps))} {what}.</p>')
    return "".join(notes)


def _kind_row(criteria: Sequence[Criterion]) -> list[Cell]:
    told = worst(criteria)
    held = sum(criterion.outcome is Outcome.HOLDS for criterion in criteria)
    count = "" if len(criteria) == 1 else f"<small>{held} of {len(criteria)} hold</small>"
    where = label(told).removeprefix(told.name).strip()
    note = "; ".join(text for text in (where, told.note) if text)
    name = f"{escape(told.name)}<small>{escape(note)}</small>" if note else escape(told.name)
    return _row(told, Html(name), Html(_tell(told.outcome).text + count))


def _chip(criterion: Criterion) -> Html:
    note = f"<small>{escape(criterion.note)}</small>" if criterion.note else ""
    return Html(_tell(criterion.outcome).text + note)


def _tell(outcome: Outcome) -> Html:
    return chip(OUTCOME_TONES[outcome], outcome.value)


def _row(criterion: Criterion, name: Cell, outcome: Html) -> list[Cell]:
    interval = criterion.interval
    ends = "–" if interval is None else f"{_bare(criterion, interval[0])} to {_bare(criterion, interval[1])}"
    return [
        name,
        outcome,
        Html(f"{_bare(criterion, criterion.measured)}<small>{_unit(criterion, criterion.measured)}</small>"),
        Html(ends),
        Html(_limit(criterion)),
        Html(f"<small>{escape(criterion.tolerance_from)}</small>"),
    ]


def _limit(criterion: Criterion) -> str:
    if criterion.name == TOP1:
        return f"at least {percent(criterion.tolerance, 1)}"
    return f"at most {bound(criterion.tolerance)}"


def _bare(criterion: Criterion, value: float | None) -> str:
    """A value in its unit's form; the end of an interval of an agreement stops at all."""
    if criterion.name == TOP1:
        return percent(None if value is None else min(value, 1.0), 3)
    return number(value)


def _value(criterion: Criterion, value: float | None) -> str:
    return f"{_bare(criterion, value)}{_unit(criterion, value)}"


def _unit(criterion: Criterion, value: float | None) -> str:
    """The unit after a value; an agreement is printed in per cent and has none."""
    return "" if criterion.name == TOP1 or value is None else f" {escape(criterion.unit)}"
