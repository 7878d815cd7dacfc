"""A fault matrix as Markdown and in a few words, and what must hold of it. Records in, text out."""

from collections.abc import Sequence

from ectype.faults.record import TRAINING_LOSS, FaultMatrix, RegimeRecord, Row

_REPLAY = "replay"


def missed(matrix: FaultMatrix) -> list[str]:
    """Faults that change the model or the data and that, in a replay, nothing but the training loss catches."""
    return [
        row.name
        for regime in matrix.regimes
        if regime.name == _REPLAY
        for row in regime.faults
        if row.weights_differ and not set(row.caught_by) - {TRAINING_LOSS}
    ]


def sound(matrix: FaultMatrix) -> bool:
    """Every fault was made and none missed in a replay, and no honest run raised an alarm in any regime."""
    return not missed(matrix) and not any(regime.unmade or regime.false_alarms for regime in matrix.regimes)


def text_lines(matrix: FaultMatrix) -> list[str]:
    """The whole matrix as lines of Markdown."""
    lines = []
    for regime in matrix.regimes:
        lines += [f"## {regime.name.capitalize()}: {regime.what}", "", *_regime_lines(regime), ""]
    lines.append(time_line(matrix))
    return lines


def in_short(row: Row) -> tuple[str, str]:
    """When and by what a fault is caught first, and by how many other measures."""
    broken = [(finding.step or 0, name) for name, finding in row.findings.items() if finding.said == "broken"]
    if not broken:
        return "not caught", ""
    first, by = min(broken, key=lambda found: found[0])
    return f"{first}: {by}", f"{len(broken) - 1} other measure{'s' * (len(broken) != 2)}" if len(broken) > 1 else ""


def honest_line(regime: RegimeRecord) -> str:
    """How many honest runs were made, which of them were called broken, and what the verdicts were."""
    if not regime.honest:
        return "No honest run was made."
    alarms = [f"{row.title} by {', '.join(row.caught_by)}" for row in regime.false_alarms]
    verdicts = {
        answer: sum(row.verdict == answer for row in regime.honest)
        for answer in sorted({row.verdict for row in regime.honest})
    }
    counted = ", ".join(f"{count} {answer!r}" for answer, count in verdicts.items())
    runs = f"{len(regime.honest)} honest run{'s' * (len(regime.honest) > 1)}"
    return f"{runs}, false alarms: {'; '.join(alarms) or 'none'} ({counted})."


def time_line(matrix: FaultMatrix) -> str:
    """What the matrix cost, and on how much text it rests."""
    cores = f"{matrix.cores} core{'s' * (matrix.cores > 1)}"
    return (
        f"The runs took {matrix.run_seconds / 60:.0f} minutes one after another and {matrix.wall_seconds / 60:.0f} "
        f"minutes as they were made, on {cores}. Held-out text: {matrix.held_out_tokens:,} tokens."
    )


def _regime_lines(regime: RegimeRecord) -> list[str]:
    shown = regime.measures
    lines = _table(("fault", *shown, "verdict"), [_cells(row, shown) for row in regime.faults])
    lines += ["", honest_line(regime)]
    undetected = [row.title for row in regime.faults if not row.caught_by]
    for what, found in (("Caught by nothing", undetected), ("Changed no bit, and so was not made", regime.unmade)):
        lines += ["", f"{what}: {', '.join(found)}."] if found else []
    lines += ["", *_table(_SIZE_COLUMNS, [_sizes(row) for row in regime.faults])]
    return lines


def _cells(row: Row, shown: Sequence[str]) -> tuple[str, ...]:
    return (row.title, *(finding_text(row, name) for name in shown), row.verdict)


def finding_text(row: Row, measure: str) -> str:
    """`step 64` where a measure is broken, `unclear`, `holds`, or a dash where it cannot be judged."""
    finding = row.findings.get(measure)
    if finding is None:
        return "–"
    return f"**{finding.step}**" if finding.said == "broken" else {"unclear": "?", "holds": "·"}[finding.said]


_SIZE_COLUMNS = (
    "fault", "held-out text that catches it, tokens", "training loss, last quarter", "held-out loss, end",
    "token KL, end", "windows never read", "windows read again", "refused before training by",
)  # fmt: skip


def _sizes(row: Row) -> tuple[str, ...]:
    needed = "none of those tried"
    if row.tokens_that_catch is not None:
        needed = f"{row.tokens_that_catch:,}"
    elif row.tokens_estimated is not None:
        needed = f"about {row.tokens_estimated:,} (estimated)"
    shares = ("–", "–") if row.reading is None else tuple(f"{share:.1%}" for share in row.reading.shares)
    warning = " (repeated data)" if row.repeated_data_warning else ""
    return (
        row.title, needed, _nats(row.training_loss_last_quarter) + warning, _nats(row.held_out_loss_last),
        "not finite" if row.kl_last is None else f"{row.kl_last:.2g}", *shares, row.refused_by or "–",
    )  # fmt: skip


def _nats(value: float | None) -> str:
    return "not finite" if value is None else f"{value:+.2g}"


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(cells)} |" for cells in (columns, ("---",) * len(columns), *rows)]
