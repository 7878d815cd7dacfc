"""Which windows make up global batch k: a function of the order's section of the recipe, the windows, and k alone.

`olmo-core` is OLMo-core's NumpyFSLDataLoader bit for bit: per epoch e (from 1), NumPy's own shuffle of a uint32 range
by PCG64(seed + e), cut into batches, the incomplete tail dropped. Its ranks take row[rank::world] of a batch.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

import numpy as np

from ectype.data.orderfile import default_cache_dir, open_or_build
from ectype.data.permutation import permute
from ectype.data.tokenindex import Phase
from ectype.errors import EctypeError
from ectype.recipe.spec import Data

_IN_MEMORY_UNITS = 1 << 20
"""Orders of up to this many entries are built where they are needed, in milliseconds, and never stored."""
_KNOWN_SHUFFLE = "7d0422e3a4d584a6ab6732fea0f4d6d0"


@dataclass(frozen=True)
class Order:
    """The order of one run. Cheap to pickle: processes that open it share one file through the page cache."""

    kind: str
    seed: int
    chunk: int
    """Windows that are shuffled as one (max target length / sequence length)."""
    batch_windows: int
    phases: tuple[Phase, ...]
    cache_dir: Path | None = None
    _open: dict[tuple[int, int], np.ndarray] = field(default_factory=dict, repr=False, compare=False)

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_open": {}}

    @property
    def steps_per_epoch(self) -> int:
        """Whole batches of one pass over the last phase's windows."""
        return self.phases[-1].windows // self.batch_windows

    def place(self, batch_number: int) -> tuple[int, int, int]:
        """Phase number, epoch (from 1) within the phase, and batch number within the epoch."""
        number = max(i for i, phase in enumerate(self.phases) if phase.first_batch <= batch_number)
        phase = self.phases[number]
        epoch, batch = divmod(batch_number - phase.first_batch, phase.windows // self.batch_windows)
        return number, epoch + 1, batch

    def batch_ids(self, batch_number: int) -> np.ndarray:
        """Window ids of global batch `batch_number` (from 0), in row order. [global_batch_windows] uint32."""
        phase, epoch, batch = self.place(batch_number)
        return self.epoch_ids(phase, epoch, batch * self.batch_windows, (batch + 1) * self.batch_windows)

    def epoch_ids(self, phase: int, epoch: int, start: int, stop: int) -> np.ndarray:
        """Ids at positions [start, stop) of an epoch's order, its dropped tail included. [stop - start] uint32."""
        first, units = self.phases[phase].first_window, self.phases[phase].windows // self.chunk
        if self.chunk == 1:
            ids = self._units(phase, epoch, start, stop, units)
            return ids + np.uint32(first) if first else ids
        low, high = start // self.chunk, -(-stop // self.chunk)
        chunks = self._units(phase, epoch, low, high, units)
        ids = chunks[:, None] * np.uint32(self.chunk) + np.arange(self.chunk, dtype=np.uint32)
        return ids.reshape(-1)[start - low * self.chunk : stop - low * self.chunk] + np.uint32(first)

    def blocks(self, first: int, end: int, batches: int = 4096) -> Iterator[tuple[int, np.ndarray]]:
        """Batches [first, end) in blocks that lie in one epoch: the first one's number, and their ids [n, batch]."""
        while first < end:
            phase, epoch, batch = self.place(first)
            later = [p.first_batch - first for p in self.phases[phase + 1 :]]
            in_epoch = self.phases[phase].windows // self.batch_windows - batch
            count = min(batches, in_epoch, end - first, *later)
            start, stop = batch * self.batch_windows, (batch + count) * self.batch_windows
            yield first, self.epoch_ids(phase, epoch, start, stop).reshape(count, self.batch_windows)
            first += count

    def dropped_ids(self, phase: int, epoch: int) -> np.ndarray:
        """Ids that the epoch leaves unread because they fill no whole batch. [fewer than a batch] uint32."""
        windows = self.phases[phase].windows // self.chunk * self.chunk
        return self.epoch_ids(phase, epoch, windows // self.batch_windows * self.batch_windows, windows)

    def _units(self, phase: int, epoch: int, start: int, stop: int, units: int) -> np.ndarray:
        if self.kind == "sequential":
            return np.arange(start, stop, dtype=np.uint32)
        if self.kind == "stateless":
            positions = np.arange(start, stop, dtype=np.uint64)
            return permute(positions, units, f"{self.seed}/{phase}/{epoch}/{units}").astype(np.uint32)
        opened = self._open.get((phase, epoch))
        if opened is None:
            # A later phase shuffles under its own seeds, or its order would repeat the first one's pattern.
            opened = self._shuffled(units, self.seed + epoch + 1_000_003 * phase)
            self._open.clear()
            self._open[phase, epoch] = opened
        return np.asarray(opened[start:stop])

    def _shuffled(self, units: int, seed: int) -> np.ndarray:
        if self.cache_dir is None and units <= _IN_MEMORY_UNITS:
            return shuffled_range(units, seed)
        check_numpy_shuffle()
        folder = self.cache_dir or default_cache_dir()
        return open_or_build(folder / f"order-{units}-pcg64-{seed}-v1.u32", units, lambda: shuffled_range(units, seed))


def make_order(windows: int | Sequence[Phase], data: Data, cache_dir: Path | None = None) -> Order:
    """The order of `windows` windows (or of an index's `order_phases`) under the recipe's `data` section.

    Args:
        windows: window ids are 0 to `windows` - 1; phases where the mix changes mid-run.
        cache_dir: where large `olmo-core` orders are kept between runs; None: the user's cache folder, and orders of up
            to a million windows in memory only.

    Raises:
        EctypeError: fewer windows than one global batch.
    """
    phases = (Phase(0, 0, windows),) if isinstance(windows, int) else tuple(windows)
    for phase in phases:
        if phase.windows < data.global_batch_windows:
            raise EctypeError(
                f"{phase.windows} windows for batches of {data.global_batch_windows}", "at least one whole batch",
                "give more data, or a smaller data.global_batch_windows",
            )  # fmt: skip
    target = data.order.max_target_length_tokens or data.sequence_length_tokens
    chunk = max(1, target // data.sequence_length_tokens)
    return Order(data.order.kind, data.order.seed, chunk, data.global_batch_windows, phases, cache_dir)


def shuffled_range(units: int, seed: int) -> np.ndarray:
    """range(units) in the order that OLMo-core draws. [units] uint32; holds one array and nothing beside it."""
    ids = np.arange(units, dtype=np.uint32)
    np.random.Generator(np.random.PCG64(seed)).shuffle(ids)
    return ids


@lru_cache(maxsize=1)
def check_numpy_shuffle() -> None:
    """Refuse a NumPy whose shuffle draws another order than the one OLMo-core's runs drew."""
    found = hashlib.sha256(shuffled_range(1000, 34522).astype("<u4").tobytes()).hexdigest()[:32]
    if found != _KNOWN_SHUFFLE:
        raise EctypeError(
            f"NumPy {np.__version__} shuffles otherwise (digest {found})", f"the known order (digest {_KNOWN_SHUFFLE})",
            "install the NumPy version of constraints.txt",
        )  # fmt: skip
