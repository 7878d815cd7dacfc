"""The report's section on data coverage: how often the run read the windows of each pass, and where. Records in."""

from collections.abc import Sequence
from html import escape
from itertools import accumulate

from ectype.data import audit_record
from ectype.data.audit import Fault, PassCoverage, StretchCount
from ectype.data.audit_record import AuditRecord, EpochRecord
from ectype.report import figures
from ectype.report.coverage_figure import Area, Strip, coverage_map
from ectype.report.markup import Cell, Column, Part, chip, missing, section, table
from ectype.report.markup import figure as plot

_FAULTS_LISTED = 20
_FILES_LISTED = 200
_SHARES = {
    "read once": "read_once", "read more than once": "read_twice", "missed": "missed",
    "not reached": "unread_not_reached", "fill no batch": "unread_dropped_tail",
}  # fmt: skip


def coverage_part(audit: AuditRecord | None, done: int | None = None, fingerprint: str | None = None) -> Part:
    """How often the run read the windows of each pass over the corpus, from its ledger.

    Args:
        done: updates that the run has done; an audit of fewer or more is told to be out of date. None: not known.
        fingerprint: of the index that the run reads; likewise.
    """
    title = "Data coverage"
    lead = "What the run read, proven from its record of consumed windows. Repeated data looks like a better loss."
    if audit is None:
        none = missing("The run's record of consumed windows was not audited.", audit_record.COMMAND)
        return Part("coverage", "Coverage", section("coverage", title, lead, none))
    said = (
        chip("good", "every window of these updates was read exactly once per pass")
        if audit.clean
        else chip("bad", "not every window was read exactly once per pass")
    )
    if done not in (None, audit.steps) or fingerprint not in (None, audit.fingerprint):
        of_now = f"{done:,} updates" if done not in (None, audit.steps) else "another index"
        said = chip("open", f"out of date: {audit.steps:,} updates were audited, and the run is of {of_now}")
    epochs = [(f"pass {epoch.epoch}", _shares(epoch)) for epoch in audit.epochs]
    kinds = list(_SHARES)
    bars = {kind: [found[kind] for _, found in epochs] for kind in kinds}
    drawn = {"coverage": figures.coverage([name for name, _ in epochs], bars)}
    numbers = table(
        "Windows by how often they were read",
        [Column("pass"), Column("windows", "number"), *(Column(kind, "number") for kind in kinds)],
        [[name, sum(found.values()), *found.values()] for name, found in epochs],
    )
    place = plot("coverage", "Windows of each pass", f"Over {audit.steps:,} updates, by how often they were read.")
    mapped = missing("There is no map of the corpus in this audit.", audit_record.COMMAND)
    if audit.coverage:
        drawn["coverage-map"] = coverage_map([_strip(audit, each) for each in audit.coverage])
        mapped = _map_place(audit)
    notes = "; ".join(audit.notes)
    fine = f'<p class="fine">{escape(notes)}.</p>' if notes else ""
    body = (f"<p>{said.text}</p>", place, mapped, numbers, _faults(audit.faults), fine)
    return Part("coverage", "Coverage", section("coverage", title, lead, *body), drawn)


def _shares(epoch: EpochRecord) -> dict[str, int]:
    """Windows of a pass by what became of them; the kinds add up to all windows."""
    return {kind: getattr(epoch, field) for kind, field in _SHARES.items()}


def _map_place(audit: AuditRecord) -> str:
    bins = sum(len(stretch.windows) for stretch in audit.coverage[0].stretches)
    shown = len(audit.coverage)
    some = (
        f" {shown} of {len(audit.epochs)} passes: the first, the last, and faulty ones."
        if shown < len(audit.epochs)
        else ""
    )
    described = (
        f"Every window in the order of the index, in {bins:,} bins; each strip is a pass, and its height the share of "
        f"a bin's windows. Plain: read once; crossed: more than once; striped: unread.{some}"
    )
    return plot("coverage-map", "Map of the corpus", described, _files_table(audit.coverage))


def _strip(audit: AuditRecord, mapped: PassCoverage) -> Strip:
    """One pass as the figure draws it: edges of its bins, shares by kind, groups of files of one label."""
    stretches = mapped.stretches
    windows = [count for stretch in stretches for count in stretch.windows]
    areas = []
    for name, field in (("read once", "read_once"), ("more than once", "read_twice")):
        counts = [count for stretch in stretches for count in getattr(stretch, field)]
        areas.append(Area(name, [count / size for count, size in zip(counts, windows, strict=True)]))
    unread = [max(0.0, 1 - once - twice) for once, twice in zip(areas[0].shares, areas[1].shares, strict=True)]
    ends = list(accumulate(windows, initial=0))
    groups: list[tuple[str, int]] = []
    begin = 0
    for stretch in stretches:
        name = stretch.label or _short(stretch)
        if not groups or groups[-1][0] != name:
            groups.append((name, begin))
        begin += sum(stretch.windows)
    phase = f"mix {mapped.phase + 1}, " if len({epoch.phase for epoch in audit.epochs}) > 1 else ""
    return Strip(f"{phase}pass {mapped.epoch}", ends, (*areas, Area("unread", unread)), groups)


def _short(stretch: StretchCount) -> str:
    return "windows" if stretch.path is None else stretch.path.rstrip("/").rpartition("/")[2]


def _files_table(coverage: Sequence[PassCoverage]) -> str:
    """Windows by pass and file; where there are too many, the files with most repeated and unread windows."""
    found = [
        (each.epoch, stretch, sum(stretch.windows), sum(stretch.read_once), sum(stretch.read_twice))
        for each in coverage
        for stretch in each.stretches
    ]
    listed, left = found, len(found) - _FILES_LISTED
    if left > 0:
        listed = sorted(found, key=lambda row: (row[4], row[2] - row[3]), reverse=True)[:_FILES_LISTED]
    columns = [
        Column("file"), Column("pass", "number"), Column("windows", "number"), Column("read once", "number"),
        Column("more than once", "number"), Column("unread", "number"),
    ]  # fmt: skip
    rows: list[list[Cell]] = [
        [_named(stretch), epoch, windows, once, twice, windows - once - twice]
        for epoch, stretch, windows, once, twice in listed
    ]
    rest = (
        f'<p class="fine">{left:,} files with fewer repeated and unread windows are in audit.json.</p>'
        if left > 0
        else ""
    )
    return table("Windows by file", columns, rows) + rest


def _named(stretch: StretchCount) -> str:
    name = stretch.path or stretch.label
    return name if stretch.files == 1 else f"{name} and {stretch.files - 1:,} files after it"


def _faults(faults: Sequence[Fault]) -> str:
    if not faults:
        return ""
    columns = [Column("what was read wrongly"), Column("updates"), Column("hosts"), Column("some windows")]
    rows: list[list[Cell]] = [
        [
            fault.what,
            f"{fault.first_step:,} to {fault.last_step:,}",
            ", ".join(map(str, fault.hosts)) or "unknown",
            ", ".join(map(str, fault.windows)) or None,
        ]
        for fault in faults[:_FAULTS_LISTED]
    ]
    more = len(faults) - len(rows)
    rest = f'<p class="fine">{more:,} more are in audit.json.</p>' if more > 0 else ""
    return table("Faults", columns, rows) + rest
