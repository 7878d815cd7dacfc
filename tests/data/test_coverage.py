"""The map of what a pass read: equal to counting every window by hand, whatever the files, the mix and the faults."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from data_makers import make_data

import ectype.data.coverage as coverage
from ectype.data.audit import EpochCount
from ectype.data.audit_run import audit_run
from ectype.data.coverage import Interval, Stretch, bins_of, pass_coverage, stretches_of
from ectype.data.ledger import Ledger
from ectype.data.order import Order, make_order
from ectype.data.tokenindex import Phase, TokenFile, TokenIndex

BATCH = 8
DATA = make_data(batch=BATCH)
SIZES = (300, 5, 420, 1, 277)


def _stretches(sizes: tuple[int, ...] = SIZES) -> list[Stretch]:
    firsts = np.concatenate([[0], np.cumsum(sizes)])[:-1].tolist()
    return [
        Stretch(f"{n}.npy", f"label {n}", first, size)
        for n, (first, size) in enumerate(zip(firsts, sizes, strict=True))
    ]


def _index(sizes: tuple[int, ...], segments: np.ndarray | None = None) -> TokenIndex:
    files = [
        TokenFile(stretch.path or "", stretch.label, 0, stretch.windows * 4, stretch.windows, stretch.first, "a")
        for stretch in _stretches(sizes)
    ]
    return TokenIndex(tuple(files), "uint16", 1000, 4, segments=segments)


def _consume(run: Path, order: Order, first: int, end: int, rows: np.ndarray, shift_from: int | None = None) -> None:
    """One session of one process; from batch `shift_from` on it reads the windows of the batch before."""
    ledger = Ledger(run, 0, 1)
    ledger.begin(first)
    for batch in range(first, end):
        source = batch - 1 if shift_from is not None and batch >= shift_from else batch
        ledger.append(batch, rows, order.batch_ids(source)[rows])
    ledger.flush()


@pytest.mark.parametrize("most", [3, 5, 40, 10_000])
@pytest.mark.parametrize("block_ids", [16, 1 << 21])
def test_bins_count_what_counting_each_window_gives(most: int, block_ids: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coverage, "BLOCK_IDS", block_ids)
    windows = sum(SIZES)
    order = make_order(windows, DATA)
    generator = np.random.default_rng(most)
    spans = [Interval(low, low + 10, generator.integers(0, 3, BATCH)) for low in range(0, 100, 10)]
    wrong = [(7, np.array([1, 2])), (7, np.array([2, 3])), (55, np.arange(8))]
    reads = np.zeros(windows, np.int64)
    for span in spans:
        for batch in range(span.low, span.high):
            times = span.times.copy()
            for bad, rows in wrong:
                times[rows] = np.where(bad == batch, 0, times[rows])
            reads[order.batch_ids(batch)] += times
    bins = bins_of(_stretches(), 0, windows, most)
    once, twice = coverage.count_reads(order, 0, 1, 0, spans, wrong, bins)
    edges = bins.edges.tolist()
    assert edges[0] == 0
    assert edges[-1] == windows
    for place, (low, high) in enumerate(pairwise(edges)):
        assert high > low
        assert once[place] == (reads[low:high] == 1).sum()
        assert twice[place] == (reads[low:high] > 1).sum()
    assert len(edges) - 1 <= most + len(SIZES)


def test_a_bin_lies_in_one_file_where_there_is_room_and_holds_several_where_there_is_not() -> None:
    windows = sum(SIZES)
    order, count = make_order(windows, DATA), EpochCount(0, 1, windows, windows // BATCH)
    spans = [Interval(0, count.steps, np.ones(BATCH, np.int64))]
    each = pass_coverage(order, count, 0, spans, [], _stretches()).stretches
    assert [(s.path, s.files, sum(s.windows)) for s in each] == [(f"{n}.npy", 1, size) for n, size in enumerate(SIZES)]
    many = tuple([3] * 2000)
    windows = sum(many)
    order, count = make_order(windows, DATA), EpochCount(0, 1, windows, windows // BATCH)
    joined = pass_coverage(order, count, 0, [Interval(0, count.steps, np.ones(BATCH, np.int64))], [], _stretches(many))
    assert sum(stretch.files for stretch in joined.stretches) == 2000
    assert sum(len(stretch.windows) for stretch in joined.stretches) <= coverage.MOST_BINS
    assert sum(sum(stretch.windows) for stretch in joined.stretches) == windows
    assert joined.stretches[0].files > 1


def test_a_second_mix_is_mapped_over_its_own_windows() -> None:
    order = make_order([Phase(0, 0, 400), Phase(30, 400, 600)], DATA)
    count = EpochCount(1, 1, 600, 75)
    mapped = pass_coverage(order, count, 30, [Interval(30, 105, np.ones(BATCH, np.int64))], [], _stretches((1003,)))
    assert sum(sum(stretch.windows) for stretch in mapped.stretches) == 600
    assert sum(sum(stretch.read_once) for stretch in mapped.stretches) == 600


def test_a_mixture_names_the_files_that_it_takes() -> None:
    segments = np.array([[298, 10], [0, 20], [305, 2]])
    assert [(s.path, s.first, s.windows) for s in stretches_of(_index(SIZES, segments), False)] == [
        ("0.npy", 0, 2), ("1.npy", 2, 5), ("2.npy", 7, 3), ("0.npy", 10, 20), ("2.npy", 30, 2),
    ]  # fmt: skip
    assert [(s.path, s.windows) for s in stretches_of(_index((4, 0, 3)), False)] == [("0.npy", 4), ("2.npy", 3)]
    assert stretches_of(_index(SIZES), True) == []


def test_packed_windows_are_mapped_without_a_file(tmp_path: Path) -> None:
    order = make_order(100, DATA)
    _consume(tmp_path, order, 0, 12, np.arange(BATCH))
    (mapped,) = audit_run(tmp_path, order, stretches=[]).coverage
    assert [(s.path, s.label, sum(s.read_once)) for s in mapped.stretches] == [(None, "packed windows", 96)]


def test_a_map_adds_up_to_the_audit_and_shows_where_windows_were_missed(tmp_path: Path) -> None:
    windows = sum(SIZES)
    order = make_order(windows, DATA)
    _consume(tmp_path, order, 0, 260, np.arange(BATCH), shift_from=255)
    audit = audit_run(tmp_path, order, stretches=_stretches())
    assert [mapped.epoch for mapped in audit.coverage] == [1, 2, 3]
    for mapped, epoch in zip(audit.coverage, audit.epochs, strict=True):
        assert sum(sum(s.read_once) for s in mapped.stretches) == epoch.read_once
        assert sum(sum(s.read_twice) for s in mapped.stretches) == epoch.read_twice
        assert sum(sum(s.windows) for s in mapped.stretches) == epoch.windows
    assert audit.epochs[2].missed == 5 * BATCH


def test_of_many_passes_the_first_the_last_and_the_faulty_ones_are_mapped(tmp_path: Path) -> None:
    order = make_order(80, DATA)
    _consume(tmp_path, order, 0, 45, np.arange(BATCH))
    _consume(tmp_path, order, 45, 46, np.arange(4))
    _consume(tmp_path, order, 46, 200, np.arange(BATCH))
    audit = audit_run(tmp_path, order, stretches=_stretches((80,)))
    assert len(audit.epochs) == 20
    assert [mapped.epoch for mapped in audit.coverage] == [1, 5, 20]
    assert sum(audit.coverage[1].stretches[0].read_once) == 76
