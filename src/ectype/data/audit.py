"""Prove from the order and a schedule of hosts that a planned run reads every window exactly once per epoch."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np

from ectype.data.host_stages import HostStage
from ectype.data.order import Order
from ectype.data.rows import host_rows
from ectype.errors import EctypeError
from ectype.progress import Progress, silent

_BLOCK_IDS = 1 << 21
_LISTED = 20


@dataclass(frozen=True)
class Fault:
    """Something that was read wrongly: where, by whom, what."""

    what: str
    first_step: int
    """Update numbers, from 1."""
    last_step: int
    hosts: tuple[int, ...]
    windows: tuple[int, ...] = ()
    """Some of the windows concerned."""


@dataclass
class EpochCount:
    """How often the windows of one pass were, or will be, read. The counts of windows add up to `windows`."""

    phase: int
    epoch: int
    windows: int
    steps: int
    """Steps of this epoch that the run takes."""
    read_once: int = 0
    read_twice: int = 0
    """Windows read more than once."""
    unread: int = 0
    unread_dropped_tail: int = 0
    """Of the unread: they fill no whole batch."""
    unread_not_reached: int = 0
    """Of the unread: the run ends, or so far ended, before their step."""
    dropped_windows: tuple[int, ...] = ()
    """The first windows of the dropped tail."""

    @property
    def missed(self) -> int:
        """Unread windows that should have been read."""
        return self.unread - self.unread_dropped_tail - self.unread_not_reached


@dataclass(frozen=True)
class StretchCount:
    """How often the windows of one file, or of several consecutive ones, were read in one pass, by position."""

    path: str | None
    """Of the first file; null where windows are packed from the documents of several."""
    label: str
    files: int
    windows: tuple[int, ...]
    """Of each bin, in the order of window ids; so are the next."""
    read_once: tuple[int, ...]
    read_twice: tuple[int, ...]
    """Windows read more than once."""


@dataclass(frozen=True)
class PassCoverage:
    """The map of one pass over the corpus."""

    phase: int
    epoch: int
    stretches: tuple[StretchCount, ...]


@dataclass
class Audit:
    """The verdict of an audit."""

    steps: int
    epochs: list[EpochCount] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    coverage: list[PassCoverage] = field(default_factory=list)

    @property
    def clean(self) -> bool:
        """Whether every window that the steps cover is read exactly once per epoch."""
        return not self.faults and all(epoch.missed == 0 and epoch.read_twice == 0 for epoch in self.epochs)


def epochs_of(order: Order, end_batch: int) -> Iterator[tuple[EpochCount, int]]:
    """The epochs that batches [0, end_batch) touch, with the number of each one's first batch."""
    batch = 0
    while batch < end_batch:
        phase, epoch, position = order.place(batch)
        if position:
            raise EctypeError(
                f"batch {batch} lies inside an epoch of phase {phase}", "phases that begin an epoch",
                "index the new mix for the step at which it begins",
            )  # fmt: skip
        windows = order.phases[phase].windows
        per_epoch = windows // order.batch_windows
        later = [p.first_batch for p in order.phases[phase + 1 :]]
        steps = min(per_epoch, end_batch - batch, *(first - batch for first in later))
        count = EpochCount(phase, epoch, windows, steps)
        count.unread_dropped_tail = windows - per_epoch * order.batch_windows
        count.unread_not_reached = (per_epoch - steps) * order.batch_windows
        count.dropped_windows = tuple(order.dropped_ids(phase, epoch)[:_LISTED].tolist())
        yield count, batch
        batch += steps


def audit_plan(order: Order, stages: Sequence[HostStage], progress: Progress = silent) -> Audit:
    """Let every host of every stage take its rows of every batch, and count what each epoch's windows got.

    Needs one byte per window of memory. Two threads mark, since marking waits for memory.
    """
    audit = Audit(stages[-1].end_batch)
    for count, first in epochs_of(order, audit.steps):
        seen = np.zeros(count.windows, bool)
        blocks = list(_blocks(order, count, first, stages))
        offset = order.phases[count.phase].first_window
        done = 0
        with ThreadPoolExecutor(2) as pool:
            for reads in pool.map(lambda block: _mark(order, count, block, seen, offset), blocks):  # noqa: B023
                done += reads
                progress(f"audit epoch {count.epoch}", done, count.steps * order.batch_windows)
        distinct = int(np.count_nonzero(seen))
        count.read_once, count.unread = distinct, count.windows - distinct
        if distinct != done or count.missed:
            _blame(order, count, blocks, audit)
        audit.epochs.append(count)
    return audit


@dataclass(frozen=True)
class _Block:
    """Consecutive batches of one epoch that one stage's hosts read."""

    hosts: int
    first_batch: int
    start: int
    stop: int
    """Batches of the epoch, from 0."""


def _blocks(order: Order, count: EpochCount, first: int, stages: Sequence[HostStage]) -> Iterator[_Block]:
    step = max(1, _BLOCK_IDS // order.batch_windows)
    for stage in stages:
        start, stop = max(stage.first_batch - first, 0), min(stage.end_batch - first, count.steps)
        for low in range(start, stop, step):
            yield _Block(stage.hosts, first, low, min(low + step, stop))


def _ids(order: Order, count: EpochCount, block: _Block) -> np.ndarray:
    size = order.batch_windows
    return order.epoch_ids(count.phase, count.epoch, block.start * size, block.stop * size).reshape(-1, size)


def _mark(order: Order, count: EpochCount, block: _Block, seen: np.ndarray, offset: int) -> int:
    ids = _ids(order, count, block)
    ids = ids - np.uint32(offset) if offset else ids
    reads = 0
    for host in range(block.hosts):
        rows = host_rows(host, block.hosts, order.batch_windows)
        part = ids[:, rows[0] : rows[-1] + 1]
        seen[part] = True
        reads += part.size
    return reads


def _blame(order: Order, count: EpochCount, blocks: Sequence[_Block], audit: Audit) -> None:
    """Count reads per window, and list the steps and hosts of repeated ones and some of the missed windows."""
    reads, offset = np.zeros(count.windows, np.uint16), order.phases[count.phase].first_window
    for block in blocks:
        np.add.at(reads, _ids(order, count, block).reshape(-1) - np.uint32(offset), np.uint16(1))
    count.read_once, count.read_twice = int((reads == 1).sum()), int((reads > 1).sum())
    count.unread = int((reads == 0).sum())
    for block in blocks:
        ids = _ids(order, count, block)
        for position, row in np.argwhere(reads[ids - np.uint32(offset)] > 1)[: _LISTED - len(audit.faults)]:
            step = block.first_batch + block.start + int(position) + 1
            host = int(row) // (order.batch_windows // block.hosts)
            audit.faults.append(Fault("window read more than once", step, step, (host,), (int(ids[position, row]),)))
    expected = np.zeros(count.windows, bool)
    tail = order.dropped_ids(count.phase, count.epoch)
    reached = count.steps * order.batch_windows
    beyond = order.epoch_ids(count.phase, count.epoch, reached, count.windows - len(tail))
    for ids in (tail, beyond):
        expected[ids - np.uint32(offset)] = True
    missed = np.flatnonzero((reads == 0) & ~expected)[:_LISTED] + offset
    if len(missed):
        audit.faults.append(Fault("windows in no step", 0, 0, (), tuple(missed.tolist())))
