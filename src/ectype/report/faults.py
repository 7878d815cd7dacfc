"""The section on known faults: what catches each of them, and whether honest runs are left alone."""

from collections.abc import Sequence
from html import escape

from ectype.faults.record import FaultMatrix, RegimeRecord, Row
from ectype.report.markup import Cell, Column, Html, Part, chip, number, percent, section, table

_HOLDS = Html('<span class="nothing" title="sees nothing">–</span>')
_NOT_JUDGED = Html('<span class="nothing" title="cannot be judged here"></span>')


def faults_part(matrix: FaultMatrix) -> Part:
    """Faults by measures in each regime, and the honest runs beside them."""
    lead = (
        f"Known faults, made one at a time in the recipe {matrix.recipe}, and the first update or landmark at which "
        "each measure calls the run broken. Measured on that small model, not on this run."
    )
    body = [part for regime in matrix.regimes for part in _regime(regime)]
    minutes, wall = (f"{seconds / 60:,.0f}" for seconds in (matrix.run_seconds, matrix.wall_seconds))
    body.append(
        f"<p>{minutes} minutes of runs, made in {wall} minutes on {matrix.cores} cores; {matrix.held_out_tokens:,} "
        "held-out tokens.</p>"
    )
    return Part("faults", "Known faults", section("faults", "Known faults", lead, *body))


def _regime(regime: RegimeRecord) -> list[str]:
    shown = regime.measures
    title = f"{regime.name.capitalize()}: {regime.what}"
    columns = [Column("fault"), *(Column(name) for name in shown), Column("verdict")]
    rows: list[list[Cell]] = [
        [_name(row), *(_finding(row, name) for name in shown), row.verdict] for row in regime.faults
    ]
    return [
        f"<h3>{escape(title)}</h3>",
        f"<p>{escape(_counted(regime))}</p>",
        table(f"{title}: what catches which fault, and when", columns, rows),
        table(f"{title}: how much, and how much text shows it", _SIZES, [_sizes(row) for row in regime.faults]),
    ]


def _counted(regime: RegimeRecord) -> str:
    caught = sum(bool(row.caught_by) for row in regime.faults)
    said = f"{caught} of {len(regime.faults)} faults are caught within {regime.duration_steps} updates."
    if regime.unmade:
        said += f" Changed no bit, and so was not made: {', '.join(regime.unmade)}."
    if not regime.honest:
        return f"{said} No honest run was made beside them."
    return f"{said} Of {len(regime.honest)} honest runs, {len(regime.false_alarms)} are called broken."


def _name(row: Row) -> Html:
    missed = "" if row.caught_by else f" {chip('open', 'not caught').text}"
    return Html(f'<span title="{escape(row.what)}">{escape(row.title)}</span>{missed}')


def _finding(row: Row, measure: str) -> Cell:
    finding = row.findings.get(measure)
    if finding is None:
        return _NOT_JUDGED
    if finding.said == "broken":
        return chip("good", f"{finding.step:,}" if finding.step is not None else "broken")
    return chip("open", "unclear") if finding.said == "unclear" else _HOLDS


_SIZES: Sequence[Column] = (
    Column("fault"), Column("held-out tokens that catch it", "number"),
    Column("training loss, last quarter", "number"), Column("held-out loss, end", "number"),
    Column("token KL, end", "number"), Column("never read", "number"), Column("read again", "number"),
    Column("refused before training by"),
)  # fmt: skip


def _sizes(row: Row) -> list[Cell]:
    needed = Html(number(row.tokens_that_catch))
    if row.tokens_that_catch is None and row.tokens_estimated is not None:
        needed = Html(f"about {number(row.tokens_estimated)} (estimated)")
    shares: list[Cell] = [None, None]
    if row.reading is not None:
        shares = [Html(percent(share, 1)) for share in row.reading.shares]
    training = Html(number(row.training_loss_last_quarter))
    if row.repeated_data_warning:
        training = Html(f"{training.text} {chip('bad', 'repeated data').text}")
    return [
        _name(row), needed, training, row.held_out_loss_last, row.kl_last, *shares, row.refused_by or Html(_HOLDS.text),
    ]  # fmt: skip
