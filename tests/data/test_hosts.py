"""Real processes for 1, 2 and 4 hosts: host counts, workers' stops and restarts change nothing of what is read."""

import multiprocessing
from pathlib import Path

import numpy as np
import pytest
from data_makers import index_of, make_data

from ectype.data.audit_run import audit_run
from ectype.data.ledger import Ledger
from ectype.data.loader import open_loader
from ectype.data.order import make_order
from ectype.data.rows import host_rows
from ectype.data.tokenindex import TokenIndex
from ectype.recipe.spec import Data


def read_as_host(
    index: TokenIndex, data: Data, run: Path, host: int, hosts: int, first: int, end: int, flushed: int
) -> None:  # fmt: skip
    """One host's process: reads its rows of batches [first, end), writes its ledger, flushes up to `flushed`."""
    ledger = Ledger(run, host, hosts)
    ledger.begin(first)
    rows = host_rows(host, hosts, data.global_batch_windows)
    with open_loader(index, data, first_batch=first, rows=rows, end_batch=end) as loader:
        for batch in loader:
            assert (batch.tokens[:, 0] == 16 * batch.window_ids % 998 + 2).all()
            ledger.append(batch.batch_number, rows, batch.window_ids)
            if batch.batch_number < flushed:
                ledger.flush()


def run_session(index: TokenIndex, data: Data, run: Path, hosts: int, first: int, end: int, flushed: int) -> None:
    """One start of the program on `hosts` hosts."""
    context = multiprocessing.get_context("fork")
    arguments = [(index, data, run, host, hosts, first, end, flushed) for host in range(hosts)]
    processes = [context.Process(target=read_as_host, args=a) for a in arguments]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        assert process.exitcode == 0


@pytest.mark.parametrize("kind", ["olmo-core", "stateless"])
def test_hosts_change_mid_epoch_with_odd_stops_and_two_restarts_in_a_row(corpus, tmp_path: Path, kind: str) -> None:
    """4 hosts stop at 7 after their checkpoint at 5; 1 host dies before its first checkpoint, twice; 2 hosts go on to
    the epoch's exact end; 4 hosts read the second epoch."""
    index, data = index_of(corpus(16 * 88)), make_data(batch=8, kind=kind)
    for hosts, first, end, flushed in ((4, 0, 7, 5), (1, 5, 6, 5), (1, 5, 8, 5), (2, 5, 11, 11), (4, 11, 22, 22)):
        run_session(index, data, tmp_path, hosts, first, end, flushed)
    audit = audit_run(tmp_path, make_order(index.windows, data), checkpoint_step=22)
    assert audit.clean
    assert [(e.read_once, e.read_twice, e.unread) for e in audit.epochs] == [(88, 0, 0), (88, 0, 0)]


def test_processes_of_1_2_and_4_hosts_read_the_same_sets(corpus, tmp_path: Path) -> None:
    """The digests of all hosts add up to the same sum, and to the order's own."""
    index, data = index_of(corpus(16 * 90)), make_data(batch=8)
    order = make_order(index.windows, data)
    sums = []
    for hosts in (1, 2, 4):
        run = tmp_path / str(hosts)
        run_session(index, data, run, hosts, 0, 11, 11)
        ledgers = [Ledger(run, host, hosts) for host in range(hosts)]
        for ledger in ledgers:
            ledger.begin(11)
        sums.append(sum(ledger.digest for ledger in ledgers).tolist())
        audit = audit_run(run, order)
        assert audit.clean
        assert (audit.epochs[0].read_once, audit.epochs[0].unread_dropped_tail) == (88, 2)
    assert sums[0] == sums[1] == sums[2]
    planned = Ledger(tmp_path / "planned", 0, 1)
    for k in range(11):
        planned.append(k, np.arange(8), order.batch_ids(k))
    assert planned.digest.tolist() == sums[0]
