"""Orders of data as faulty loaders draw them. Pure: batch numbers in, window ids out.

H hosts, B windows of a global batch, b = B / H windows of one host. A loader asks an order for `batch_ids` alone, so
that each class can stand in for `data.order.Order`, whose permutation it reads; a batch is the hosts' shares one after
another.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from ectype.data.order import Order


class Batches(Protocol):
    """What a loader needs of an order."""

    def batch_ids(self, batch_number: int) -> np.ndarray:
        """Window ids of one global batch, [B] uint32."""
        ...


@dataclass(frozen=True)
class ShardedTwice:
    """Each host owns a block of the permutation and is handed to a loader that strides over hosts again.

    Host h therefore draws every H-th window of its own block only, and a pass over the block takes as many draws as a
    pass over a block H times smaller would; then its next permutation begins. With `restarts`, the loader begins at the
    updates done times b instead of that times b times H, and so draws again what it has drawn. Both as in MaxText's
    `olmo_data_grain.py` and `olmo_grain_data_processing.py` (August 2026), read and not copied.
    """

    sound: Order
    hosts: int
    restarts: tuple[int, ...] = ()

    def batch_ids(self, batch_number: int) -> np.ndarray:
        """Window ids of one global batch, [B] uint32."""
        share = self.sound.batch_windows // self.hosts
        start = max((step for step in self.restarts if step <= batch_number), default=0)
        draws = np.arange(share) + (batch_number - start) * share
        hosts = np.arange(self.hosts)[:, None]
        positions = start * share + hosts + self.hosts * draws[None]
        return _of_blocks(self.sound, self.hosts, positions)


@dataclass(frozen=True)
class BlocksOfHosts:
    """Each host owns a block of the permutation and a cursor in it; the number of hosts changes during the run."""

    sound: Order
    hosts: tuple[int, int]
    """Before and after."""
    resized_after_steps: int

    def batch_ids(self, batch_number: int) -> np.ndarray:
        """Window ids of one global batch, [B] uint32."""
        hosts = self.hosts[batch_number >= self.resized_after_steps]
        share = self.sound.batch_windows // hosts
        positions = np.broadcast_to(batch_number * share + np.arange(share), (hosts, share))
        return _of_blocks(self.sound, hosts, positions)


@dataclass(frozen=True)
class ReplayedAtRestarts:
    """Behind each restart one batch is read again, so that batch k holds what was due some batches before."""

    sound: Order
    restarts: tuple[int, ...]

    def batch_ids(self, batch_number: int) -> np.ndarray:
        """Window ids of one global batch, [B] uint32."""
        behind = sum(step <= batch_number for step in self.restarts)
        return self.sound.batch_ids(batch_number - behind)


def _of_blocks(order: Order, hosts: int, positions: np.ndarray) -> np.ndarray:
    """Window ids at each host's own endless positions: its block of one permutation after the other.

    positions: int [H, b]. Returns uint32 [H * b].
    """
    block = order.phases[0].windows // hosts
    ids = np.empty(positions.shape, np.uint32)
    for (host, draw), position in np.ndenumerate(positions):
        epoch, place = divmod(int(position), block)
        first = host * block + place
        ids[host, draw] = order.epoch_ids(0, epoch + 1, first, first + 1)[0]
    return ids.reshape(-1)


def times_read(order: Batches, windows: int, steps: int) -> np.ndarray:
    """How often each window is read in the first `steps` updates, int64 [windows]."""
    times = np.zeros(windows, np.int64)
    for batch in range(steps):
        np.add.at(times, order.batch_ids(batch), 1)
    return times
