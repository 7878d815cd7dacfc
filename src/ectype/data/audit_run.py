"""Prove from a run's ledger what it read: coverage from the rows and batches recorded, content from their digests."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from ectype.data.audit import Audit, EpochCount, Fault, epochs_of
from ectype.data.audit_record import AuditRecord, audit_record, write_audit
from ectype.data.coverage import MOST_PASSES, Interval, Stretch, pass_coverage, stretches_of
from ectype.data.digest import block_digests
from ectype.data.ledger import Span, ledger_processes, read_records, sessions_of, spans_of
from ectype.data.order import Order
from ectype.data.tokenindex import TokenIndex
from ectype.errors import EctypeError
from ectype.progress import Progress, silent
from ectype.recipe.spec import Data
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


def audit_run(
    run_dir: Path, order: Order, checkpoint_step: int = 0, progress: Progress = silent,
    stretches: Sequence[Stretch] | None = None,
) -> Audit:  # fmt: skip
    """Compare what the ledger says was consumed with the order.

    A step counts as read where its digest equals the planned one; where it differs, its planned windows count as
    unread. The audit covers the steps that every host recorded, and in any case the first `checkpoint_step`. Of a stage
    that took over a data position, the steps before it count as read: the audit of the run before it covers them.

    Args:
        checkpoint_step: updates in the newest complete checkpoint; every host wrote its record before it was finished.
        stretches: the files as window ids number them, to map what was read; empty where windows lie in no single
            file. None makes no map.

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
    audit.notes = _notes(taken_over, end, last, damaged, len(sessions))
    passes = list(epochs_of(order, end))
    for count, first in passes:
        audit.epochs.append(count)
        _cover(count, first, reads, order.batch_windows, audit)
        for process, batch, rows, why in wrong:
            if first <= batch < first + count.steps:
                count.read_once -= len(rows)
                count.unread += len(rows)
                audit.faults.append(Fault(f"not the planned windows{why}", batch + 1, batch + 1, (process,)))
    if stretches is not None:
        unplanned = [(batch, rows) for _, batch, rows, _ in wrong]
        audit.coverage = [
            pass_coverage(order, count, first, _spans(count, first, reads, order), unplanned, stretches)
            for count, first in _mapped(passes)
        ]
    return audit


def _notes(taken_over: int, end: int, last: int, damaged: int, sessions: int) -> list[str]:
    notes = []
    if taken_over:
        notes.append(f"steps 1 to {taken_over} were read by the run that this one goes on from; audit it, too")
    if end < last:
        notes.append(f"steps {end + 1} to {last} are recorded by some hosts only; resuming replays them")
    if damaged:
        notes.append(f"{damaged} torn or damaged records were left out")
    return [*notes, f"read in {sessions} session{'s' if sessions > 1 else ''}"]


def _spans(count: EpochCount, first: int, reads: Sequence[_Read], order: Order) -> list[Interval]:
    return [interval for interval, _ in _intervals(count, first, reads, order.batch_windows)]


def _mapped(passes: Sequence[tuple[EpochCount, int]]) -> Sequence[tuple[EpochCount, int]]:
    """Passes to map: all of a few; of many the first, the last, and between them those not read as planned."""
    if len(passes) <= MOST_PASSES:
        return passes
    faulty = [each for each in passes[1:-1] if each[0].missed or each[0].read_twice]
    return [passes[0], *faulty[: MOST_PASSES - 2], passes[-1]]


def record_audit(
    run_dir: Path, order: Order, index: TokenIndex, data: Data, progress: Progress = silent
) -> AuditRecord:
    """Audit a run as far as its ledger and its newest checkpoint go, and leave the record in its folder.

    Args:
        index: that `order` is over.
        data: the run's `data` section.

    Raises:
        EctypeError: as `audit_run`; an earlier record then stays as it was.
    """
    stretches = stretches_of(index, data.packing is not None)
    record = audit_record(audit_run(run_dir, order, newest_step(run_dir), progress, stretches), index.fingerprint)
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


def _intervals(
    count: EpochCount, first: int, reads: Sequence[_Read], batch_windows: int
) -> Iterator[tuple[Interval, list[_Read]]]:
    """Stretches of one epoch's batches in which every row was read equally often, and by which processes."""
    end = first + count.steps
    inside = [read for read in reads if read.first < end and read.end > first]
    points = {first, end} | {p for read in inside for p in (read.first, read.end) if first < p < end}
    firsts, ends = (np.array([getattr(read, name) for read in inside], np.int64) for name in ("first", "end"))
    for low, high in pairwise(sorted(points)):
        times = np.zeros(batch_windows, np.int64)
        active = [inside[n] for n in np.flatnonzero((firsts <= low) & (ends >= high))]
        for read in active:
            np.add.at(times, read.rows, 1)
        yield Interval(low, high, times), active


def _cover(count: EpochCount, first: int, reads: Sequence[_Read], batch_windows: int, audit: Audit) -> None:
    """Count how often each row of each batch of one epoch was read."""
    once = twice = 0
    for span, active in _intervals(count, first, reads, batch_windows):
        batches = span.high - span.low
        once += batches * int((span.times == 1).sum())
        twice += batches * int((span.times > 1).sum())
        for what, rows in (("rows read by nobody", span.times == 0), ("rows read more than once", span.times > 1)):
            if rows.any():
                hosts = _owners(reads, active, np.flatnonzero(rows), missing=what.endswith("nobody"))
                where = _ranges(np.flatnonzero(rows))
                audit.faults.append(Fault(f"{what}: {where}", span.low + 1, span.high, hosts))
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
