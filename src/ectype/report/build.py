"""`ectype report`: read a run folder, write one HTML file. Reads and writes; what is shown lies in the other files."""

from datetime import UTC, datetime
from pathlib import Path

from ectype import __version__
from ectype.artifacts import write_bytes_atomic
from ectype.compare.held_out_criteria import KL
from ectype.report.coverage import coverage_part
from ectype.report.faults import faults_part
from ectype.report.judgement import criteria_part, verdict_part
from ectype.report.markup import Part
from ectype.report.measures import divergence_part, domains_part, landmarks_part, sets_part
from ectype.report.page import page
from ectype.report.parity import parity_part
from ectype.report.plan import plan_part
from ectype.report.provenance import provenance_part
from ectype.report.records import RunRecords, load_records
from ectype.report.training import training_part
from ectype.run.paths import RunFolder


def write_report(run_dir: Path, out: Path | None = None, reference: str | None = None) -> Path:
    """Write the report of a run and return its path.

    Args:
        run_dir: the run folder.
        out: the HTML file; None writes RUN/report.html.
        reference: a reference folder; None takes the one that the recipe names.

    Raises:
        EctypeError: no run folder, or a file in it that can't be read.
    """
    path = out or RunFolder(run_dir).report
    write_bytes_atomic(path, render(load_records(run_dir, reference)).encode())
    return path


def render(records: RunRecords) -> str:
    """The page of a run's records."""
    recipe, reference = records.recipe, records.reference
    against = f"{reference.name} ({reference.framework})" if reference else "no reference that is at hand"
    made = datetime.now(UTC).strftime("%-d %B %Y, %H:%M UTC")
    return page(
        title=f"{recipe.name}: Ectype report",
        heading=recipe.name,
        subtitle=f"{recipe.description} Compared with {against}.".strip(),
        footer=f"Written by Ectype {__version__} on {made}. This file needs no network and no other file.",
        parts=_parts(records),
    )


def _parts(records: RunRecords) -> list[Part]:
    return [
        verdict_part(records),
        criteria_part(records),
        landmarks_part(records),
        training_part(records),
        domains_part(records.evaluations, records.disjoint),
        *([sets_part(records.sets)] if records.sets else []),
        divergence_part(records.evaluations, _kl_tolerance(records)),
        coverage_part(records.audit, _updates(records), records.run.index_fingerprint if records.run else None),
        parity_part(records.parity),
        *([plan_part(records.plan)] if records.plan else []),
        *([faults_part(records.faults)] if records.faults else []),
        provenance_part(records),
    ]


def _updates(records: RunRecords) -> int | None:
    return None if records.metrics is None else int(records.metrics.steps[-1])


def _kl_tolerance(records: RunRecords) -> float | None:
    """The tightest tolerance on mean token KL that the verdict used."""
    criteria = records.verdict.criteria if records.verdict else ()
    found = [c.tolerance for c in criteria if c.name == KL and c.domain is None and c.tolerance is not None]
    return min(found, default=None)
