"""Batches for one process, read ahead by Grain workers. They depend on the order alone, not on workers or buffers."""

import queue
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ectype.data.documents import segment_ids
from ectype.data.order import Order, make_order
from ectype.data.repetition import keep_windows
from ectype.data.source import WindowSource, open_source
from ectype.data.tokenindex import TokenIndex
from ectype.errors import EctypeError
from ectype.recipe.spec import Data

STARVED_AFTER_SECONDS = 600.0
"""No batch for this long is an error. Building an order of 724 million windows takes two minutes of it."""
_NO_END = 1 << 48


@dataclass(frozen=True)
class Batch:
    """The rows of one global batch that this process reads."""

    batch_number: int
    window_ids: np.ndarray
    """[b] uint32"""
    tokens: np.ndarray
    """[b, L] int32"""
    keep: np.ndarray
    """[b] bool; False where the repetition filter rejects the window: no loss, the position still advances."""
    segment_ids: np.ndarray | None
    """[b, L] int32, the document of each token; None without document masks."""
    target_mask: np.ndarray | None
    """[b, L] bool, False for padding of packed windows, which is no target; None: every token is one."""
    wait_seconds: float = 0.0
    """How long the consumer waited for this batch."""
    placed: Any = None
    """What `place` made of the batch, for example its arrays on the devices."""


@dataclass(frozen=True)
class BatchReader:
    """Reads any batch by number; what a Grain worker runs."""

    source: WindowSource
    order: Order
    data: Data
    rows: np.ndarray | None

    def read(self, batch_number: int) -> Batch:
        """This process's rows of global batch `batch_number`."""
        ids = self.order.batch_ids(batch_number)
        ids = ids if self.rows is None else ids[self.rows]
        tokens, target_mask = self.source.read(ids)
        rule = self.data.repetition_filter
        keep = np.ones(len(ids), bool) if rule is None else keep_windows(tokens, rule)
        segments = segment_ids(tokens, self.data.eos_id) if self.data.document_masks else None
        return Batch(batch_number, ids, tokens, keep, segments, target_mask)


class Loader:
    """Iterates over batches from `first_batch` on. Close it, or use it as a context, to end its workers."""

    def __init__(
        self,
        reader: BatchReader,
        first_batch: int,
        end_batch: int,
        workers: int,
        prefetch: int,
        starved_after_seconds: float,
        place: Callable[[Batch], Any] | None = None,
    ) -> None:
        self._next, self._end, self._workers, self._first = first_batch, end_batch, workers, first_batch
        self._starved_after_seconds, self._place = starved_after_seconds, place
        self._batches: queue.Queue[Any] = queue.Queue(maxsize=max(1, prefetch))
        self._stop = threading.Event()
        self._iterator: Any = map(reader.read, range(first_batch, end_batch))
        if workers and end_batch > first_batch:
            self._iterator = _grain_batches(reader, first_batch, end_batch, workers, prefetch)
        self._thread = threading.Thread(target=self._feed, name="ectype-loader", daemon=True)
        self._thread.start()

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        if self._next >= self._end:
            self.close()
            raise StopIteration
        started = time.monotonic()
        found = self._take(started)
        if isinstance(found, BaseException):
            self.close()
            raise self._explain(found) from found
        if found.batch_number != self._next:
            self.close()
            raise EctypeError(
                f"batch {found.batch_number} from the reader", f"batch {self._next}", "report this as a bug"
            )
        self._next += 1
        return replace(found, wait_seconds=time.monotonic() - started)

    def __enter__(self) -> "Loader":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop reading ahead and end the workers."""
        if self._stop.is_set():
            return
        self._stop.set()
        if isinstance(self._iterator, _FromGrain):
            self._iterator.close()
        self._thread.join(timeout=5)

    def _take(self, started: float) -> Any:
        while True:
            left = self._starved_after_seconds - (time.monotonic() - started)
            try:
                return self._batches.get(timeout=max(0.01, min(left, 1.0)))
            except queue.Empty:
                if left <= 0:
                    return TimeoutError(f"no batch for {self._starved_after_seconds:.0f} seconds")

    def _feed(self) -> None:
        try:
            for batch in self._iterator:
                if not self._put(batch if self._place is None else replace(batch, placed=self._place(batch))):
                    return
        except BaseException as error:
            self._put(error)

    def _put(self, item: Any) -> bool:
        while not self._stop.is_set():
            try:
                self._batches.put(item, timeout=0.2)
                return True
            except queue.Full:
                continue
        return False

    def _explain(self, error: BaseException) -> EctypeError:
        if isinstance(error, EctypeError):
            return error
        who = "the loader's reading thread"
        if self._workers:
            who = f"reading worker {(self._next - self._first) % self._workers} of {self._workers}"
        kind = "starved" if isinstance(error, TimeoutError) else "died"
        return EctypeError(
            f"{who} {kind} at batch {self._next}: {error}",
            "a batch",
            "see the log above for its cause (memory, disk, mount); resuming starts again at this batch",
        )


def open_loader(
    index: TokenIndex,
    data: Data,
    *,
    first_batch: int,
    rows: np.ndarray | None = None,
    end_batch: int | None = None,
    workers: int = 0,
    prefetch: int = 2,
    cache_dir: Path | None = None,
    starved_after_seconds: float = STARVED_AFTER_SECONDS,
    place: Callable[[Batch], Any] | None = None,
) -> Loader:
    """Start reading batches from `first_batch` on.

    Args:
        rows: global row numbers this process reads (`process_rows`); None: all.
        end_batch: the first batch not to read (the run's last step); None: no end.
        workers: Grain reading processes; 0 reads in a thread of this process, without Grain.
        prefetch: batches that each worker, or the thread, holds ready.
        place: called ahead of time, in the loader's thread, with each batch, to start its way to the devices; what it
            returns is the batch's `placed`.

    Raises:
        EctypeError: fewer windows than one batch; while iterating, any fault of a file or a worker, by name.
    """
    source, phases = open_source(index, data, cache_dir)
    reader = BatchReader(source, make_order(phases, data, cache_dir), data, rows)
    end = _NO_END if end_batch is None else end_batch
    return Loader(reader, first_batch, end, workers, prefetch, starved_after_seconds, place)


class _Batches:
    """A Grain data source: element i is batch `first` + i."""

    def __init__(self, reader: BatchReader, first: int, end: int) -> None:
        self._reader, self._first, self._end = reader, first, end

    def __len__(self) -> int:
        return self._end - self._first

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        batch = self._reader.read(self._first + index)
        values = {"batch_number": np.int64(batch.batch_number), "window_ids": batch.window_ids, "tokens": batch.tokens}
        optional = {"segment_ids": batch.segment_ids, "target_mask": batch.target_mask}
        return values | {"keep": batch.keep} | {key: value for key, value in optional.items() if value is not None}


def _grain_batches(reader: BatchReader, first: int, end: int, workers: int, prefetch: int) -> "_FromGrain":
    import grain
    from absl import flags

    if not flags.FLAGS.is_parsed():
        flags.FLAGS.mark_as_parsed()  # Grain's workers read absl flags, which a program without absl never parses.
    # No reading threads of Grain's own: its workers' buffers and the loader's queue read ahead, and bound the memory.
    options = grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)
    batches = grain.MapDataset.source(_Batches(reader, first, end)).to_iter_dataset(options)
    # Arrays travel through pipes: shared memory is 64 MB in a plain container, and a killed worker leaks it.
    through_pipes = grain.experimental.DatasetOptions(min_shm_size=sys.maxsize)
    batches = grain.experimental.WithOptionsIterDataset(batches, through_pipes)
    buffers = grain.MultiprocessingOptions(num_workers=workers, per_worker_buffer_size=max(1, prefetch))
    return _FromGrain(iter(batches.mp_prefetch(buffers)))


class _FromGrain:
    """Turns Grain's elements into batches."""

    def __init__(self, elements: Any) -> None:
        self._elements = elements

    def __iter__(self) -> "_FromGrain":
        return self

    def __next__(self) -> Batch:
        element = next(self._elements)
        return Batch(
            int(element["batch_number"]), element["window_ids"], element["tokens"], element["keep"],
            element.get("segment_ids"), element.get("target_mask"),
        )  # fmt: skip

    def close(self) -> None:
        self._elements.close()
