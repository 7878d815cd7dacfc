"""The loader: batches for any workers, faults by name, windows read as they are stored."""

import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from data_makers import index_of, make_data, write_tokens

from ectype.data.loader import Batch, Loader, open_loader
from ectype.data.rows import process_rows
from ectype.data.windows import WindowReader
from ectype.errors import EctypeError
from ectype.recipe.spec import RepetitionFilter


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_batches_are_identical_for_any_workers(tmp_path: Path, workers: int) -> None:
    """C26, with documents and filter: from a batch that is no multiple of the workers, across an epoch boundary.

    Then a worker is killed, which is an error with its name, not a hang.
    """
    tokens = np.random.default_rng(0).integers(0, 50, 64 * 41)
    tokens[200:330] = 7
    index = index_of([write_tokens(tmp_path / "a.npy", tokens)], 64)
    data = make_data(64, 4, document_masks=True, repetition_filter=RepetitionFilter())
    rows = np.array([0, 2, 3])
    with open_loader(index, data, first_batch=5, end_batch=16, rows=rows) as loader:
        expected = list(loader)
    assert [batch.batch_number for batch in expected] == list(range(5, 16))
    assert not all(batch.keep.all() for batch in expected)
    before = set(multiprocessing.active_children())
    with open_loader(index, data, first_batch=5, rows=rows, workers=workers, prefetch=workers) as loader:
        for theirs in expected:
            _assert_equal(next(loader), theirs)
        worker = (set(multiprocessing.active_children()) - before).pop()
        assert worker.pid is not None
        os.kill(worker.pid, signal.SIGKILL)
        with pytest.raises(EctypeError, match=rf"reading worker \d of {workers} died at batch \d+"):
            list(zip(range(50), loader, strict=False))


def _assert_equal(ours: Batch, theirs: Batch) -> None:
    assert ours.batch_number == theirs.batch_number
    assert ours.target_mask is theirs.target_mask is None
    for name in ("window_ids", "tokens", "keep", "segment_ids"):
        mine, other = getattr(ours, name), getattr(theirs, name)
        assert mine.dtype == other.dtype
        assert (mine == other).all(), name


class _StuckReader:
    """Reads one batch, then waits for ever, like a mount that hangs."""

    def __init__(self) -> None:
        self.released = threading.Event()

    def read(self, number: int) -> Batch:
        if number > 0:
            self.released.wait()
        empty = np.zeros(0, np.uint32)
        return Batch(number, empty, np.zeros((0, 4), np.int32), np.zeros(0, bool), None, None)


def test_a_starved_loader_is_an_error_not_a_hang() -> None:
    reader = _StuckReader()
    loader = Loader(reader, 0, 9, 0, 1, starved_after_seconds=0.3)  # type: ignore[arg-type]
    assert next(loader).wait_seconds < 0.3
    threading.Timer(1.0, reader.released.set).start()
    with pytest.raises(EctypeError, match=r"reading thread starved at batch 1: no batch for 0 seconds"):
        next(loader)


def test_batches_are_placed_ahead_of_the_consumer(corpus) -> None:
    placed: list[int] = []

    def place(batch: Batch) -> int:
        placed.append(batch.batch_number)
        return int(batch.tokens.sum())

    with open_loader(index_of(corpus(160)), make_data(), first_batch=0, end_batch=5, prefetch=3, place=place) as loader:
        first = next(loader)
        deadline = time.monotonic() + 10
        while len(placed) < 4 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert placed[:4] == [0, 1, 2, 3]
        assert all(batch.placed == batch.tokens.sum() for batch in [first, *loader])


def test_wait_time_is_measured(corpus) -> None:
    with open_loader(index_of(corpus(160)), make_data(), first_batch=0, end_batch=5) as loader:
        assert all(0 <= batch.wait_seconds < 5 for batch in loader)


@pytest.mark.parametrize(("fault", "workers"), [("cut", 0), ("removed", 0), ("damaged", 0), ("cut", 2)])
def test_faults_of_files_while_reading_are_named(corpus, fault: str, workers: int) -> None:
    paths = corpus(160, 160)
    index, data = index_of(paths), make_data(kind="sequential")
    if fault == "cut":
        os.truncate(paths[1], 200)
    elif fault == "removed":
        paths[1].unlink()
    else:
        with open(paths[1], "r+b") as stream:
            stream.seek(2 * 20)
            stream.write(b"\xff\xff")
    words = {"cut": "f1.npy ends before byte", "removed": "No such file", "damaged": "f1.npy: id 65535 at token 20"}
    with open_loader(index, data, first_batch=0, end_batch=10, workers=workers) as loader:
        assert [next(loader).batch_number for _ in range(5)] == list(range(5))
        with pytest.raises(EctypeError, match=words[fault]):
            for _ in loader:
                pass


def test_errors_travel_between_processes_whole() -> None:
    sent = EctypeError("f0.npy is missing", "a file", "restore it")
    came = pickle.loads(pickle.dumps(sent))
    assert (came.found, came.expected, came.mend, str(came)) == (sent.found, sent.expected, sent.mend, str(sent))


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "uint32", "uint64"])
def test_windows_of_every_width(tmp_path: Path, dtype: str) -> None:
    vocab = {"uint8": 200, "uint16": 60_000, "uint32": 100_278, "uint64": 2**31}[dtype]
    tokens = np.random.default_rng(0).integers(0, vocab, 16 * 7)
    index = index_of([write_tokens(tmp_path / "a.npy", tokens, np.dtype(dtype).str)], vocab_size=vocab, dtype=dtype)
    read = WindowReader(index).read(np.array([6, 0]))
    assert read.dtype == np.int32
    assert (read == tokens.reshape(7, 16)[[6, 0]]).all()


def test_more_files_than_may_be_open(tmp_path: Path) -> None:
    paths = [write_tokens(tmp_path / f"{n}.npy", np.full(4, n + 2)) for n in range(300)]
    reader = WindowReader(index_of(paths, 4))
    opened = len(os.listdir("/proc/self/fd"))
    assert (reader.read(np.arange(300))[:, 0] == np.arange(300) + 2).all()
    assert len(os.listdir("/proc/self/fd")) - opened <= 128
    reader.close()
    assert len(os.listdir("/proc/self/fd")) == opened


class _Sharding:
    """What `process_rows` asks of a sharding: two of four hosts' devices, replicated along a second axis."""

    device_set = frozenset(range(16))

    def addressable_devices_indices_map(self, shape: tuple[int, ...]) -> dict[int, tuple[slice, ...]]:
        assert shape == (8, 16)
        return {0: (slice(4, 6), slice(0, 8)), 1: (slice(4, 6), slice(8, 16)), 2: (slice(0, 2), slice(None))}


def test_rows_are_those_of_the_addressable_devices_each_once() -> None:
    assert process_rows(_Sharding(), 8).tolist() == [0, 1, 4, 5]


def test_rows_of_real_shardings() -> None:
    code = (
        "import os; os.environ['XLA_FLAGS'] = '--xla_force_host_platform_device_count=8'\n"
        "import jax, numpy as np\n"
        "from jax.sharding import NamedSharding, PartitionSpec as P\n"
        "from ectype.data.rows import process_rows\n"
        "mesh = jax.make_mesh((2, 2, 2), ('data', 'fsdp', 'context'))\n"
        "for spec in (P(('data', 'fsdp'), 'context'), P(('data', 'fsdp'), None), P(None, None)):\n"
        "    assert process_rows(NamedSharding(mesh, spec), 8).tolist() == list(range(8))\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ, "JAX_PLATFORMS": "cpu"})


def test_batches_do_not_depend_on_where_reading_began(corpus) -> None:
    index, data = index_of(corpus(1600)), make_data()
    with open_loader(index, data, first_batch=0, end_batch=60) as loader:
        straight = [batch.tokens for batch in loader]
    for first in (1, 7, 49, 50, 51):
        with open_loader(index, data, first_batch=first, end_batch=60) as loader:
            assert all((batch.tokens == straight[batch.batch_number]).all() for batch in loader)
