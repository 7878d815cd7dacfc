"""Prove from a run's ledger what it read: coverage from the rows and batches recorded, content from their digests."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from ectype.data.audit import Audit, EpochCount, Fault, epochs_of
from ectype.data.audit_record import AuditRecord, audit_record, write_audit
from ectype.data.digest import block_digests
from ectype.data.ledger import Span, ledger_processes, read_records, sessions_of, spans_of
from ectype.data.order import Order
from ectype.errors import EctypeError
from ectype.progress import Progress, silent
from ectype.run.checkpoints import newest_step
from ectype.run.manifest import first_step
from ectype.run.paths import RunFolder

_BLOCK_IDS = 1 << 19
_BEFORE = -1
"""Stands for all processes of the run that this one goes on from."""
_LOOK_AROUND = 3
"""A wrong digest is compared with what neighbouring batches would give, to name the mistake."""


@dataclass(frozen=True)
class _Read:
    """One process read `rows` of batches [first, end)."""

    process: int
    first: int
    end: int
    rows: np.ndarray


def audit_run(run_dir: Path, order: Order, checkpoint_step: int = 0, progress: Progress = silent) -> Audit:
    """Compare what the ledger says was consumed with the order.

    A step counts as read where its digest equals the planned one; where it differs, its planned windows count as
    unread. The audit covers the steps that every host recorded, and in any case the first `checkpoint_step`. Of a stage
    that took over a data position, the steps before it count as read: the audit of the run before it covers them.

    Args:
        checkpoint_step: updates in the newest complete checkpoint; every host wrote its record before it was finished.

    Raises:
        EctypeError: no ledger, or one whose files do not belong together.
    """
    processes, sessions = ledger_processes(run_dir), sessions_of(run_dir)
    if not sessions:
        raise EctypeError(
            f"the ledger of {run_dir} records no start of the program", "at least one", "restore it from a copy"
        )
    taken_over = first_step(run_dir)
    reads = [_Read(_BEFORE, 0, taken_over, np.arange(order.batch_windows))] if taken_over else []
    wrong: list[tuple[int, int, np.ndarray, str]] = []
    ends = dict.fromkeys(range(sessions[-1].process_count), sessions[-1].first_batch)
    damaged = 0
    for done, process in enumerate(processes):
        damaged += read_records(RunFolder(run_dir).process_ledger(process))[1]
        for span in spans_of(run_dir, process):
            reads += _consecutive(span)
            wrong += _compare(span, order)
            if span.session == len(sessions) - 1 and len(span.batches):
                ends[process] = int(span.batches.max()) + 1
        progress("audit the ledger", done + 1, len(processes))
    last = max((read.end for read in reads), default=0)
    # A crash before a flush leaves some hosts' records behind others'; resuming from the checkpoint replays those.
    end = max(min(ends.values()), checkpoint_step) if last == max(ends.values()) else last
    audit = Audit(end)
    if taken_over:
        audit.notes.append(f"steps 1 to {taken_over} were read by the run that this one goes on from; audit it, too")
    if end < last:
        audit.notes.append(f"steps {end + 1} to {last} are recorded by some hosts only; resuming replays them")
    if damaged:
        audit.notes.append(f"{damaged} torn or damaged records were left out")
    audit.notes.append(f"read in {len(sessions)} session{'s' if len(sessions) > 1 else ''}")
    for count, first in epochs_of(order, end):
        audit.epochs.append(count)
        _cover(count, first, reads, order.batch_windows, audit)
        for process, batch, rows, why in wrong:
            if first <= batch < first + count.steps:
                count.read_once -= len(rows)
                count.unread += len(rows)
                audit.faults.append(Fault(f"not the planned windows{why}", batch + 1, batch + 1, (process,)))
    return audit


def record_audit(run_dir: Path, order: Order, fingerprint: str, progress: Progress = silent) -> AuditRecord:
    """Audit a run as far as its ledger and its newest checkpoint go, and leave the record in its folder.

    Args:
        fingerprint: of the index that `order` is over.

    Raises:
        EctypeError: as `audit_run`; an earlier record then stays as it was.
    """
    record = audit_record(audit_run(run_dir, order, newest_step(run_dir), progress), fingerprint)
    write_audit(run_dir, record)
    return record


def _consecutive(span: Span) -> list[_Read]:
    """The span's batches as runs of consecutive numbers."""
    if not len(span.batches):
        return []
    runs = np.split(span.batches, np.flatnonzero(np.diff(span.batches) != 1) + 1)
    return [_Read(span.process, int(run[0]), int(run[-1]) + 1, span.rows) for run in runs]


def _compare(span: Span, order: Order) -> list[tuple[int, int, np.ndarray, str]]:
    """Process, batch, rows and a likely explanation of each record whose digest is not the planned one."""
    if len(span.rows) and (span.rows.min() < 0 or span.rows.max() >= order.batch_windows):
        raise EctypeError(
            f"the ledger names row {span.rows.max()}",
            f"rows below {order.batch_windows}",
            "audit with the run's recipe",
        )
    wrong, position, rows = [], 0, span.rows
    one_run = len(rows) > 0 and int(rows[-1]) - int(rows[0]) + 1 == len(rows)
    for read in _consecutive(span):
        for first, block in order.blocks(read.first, read.end, max(1, _BLOCK_IDS // max(1, len(rows)))):
            ids = block[:, rows[0] : rows[-1] + 1] if one_run else block[:, rows]
            digests = span.digests[position : position + len(ids)]
            for n in np.flatnonzero((block_digests(first, rows, ids) != digests).any(axis=1)):
                why = _explain(order, first + int(n), rows, digests[n])
                wrong.append((span.process, first + int(n), rows, why))
            position += len(ids)
    return wrong


def _explain(order: Order, batch: int, rows: np.ndarray, digest: np.ndarray) -> str:
    for other in range(max(0, batch - _LOOK_AROUND), batch + _LOOK_AROUND + 1):
        if (block_digests(batch, rows, order.batch_ids(other)[rows][None])[0] == digest).all():
            return f" but those of step {other + 1}"
    return ""


def _cover(count: EpochCount, first: int, reads: Sequence[_Read], batch_windows: int, audit: Audit) -> None:
    """Count how often each row of each batch of one epoch was read, over intervals in which nothing changes."""
    end = first + count.steps
    inside = [read for read in reads if read.first < end and read.end > first]
    points = {first, end} | {p for read in inside for p in (read.first, read.end) if first < p < end}
    cuts = sorted(points)
    firsts, ends = (np.array([getattr(read, name) for read in inside], np.int64) for name in ("first", "end"))
    once = twice = 0
    for low, high in pairwise(cuts):
        times = np.zeros(batch_windows, np.int64)
        active = [inside[n] for n in np.flatnonzero((firsts <= low) & (ends >= high))]
        for read in active:
            np.add.at(times, read.rows, 1)
        once += (high - low) * int((times == 1).sum())
        twice += (high - low) * int((times > 1).sum())
        for what, rows in (("rows read by nobody", times == 0), ("rows read more than once", times > 1)):
            if rows.any():
                hosts = _owners(reads, active, np.flatnonzero(rows), missing=what.endswith("nobody"))
                audit.faults.append(Fault(f"{what}: {_ranges(np.flatnonzero(rows))}", low + 1, high, hosts))
    count.read_once, count.read_twice = once, twice
    count.unread = count.windows - once - twice


def _owners(reads: Sequence[_Read], active: Sequence[_Read], rows: np.ndarray, missing: bool) -> tuple[int, ...]:
    """Hosts that read the rows; for rows that nobody read, hosts that read them at other steps and these steps not."""
    reads = [read for read in reads if read.process != _BEFORE]
    present = {read.process for read in active}
    candidates = [read for read in reads if read.process not in present] if missing else active
    return tuple(sorted({read.process for read in candidates if np.isin(rows, read.rows).any()}))


def _ranges(rows: np.ndarray) -> str:
    runs = np.split(rows, np.flatnonzero(np.diff(rows) != 1) + 1)
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs[:8])
