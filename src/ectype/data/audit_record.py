"""The record of an audit: what `ectype data audit` prints, and `audit.json` in a run folder."""

from dataclasses import asdict
from pathlib import Path
from typing import Literal

from ectype.artifacts import write_json
from ectype.data.audit import Audit, Fault, PassCoverage
from ectype.recipe.parse import read_record
from ectype.recipe.spec import Section
from ectype.run.paths import RunFolder

COMMAND = "ectype data audit --run RUN"
"""Writes the record."""


class EpochRecord(Section):
    """How often the windows of one pass were, or will be, read; fields as in `audit.EpochCount`."""

    phase: int
    epoch: int
    windows: int
    steps: int
    read_once: int
    read_twice: int
    unread: int
    unread_dropped_tail: int
    unread_not_reached: int
    missed: int
    """Unread windows that should have been read."""
    dropped_windows: tuple[int, ...]


class AuditRecord(Section):
    """Whether every window is read exactly once per pass, and all that speaks against it."""

    format: Literal[1] = 1
    clean: bool
    steps: int
    unread: int
    read_once: int
    read_twice: int
    missed: int
    epochs: tuple[EpochRecord, ...]
    coverage: tuple[PassCoverage, ...] = ()
    """Maps of the faulty passes, the first and the last; empty for a plan."""
    faults: tuple[Fault, ...]
    notes: tuple[str, ...]
    fingerprint: str
    """Of the index whose order was audited."""


def audit_record(audit: Audit, fingerprint: str) -> AuditRecord:
    """The record of an audit over the index with `fingerprint`."""
    epochs = tuple(EpochRecord(missed=epoch.missed, **asdict(epoch)) for epoch in audit.epochs)
    return AuditRecord(
        clean=audit.clean,
        steps=audit.steps,
        unread=sum(epoch.unread for epoch in epochs),
        read_once=sum(epoch.read_once for epoch in epochs),
        read_twice=sum(epoch.read_twice for epoch in epochs),
        missed=sum(epoch.missed for epoch in epochs),
        epochs=epochs,
        coverage=tuple(audit.coverage),
        faults=tuple(audit.faults),
        notes=tuple(audit.notes),
        fingerprint=fingerprint,
    )


def write_audit(run_dir: Path, record: AuditRecord) -> None:
    """Write `audit.json` of a run atomically."""
    write_json(RunFolder(run_dir).audit, record.model_dump(mode="json"))


def read_audit(run_dir: Path) -> AuditRecord:
    """Read `audit.json` of a run strictly.

    Raises:
        EctypeError: no such file, or none that this version writes.
    """
    return read_record(RunFolder(run_dir).audit, AuditRecord, "audit", COMMAND, f"audit again: `{COMMAND}`")
