"""Faulty orders read what the public loader was measured to read, and no fault is an honest order by accident."""

import numpy as np
import pytest

from ectype.data.order import make_order
from ectype.faults.orders import BlocksOfHosts, ReplayedAtRestarts, ShardedTwice, times_read
from ectype.recipe.spec import Data, Order


def _order(windows: int, batch: int):
    data = Data(
        sequence_length_tokens=8, global_batch_windows=batch, eos_id=0, pad_id=1, order=Order(kind="olmo-core", seed=7)
    )
    return make_order(windows, data)


def _shares(order, windows: int, steps: int) -> tuple[float, float]:
    times = times_read(order, windows, steps)
    return float((times == 0).mean()), float((times > 1).mean())


@pytest.mark.parametrize(
    ("hosts", "unread", "again"),
    [(1, 0.0, 0.0), (2, 0.252, 0.252), (4, 0.312, 0.261), (8, 0.34, 0.261), (16, 0.354, 0.265), (64, 0.364, 0.267)],
)
def test_sharding_twice_reads_what_the_public_loader_was_measured_to_read(hosts, unread, again) -> None:
    windows = 64 * 300
    found = _shares(ShardedTwice(_order(windows, 64), hosts), windows, windows // 64)
    # One draw of 19,200 windows: four standard deviations of a share of one third are 0.014.
    assert found == pytest.approx((unread, again), abs=0.014)


@pytest.mark.parametrize("hosts", [4, 8])
def test_behind_a_restart_the_loader_that_shards_twice_draws_what_was_drawn_before(hosts) -> None:
    order = ShardedTwice(_order(64 * 100, 64), hosts, restarts=(hosts * 2,))
    before = np.concatenate([order.batch_ids(k) for k in range(hosts * 2)])
    behind = np.concatenate([order.batch_ids(k) for k in range(hosts * 2, hosts * 3)])
    assert set(behind) <= set(before)


def test_hosts_with_blocks_of_their_own_repeat_and_skip_when_their_number_changes() -> None:
    # The case of the field: 24 windows in their order, batches of 8, one step of four hosts, then two hosts.
    data = Data(
        sequence_length_tokens=8, global_batch_windows=8, eos_id=0, pad_id=1, order=Order(kind="sequential", seed=0)
    )
    order = BlocksOfHosts(make_order(24, data), (4, 2), 1)
    times = times_read(order, 24, 3)
    assert np.flatnonzero(times == 2).tolist() == [6, 7, 18, 19]
    assert np.flatnonzero(times == 0).tolist() == [2, 3, 14, 15]


def test_each_restart_puts_the_reading_one_batch_further_behind() -> None:
    sound = _order(64, 8)
    order = ReplayedAtRestarts(sound, (2, 4))
    drawn = [next(k for k in range(8) if np.array_equal(order.batch_ids(n), sound.batch_ids(k))) for n in range(6)]
    assert drawn == [0, 1, 1, 2, 2, 3]
