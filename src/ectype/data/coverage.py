"""Which parts of the corpus a pass read, and how often: windows counted by bins of consecutive window ids.

A bin lies within one token file where there is room for it; a corpus of more files than bins has several consecutive
ones in a bin. Memory holds a block of ids and the bins, whatever the size of the corpus.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ectype.data.audit import EpochCount, PassCoverage, StretchCount
from ectype.data.order import Order
from ectype.data.tokenindex import TokenIndex

MOST_BINS = 512
"""Bins of one pass: about so many, and at most twice as many."""
_LEAST_WINDOWS = 16
"""Of a bin, on average: fewer make a share that says nothing."""
MOST_PASSES = 8
"""Maps of one audit."""
BLOCK_IDS = 1 << 21


@dataclass(frozen=True)
class Stretch:
    """Consecutive window ids of one file, or of packed windows, which lie in no single one."""

    path: str | None
    label: str
    first: int
    windows: int


@dataclass(frozen=True)
class Interval:
    """Batches [low, high) whose rows were all read equally often: `times` [batch_windows]."""

    low: int
    high: int
    times: np.ndarray


@dataclass(frozen=True)
class Bins:
    """Bins of window ids. B bins; bin b holds ids [edges[b], edges[b + 1])."""

    edges: np.ndarray
    """int64 [B + 1], rising."""
    stretches: np.ndarray
    """int64 [B]: the number of the stretch in which each begins."""


def stretches_of(index: TokenIndex, packed: bool) -> list[Stretch]:
    """The files as stretches of window ids, in the order of ids. A mixture names a file as often as it takes it.

    Args:
        packed: windows are packed from documents; the ids then belong to no file, and the list is empty.
    """
    if packed:
        return []
    starts = np.array([file.first_window for file in index.files], np.int64)
    spans = np.array([[0, index.physical_windows]]) if index.segments is None else index.segments
    found, offset = [], 0
    for start, count in spans.tolist():
        file = int(np.searchsorted(starts, start, side="right")) - 1
        end = start + count
        while start < end:
            held = index.files[file]
            size = min(end, held.first_window + held.windows) - start
            if size > 0:
                found.append(Stretch(held.path, held.label, offset, size))
            start, offset, file = start + max(size, 0), offset + max(size, 0), file + 1
    return found


def bins_of(stretches: Sequence[Stretch], first: int, windows: int, most: int) -> Bins:
    """Cut ids [first, first + windows) into bins of about equal size that end where stretches do, if these are few.

    Args:
        stretches: cover all ids, or are empty.
        most: each stretch gets its share of so many bins, and at least one; more stretches than that share bins.
    """
    starts = np.array([stretch.first for stretch in stretches] or [first], np.int64)
    inside = np.flatnonzero((starts > first) & (starts < first + windows))
    begins = int(np.searchsorted(starts, first, side="right")) - 1
    cuts = np.concatenate([[first], starts[inside], [first + windows]])
    owners = np.concatenate([[begins], inside])
    if len(owners) > most:
        slots = (cuts[:-1] - first) * most // windows
        kept = np.flatnonzero(np.diff(slots, prepend=-1))
        return Bins(np.concatenate([cuts[kept], cuts[-1:]]), owners[kept])
    shares = np.clip(np.diff(cuts) * most // windows, 1, np.diff(cuts))
    edges = [
        low + np.arange(count) * (high - low) // count
        for low, high, count in zip(cuts[:-1], cuts[1:], shares, strict=True)
    ]
    return Bins(np.concatenate([*edges, cuts[-1:]]), np.repeat(owners, shares))


def pass_coverage(
    order: Order, count: EpochCount, first_batch: int, intervals: Sequence[Interval],
    wrong: Sequence[tuple[int, np.ndarray]], stretches: Sequence[Stretch],
) -> PassCoverage:  # fmt: skip
    """The map of one pass: its windows by file and position, and how often they were read.

    Args:
        first_batch: of the pass.
        intervals: cover the batches that the run took of it.
        wrong: batches and rows that held other windows than the planned ones, which therefore count as unread.
        stretches: as `stretches_of` gives them.
    """
    most = min(MOST_BINS, max(1, count.windows // _LEAST_WINDOWS))
    bins = bins_of(stretches, order.phases[count.phase].first_window, count.windows, most)
    last = first_batch + count.steps
    unplanned = [(batch, rows) for batch, rows in wrong if first_batch <= batch < last]
    once, twice = count_reads(order, count.phase, count.epoch, first_batch, intervals, unplanned, bins)
    windows, found = np.diff(bins.edges), []
    named = list(stretches) or [Stretch(None, "packed windows", int(bins.edges[0]), count.windows)]
    owners, firsts = np.unique(bins.stretches, return_index=True)
    end_of_all = int(np.searchsorted([stretch.first for stretch in named], bins.edges[-1]))
    for owner, next_owner, low, high in zip(
        owners, [*owners[1:], end_of_all], firsts, [*firsts[1:], len(windows)], strict=True
    ):
        part = slice(low, high)
        kinds = (tuple(values[part].tolist()) for values in (windows, once, twice))
        found.append(StretchCount(named[owner].path, named[owner].label, int(next_owner - owner), *kinds))
    return PassCoverage(count.phase, count.epoch, tuple(found))


def count_reads(
    order: Order, phase: int, epoch: int, first_batch: int, intervals: Iterable[Interval],
    wrong: Iterable[tuple[int, np.ndarray]], bins: Bins,
) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    """Windows of each bin that one pass read once, and more than once: int64 [B] each.

    Args:
        first_batch: of the pass.
        intervals: cover the batches that the run took of this pass.
        wrong: batches and rows [r] that held other windows than the planned ones, which therefore count as unread.
    """
    counts = np.zeros((2, len(bins.edges) - 1), np.int64)
    spans = list(intervals)
    size = order.batch_windows
    for span in spans:
        masks = (span.times == 1, span.times > 1)
        for low, high in _blocks(span.low - first_batch, span.high - first_batch, size):
            ids = order.epoch_ids(phase, epoch, low * size, high * size).reshape(-1, size)
            for kind, mask in enumerate(masks):
                if mask.any():
                    counts[kind] += _in_bins(ids if mask.all() else ids[:, mask], bins)
    unplanned: dict[int, np.ndarray] = {}
    for batch, rows in wrong:
        unplanned.setdefault(batch, np.zeros(size, bool))[rows] = True
    for batch, mask in unplanned.items():
        times = next(span.times for span in spans if span.low <= batch < span.high)
        ids = order.batch_ids(batch)
        counts[0] -= _in_bins(ids[mask & (times == 1)], bins)
        counts[1] -= _in_bins(ids[mask & (times > 1)], bins)
    return counts[0], counts[1]


def _blocks(low: int, high: int, batch_windows: int) -> Iterator[tuple[int, int]]:
    step = max(1, BLOCK_IDS // batch_windows)
    for start in range(low, high, step):
        yield start, min(start + step, high)


def _in_bins(ids: np.ndarray, bins: Bins) -> np.ndarray:
    """How many of the ids lie in each bin. int64 [B]"""
    return np.histogram(ids, bins.edges)[0]
