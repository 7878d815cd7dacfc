"""Faults from the field that belong to the data: each case with its input and the right value."""

from pathlib import Path

import numpy as np
import pytest
from data_makers import index_of, make_data, write_tokens

from ectype.data.index import load_index
from ectype.data.loader import open_loader
from ectype.data.order import make_order
from ectype.data.rows import host_rows
from ectype.data.tokenindex import report
from ectype.errors import EctypeError


def test_uint32_read_as_uint16_is_recognised(tmp_path: Path) -> None:
    """C14: all ids pass the range check, yet the high halves betray the width."""
    path = write_tokens(tmp_path / "a.npy", [100257, 100277, 65536], "<u4")
    assert np.fromfile(path, "<u2").tolist() == [34721, 1, 34741, 1, 0, 1]
    with pytest.raises(EctypeError, match="halves of uint32, read here as uint16"):
        index_of([path], length=2, vocab_size=65536)


def test_uint16_read_as_uint32_is_recognised(tmp_path: Path) -> None:
    """C14, the reverse."""
    path = write_tokens(tmp_path / "a.npy", np.random.default_rng(0).integers(2, 60000, 400))
    with pytest.raises(EctypeError, match="pairs of uint16, read here as uint32"):
        index_of([path], length=2, vocab_size=100278)


@pytest.mark.parametrize("dtype", ["int32", "uint61", "float32", ""])
def test_unknown_width_is_an_error(tmp_path: Path, dtype: str) -> None:
    """C14: no fall-back."""
    with pytest.raises(EctypeError, match="unknown dtype"):
        index_of([write_tokens(tmp_path / "a.npy", range(64))], dtype=dtype)


def test_a_size_that_does_not_divide_is_an_error(tmp_path: Path) -> None:
    """C14: size must divide."""
    (tmp_path / "a.npy").write_bytes(b"\x05\x00" * 40 + b"\x00")
    with pytest.raises(EctypeError, match="81 bytes of tokens do not divide by 2"):
        index_of([tmp_path / "a.npy"])


def test_empty_and_short_files(corpus) -> None:
    """C16: sizes [0, 5, 16, 33, 7], L=16 -> windows [0, 0, 1, 2, 0]; 61 tokens, 13 dropped."""
    index = index_of(corpus(0, 5, 16, 33, 7))
    assert [file.windows for file in index.files] == [0, 0, 1, 2, 0]
    assert index.windows == 3
    numbers, offsets = index.locate(np.array([0, 1, 2]))
    assert (numbers.tolist(), offsets.tolist()) == ([2, 3, 3], [0, 0, 16])
    found = report(index)
    assert (found["tokens"], found["dropped_tokens"]) == (61, 13)
    assert [Path(path).name for path in found["empty_files"]] == ["f0.npy"]
    assert [Path(path).name for path in found["short_files"]] == ["f1.npy", "f4.npy"]


def test_a_corpus_without_windows_is_an_error(corpus) -> None:
    """C16."""
    with pytest.raises(EctypeError, match="hold no window of 16 tokens"):
        index_of(corpus(0, 5, 15))


def test_stride_and_lost_targets(corpus) -> None:
    """C18: 33 tokens, L=16 -> windows at 0 and 16; loss tokens 30; the rule is told."""
    index = index_of(corpus(33))
    assert index.locate(np.arange(2))[1].tolist() == [0, 16]
    found = report(index)
    assert (found["tokens_a_pass"], found["loss_tokens_a_pass"]) == (32, 30)
    assert "last position has no target" in found["window_rule"]


@pytest.mark.parametrize("prefetch", [1, 3])
def test_batches_do_not_depend_on_buffers(corpus, prefetch: int) -> None:
    """C26 without workers (with workers: test_loader)."""
    index, data = index_of(corpus(16 * 12)), make_data(kind="sequential")
    with open_loader(index, data, first_batch=0, end_batch=6, prefetch=prefetch) as loader:
        assert [batch.window_ids.tolist() for batch in loader] == [[2 * n, 2 * n + 1] for n in range(6)]


@pytest.mark.parametrize(("workers", "stop"), [(0, 3), (1, 4), (2, 3), (3, 4)])
def test_a_stop_at_any_step_goes_on_with_any_workers(corpus, workers: int, stop: int) -> None:
    """C26: B=2; a stop that is no multiple of the workers, and a restart with another count and other buffers."""
    index, data = index_of(corpus(16 * 12)), make_data(kind="sequential")
    read = []
    for first, count, prefetch in ((0, workers, 3), (stop, (workers + 2) % 4, 1)):
        with open_loader(
            index, data, first_batch=first, end_batch=stop if not first else 6, workers=count, prefetch=prefetch
        ) as loader:
            read += [batch.window_ids.tolist() for batch in loader]
    assert read == [[2 * n, 2 * n + 1] for n in range(6)]


@pytest.mark.parametrize("stop", [3, 5])
def test_second_epoch_begins_at_its_own_first_window(corpus, stop: int) -> None:
    """C28: 10 windows, B=2, stop at 3 or exactly on the boundary at 5 -> epoch 2 runs, from its own first id."""
    index, data = index_of(corpus(160)), make_data()
    order = make_order(10, data)
    with open_loader(index, data, first_batch=stop, end_batch=10) as loader:
        after = [batch.window_ids for batch in loader]
    shuffled = np.arange(10, dtype=np.uint32)
    np.random.Generator(np.random.PCG64(data.order.seed + 2)).shuffle(shuffled)
    assert np.concatenate(after[5 - stop :]).tolist() == shuffled.tolist()
    assert order.place(5) == (0, 2, 0)
    before = [order.batch_ids(k) for k in range(stop)]
    assert sorted(np.concatenate(before + after).tolist()) == sorted([*range(10), *range(10)])


@pytest.mark.parametrize(("windows", "batch"), [(10, 6), (1003, 4), (1003, 8)])
def test_the_tail_is_dropped_once_for_all_hosts(windows: int, batch: int) -> None:
    """C30: same batch count on every host, dropped ids named; 2 and 4 hosts keep the same windows."""
    order = make_order(windows, make_data(batch=batch))
    assert order.steps_per_epoch == windows // batch
    kept = {}
    counts = [hosts for hosts in (1, 2, 4, 8) if batch % hosts == 0]
    for hosts in counts:
        reads = [order.batch_ids(k)[host_rows(h, hosts, batch)] for h in range(hosts) for k in range(windows // batch)]
        kept[hosts] = set(np.concatenate(reads).tolist())
    dropped = order.dropped_ids(0, 1)
    assert all(kept[hosts] == set(range(windows)) - set(dropped.tolist()) for hosts in counts)
    assert len(dropped) == windows % batch


def test_host_count_changes_neither_repeat_nor_skip() -> None:
    """C24: N=24, G=8, 4 hosts, 1 step, then 2 hosts: the union is exactly 0..23."""
    order = make_order(24, make_data(batch=8, kind="sequential"))
    reads = [order.batch_ids(0)[host_rows(h, 4, 8)] for h in range(4)]
    reads += [order.batch_ids(k)[host_rows(h, 2, 8)] for k in (1, 2) for h in range(2)]
    assert sorted(np.concatenate(reads).tolist()) == list(range(24))


@pytest.mark.parametrize("kind", ["olmo-core", "stateless", "sequential"])
def test_the_set_of_a_step_is_equal_for_all_host_counts(kind: str) -> None:
    """C24: step-k set of ids equal for 1, 2, 4, 8 hosts."""
    order = make_order(1000, make_data(batch=8, kind=kind))
    for step in (0, 17, 124, 125, 200):
        sets = [
            np.concatenate([order.batch_ids(step)[host_rows(h, hosts, 8)] for h in range(hosts)]).tolist()
            for hosts in (1, 2, 4, 8)
        ]
        assert all(found == sets[0] for found in sets)


def test_a_batch_that_does_not_divide_among_hosts_is_refused() -> None:
    """C30: no host gets another share."""
    with pytest.raises(EctypeError, match="3 hosts for batches of 8 windows"):
        host_rows(0, 3, 8)


def test_fewer_windows_than_a_batch_is_refused(corpus, tmp_path: Path) -> None:
    """C30: a starved batch is refused before step 0."""
    data = make_data(batch=8)
    (tmp_path / "m.txt").write_text("\n".join(path.name for path in corpus(33)))
    index = load_index(tmp_path / "m.txt", data, 1000)
    with pytest.raises(EctypeError, match="2 windows for batches of 8"):
        open_loader(index, data, first_batch=0)
