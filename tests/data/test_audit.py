"""Audits: clean plans and runs are proven, and each kind of fault is counted and told with its steps and hosts."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from data_makers import make_data

from ectype.data.audit import audit_plan
from ectype.data.audit_run import audit_run
from ectype.data.digest import batch_digest, block_digests, hexadecimal
from ectype.data.host_stages import HostStage, parse_host_stages
from ectype.data.ledger import RECORD, Ledger, read_records, sessions_of
from ectype.data.order import Order, make_order
from ectype.data.rows import host_rows
from ectype.data.tokenindex import Phase
from ectype.errors import EctypeError

BATCH = 8
DATA = make_data(batch=BATCH)


def consume(run: Path, order: Order, hosts: int, first: int, end: int, **changes: object) -> None:
    """A session of `hosts` hosts over batches [first, end); `ids(host, k, ids)` may change what a host reads."""
    ids_of = changes.get("ids", lambda host, k, ids: ids)
    rows_of = changes.get("rows", lambda host: host_rows(host, hosts, BATCH))
    skips = changes.get("skips", ())
    for host in range(hosts):
        ledger = Ledger(run, host, hosts)
        ledger.begin(first)
        rows = rows_of(host)  # type: ignore[operator]
        for k in range(first, end):
            if (host, k) not in skips:  # type: ignore[operator]
                ledger.append(k, rows, ids_of(host, k, order.batch_ids(k)[rows]))  # type: ignore[operator]
        ledger.flush()
        for k in range(end, end + changes.get("lost", 0)):  # type: ignore[operator]
            ledger.append(k, rows, order.batch_ids(k)[rows])


def test_schedules() -> None:
    assert parse_host_stages("64 hosts to step 1050000, then 16", 1_413_814) == (
        HostStage(64, 0, 1_050_000), HostStage(16, 1_050_000, 1_413_814),
    )  # fmt: skip
    assert parse_host_stages("1 host", 10) == (HostStage(1, 0, 10),)
    assert parse_host_stages("4 to 3, 2 hosts until step 5, then 8 hosts to step 10", 10) == (
        HostStage(4, 0, 3), HostStage(2, 3, 5), HostStage(8, 5, 10),
    )  # fmt: skip


@pytest.mark.parametrize(
    "text",
    [
        "",
        "many",
        "0 hosts",
        "4 hosts, then 2",
        "4 to 3, then 2 to 2",
        "4 to 11",
        "4 to 9",
        "4 hosts to",
        "-1",
        "２ hosts",
    ],
)
def test_bad_schedules_are_refused(text: str) -> None:
    with pytest.raises(EctypeError, match="schedule"):
        parse_host_stages(text, 10)


@pytest.mark.parametrize("kind", ["olmo-core", "stateless", "sequential"])
def test_a_plan_is_proven_over_host_changes_and_epochs(kind: str) -> None:
    order = make_order(1003, make_data(batch=8, kind=kind))
    audit = audit_plan(order, parse_host_stages("8 hosts to step 50, then 2 hosts to step 77, then 4", 300))
    assert audit.clean
    counts = [(e.epoch, e.steps, e.read_once, e.read_twice, e.unread, e.unread_dropped_tail) for e in audit.epochs]
    assert counts == [(1, 125, 1000, 0, 3, 3), (2, 125, 1000, 0, 3, 3), (3, 50, 400, 0, 603, 3)]
    assert audit.epochs[2].unread_not_reached == 600


def test_a_plan_over_phases() -> None:
    order = make_order((Phase(0, 0, 40), Phase(3, 40, 24)), DATA)
    audit = audit_plan(order, parse_host_stages("2", 6))
    assert audit.clean
    assert [(e.phase, e.read_once, e.unread) for e in audit.epochs] == [(0, 24, 16), (1, 24, 0)]


def test_a_plan_whose_order_repeats_a_window_is_told(tmp_path: Path) -> None:
    order = make_order(1000, DATA, tmp_path)
    ids = order.epoch_ids(0, 1, 0, 1000).copy()
    lost, ids[17 * 8 + 5] = int(ids[17 * 8 + 5]), ids[3]
    next(tmp_path.glob("*.u32")).write_bytes(ids.tobytes())
    audit = audit_plan(make_order(1000, DATA, tmp_path), parse_host_stages("4", 125))
    assert not audit.clean
    (epoch,) = audit.epochs
    assert (epoch.read_once, epoch.read_twice, epoch.unread, epoch.missed) == (998, 1, 1, 1)
    repeated = [(f.first_step, f.hosts, f.windows) for f in audit.faults if "more than once" in f.what]
    assert repeated == [(1, (1,), (int(ids[3]),)), (18, (2,), (int(ids[3]),))]
    assert [f.windows for f in audit.faults if f.what == "windows in no step"] == [(lost,)]


def test_hosts_that_do_not_divide_the_batch_are_refused() -> None:
    with pytest.raises(EctypeError, match="3 hosts"):
        audit_plan(make_order(100, DATA), parse_host_stages("3", 10))


def test_digests_add_up_and_tell_batches_rows_and_windows_apart() -> None:
    rows, ids = np.arange(8), np.arange(100, 108)
    whole = batch_digest(5, rows, ids)
    parts = batch_digest(5, rows[:3], ids[:3]) + batch_digest(5, rows[3:], ids[3:])
    assert (whole == parts).all()
    others = [batch_digest(6, rows, ids), batch_digest(5, rows, ids[::-1]), batch_digest(5, rows, ids + 1)]
    assert len({hexadecimal(d) for d in [whole, *others]}) == 4
    assert (block_digests(5, rows, np.stack([ids, ids]))[0] == whole).all()
    assert len(hexadecimal(whole)) == 32
    # Ledgers of earlier versions must stay readable: this value never changes.
    assert hexadecimal(batch_digest(7, np.arange(4), np.array([5, 6, 7, 8]))) == "4b54a95fbf7db0cd2dec7a9e56494a07"


def test_a_clean_run_over_sessions_of_other_host_counts(tmp_path: Path) -> None:
    order = make_order(1003, DATA)
    for hosts, first, end in ((8, 0, 40), (2, 30, 35), (2, 35, 60), (4, 20, 125), (1, 125, 130)):
        consume(tmp_path, order, hosts, first, end)
    audit = audit_run(tmp_path, order, checkpoint_step=130)
    assert audit.clean
    assert [(e.read_once, e.read_twice, e.missed) for e in audit.epochs] == [(1000, 0, 0), (40, 0, 0)]
    assert "5 sessions" in audit.notes[-1]


def test_rolled_back_steps_are_taken_back_also_from_hosts_that_left(tmp_path: Path) -> None:
    """C45's kind: run to 8, roll back to 4, run to 6: eight hosts' stale steps 5 to 8 count no more."""
    order = make_order(1003, DATA)
    consume(tmp_path, order, 8, 0, 8)
    consume(tmp_path, order, 2, 4, 6)
    audit = audit_run(tmp_path, order)
    assert audit.clean
    assert (audit.steps, audit.epochs[0].read_once) == (6, 48)


def test_double_sharding_is_found(tmp_path: Path) -> None:
    """Each of two hosts takes half of its own rows' windows twice: the fault of the case study in small."""
    order = make_order(1000, DATA)
    consume(tmp_path, order, 2, 0, 125, ids=lambda host, k, ids: ids[[0, 2, 0, 2]] if k >= 120 else ids)
    audit = audit_run(tmp_path, order)
    assert not audit.clean
    assert (audit.epochs[0].read_once, audit.epochs[0].missed) == (960, 40)
    assert {(f.first_step, f.hosts) for f in audit.faults} == {(k, (h,)) for k in range(121, 126) for h in (0, 1)}


def test_a_replayed_batch_is_named(tmp_path: Path) -> None:
    order = make_order(1000, DATA)

    def late(host: int, k: int, ids: np.ndarray) -> np.ndarray:
        return order.batch_ids(k - 1)[:4] if (host, k) == (0, 9) else ids

    consume(tmp_path, order, 2, 0, 20, ids=late)
    audit = audit_run(tmp_path, order)
    assert [(f.what, f.first_step, f.hosts) for f in audit.faults] == [
        ("not the planned windows but those of step 9", 10, (0,))
    ]


def test_a_missing_host_and_a_missing_step_are_named(tmp_path: Path) -> None:
    order = make_order(1000, DATA)
    consume(tmp_path, order, 4, 0, 30, skips={(2, 11), (2, 12), *((h, 20) for h in range(4))})
    audit = audit_run(tmp_path, order)
    assert (audit.epochs[0].read_once, audit.epochs[0].missed) == (30 * 8 - 2 * 2 - 8, 12)
    faults = [(f.what, f.first_step, f.last_step, f.hosts) for f in audit.faults]
    assert faults == [
        ("rows read by nobody: 4-5", 12, 13, (2,)),
        ("rows read by nobody: 0-7", 21, 21, (0, 1, 2, 3)),
    ]


def test_rows_read_by_two_hosts_are_named(tmp_path: Path) -> None:
    order = make_order(1000, DATA)
    consume(tmp_path, order, 2, 0, 10, rows=lambda host: np.arange(4 if host == 0 else 3, 4 if host == 5 else 8)[-5:])
    audit = audit_run(tmp_path, order)
    assert audit.epochs[0].read_twice == 10 * 4
    assert audit.faults[-1].what.startswith("rows read more than once: 4-7")
    assert audit.faults[-1].hosts == (0, 1)


def test_a_step_recorded_twice_in_one_session_is_read_twice(tmp_path: Path) -> None:
    order, ledger = make_order(1000, DATA), Ledger(tmp_path, 0, 1)
    ledger.begin(0)
    for k in (0, 1, 2, 2, 3):
        ledger.append(k, np.arange(8), order.batch_ids(k))
    ledger.flush()
    audit = audit_run(tmp_path, order)
    assert (audit.epochs[0].read_once, audit.epochs[0].read_twice) == (24, 8)
    assert [(f.first_step, f.last_step) for f in audit.faults] == [(3, 3)]


def test_records_behind_a_crash_are_told_and_bound_by_the_checkpoint(tmp_path: Path) -> None:
    order = make_order(1000, DATA)
    consume(tmp_path, order, 2, 0, 10, skips={(1, 8), (1, 9)})
    audit = audit_run(tmp_path, order, checkpoint_step=8)
    assert audit.clean
    assert audit.notes[0] == "steps 9 to 10 are recorded by some hosts only; resuming replays them"
    assert not audit_run(tmp_path, order, checkpoint_step=10).clean


@pytest.mark.parametrize("cut", [1, 16, 31, 32, 33])
def test_a_torn_record_is_left_out_and_the_next_session_goes_on(tmp_path: Path, cut: int) -> None:
    order = make_order(1000, DATA)
    consume(tmp_path, order, 1, 0, 10)
    path = tmp_path / "ledger/process-00000.ledger"
    path.write_bytes(path.read_bytes()[:-cut])
    audit = audit_run(tmp_path, order)
    kept = 10 - -(-cut // 32)
    assert (audit.steps, audit.clean) == (kept, True)
    consume(tmp_path, order, 1, 5, 12)
    assert path.stat().st_size % RECORD.itemsize == 0
    audit = audit_run(tmp_path, order)
    assert (audit.steps, audit.clean) == (12, True)


def test_a_damaged_record_is_found(tmp_path: Path) -> None:
    order = make_order(1000, DATA)
    consume(tmp_path, order, 1, 0, 10)
    path = tmp_path / "ledger/process-00000.ledger"
    content = bytearray(path.read_bytes())
    content[32 * 6 + 9] ^= 1
    path.write_bytes(content)
    assert read_records(path)[1] == 1
    audit = audit_run(tmp_path, order)
    assert [(f.what, f.first_step) for f in audit.faults] == [("rows read by nobody: 0-7", 5)]
    assert "1 torn or damaged" in audit.notes[0]


def test_the_digest_of_a_run_survives_restarts_and_rollbacks(tmp_path: Path) -> None:
    order = make_order(1003, DATA)
    straight = Ledger(tmp_path / "straight", 0, 1)
    straight.begin(0)
    broken = Ledger(tmp_path / "broken", 0, 1)
    for k in range(20):
        straight.append(k, np.arange(8), order.batch_ids(k))
    for first, end in ((0, 9), (5, 6), (6, 20)):
        broken = Ledger(tmp_path / "broken", 0, 1)
        broken.begin(first)
        for k in range(first, end):
            broken.append(k, np.arange(8), order.batch_ids(k))
        broken.flush()
    assert broken.digest.tolist() == straight.digest.tolist()
    assert [session.end_batch for session in sessions_of(tmp_path / "broken")] == [5, 6, None]


@pytest.mark.parametrize("seed", range(12))
def test_random_histories_read_every_window_once(tmp_path: Path, seed: int) -> None:
    """Random host counts, stops, crashes that lose what was not flushed, and rollbacks; counted by hand besides."""
    generator = np.random.default_rng(seed)
    windows, kind = int(generator.integers(24, 90)), ("olmo-core", "stateless", "sequential")[seed % 3]
    order = make_order(windows, make_data(batch=BATCH, kind=kind))
    consumed: list[np.ndarray] = []
    saved = 0
    for _ in range(int(generator.integers(2, 6))):
        hosts, first = int(generator.choice([1, 2, 4, 8])), int(generator.integers(0, saved + 1))
        saved = first + int(generator.integers(0, 9))
        lost = int(generator.integers(0, 4))
        consume(tmp_path, order, hosts, first, saved, lost=lost)
        consumed = consumed[:first] + [order.batch_ids(k) for k in range(first, saved)]
    audit = audit_run(tmp_path, order, checkpoint_step=saved)
    assert audit.clean
    assert audit.steps == saved
    per_epoch = order.steps_per_epoch
    for number, epoch in enumerate(audit.epochs):
        batches = consumed[number * per_epoch : (number + 1) * per_epoch]
        times = np.bincount(np.concatenate(batches), minlength=windows)
        assert (epoch.read_once, epoch.read_twice, epoch.unread) == ((times == 1).sum(), 0, (times == 0).sum())


def test_a_fork_carries_its_history_on(tmp_path: Path) -> None:
    """A copy of a run folder taken at step 9 goes another way than the run itself; both are proven."""
    order = make_order(1003, DATA)
    consume(tmp_path / "run", order, 4, 0, 9)
    shutil.copytree(tmp_path / "run", tmp_path / "fork")
    consume(tmp_path / "run", order, 4, 9, 20)
    consume(tmp_path / "fork", order, 2, 6, 140)
    for name, steps in (("run", 20), ("fork", 140)):
        audit = audit_run(tmp_path / name, order, steps)
        assert audit.clean
        assert audit.steps == steps


def test_hosts_64_16_32_mid_epoch(tmp_path: Path) -> None:
    """With stops at odd steps, two restarts in a row, and a stop exactly at an epoch's end."""
    order = make_order(64 * 20 + 7, make_data(batch=64))
    expected = [order.batch_ids(k) for k in range(47)]
    for hosts, first, end in ((64, 0, 7), (64, 5, 5), (64, 5, 9), (16, 9, 20), (32, 20, 33), (32, 27, 40), (1, 40, 47)):
        for host in range(hosts):
            ledger, rows = Ledger(tmp_path, host, hosts), host_rows(host, hosts, 64)
            ledger.begin(first)
            for k in range(first, end):
                assert set(order.batch_ids(k)[rows]) <= set(expected[k])
                ledger.append(k, rows, order.batch_ids(k)[rows])
            ledger.flush()
    audit = audit_run(tmp_path, order, checkpoint_step=47)
    assert audit.clean
    assert [(e.read_once, e.read_twice, e.missed) for e in audit.epochs] == [(1280, 0, 0), (1280, 0, 0), (448, 0, 0)]


def test_a_host_may_begin_its_session_before_the_first_one_did(tmp_path: Path) -> None:
    """After a rollback the hosts start together, and host 1 may read the ledger of host 0 before its new session."""
    order = make_order(1003, DATA)
    consume(tmp_path, order, 2, 0, 5)
    consume(tmp_path, order, 2, 5, 10)
    ledgers = [Ledger(tmp_path, host, 2) for host in (0, 1)]
    for ledger in reversed(ledgers):
        ledger.begin(5)
    planned = Ledger(tmp_path / "planned", 0, 1)
    for k in range(5):
        planned.append(k, np.arange(8), order.batch_ids(k))
    assert (ledgers[0].digest + ledgers[1].digest == planned.digest).all()


@pytest.mark.parametrize("content", [b"", b"\x00" * 320, b"noise" * 64, None])
def test_a_ledger_without_any_session_is_a_clear_error(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "ledger/process-00000.ledger"
    path.parent.mkdir()
    path.mkdir() if content is None else path.write_bytes(content)
    (path.parent / "process-notes.ledger").write_text("not ours")
    with pytest.raises(EctypeError, match="ledger"):
        audit_run(tmp_path, make_order(1000, DATA))


def test_no_ledger_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(EctypeError, match="no ledger of process 0"):
        audit_run(tmp_path, make_order(1000, DATA))


def test_a_ledger_of_another_run_is_refused(tmp_path: Path) -> None:
    order = make_order(1000, DATA)
    consume(tmp_path / "a", order, 2, 0, 5)
    consume(tmp_path / "b", order, 2, 3, 5)
    (tmp_path / "a/ledger/process-00001.ledger").write_bytes((tmp_path / "b/ledger/process-00001.ledger").read_bytes())
    with pytest.raises(EctypeError, match="one that process 0 has"):
        audit_run(tmp_path / "a", order)
