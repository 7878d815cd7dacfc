"""Orders: bit-exact, random access, stored atomically, a permutation in every epoch."""

import hashlib
import json
import multiprocessing
import pickle
from pathlib import Path

import numpy as np
import pytest
from data_makers import make_data

from ectype.data import orderfile
from ectype.data.order import check_numpy_shuffle, make_order
from ectype.data.orderfile import default_cache_dir
from ectype.data.permutation import permute
from ectype.data.tokenindex import Phase
from ectype.errors import EctypeError


def test_reference_orders_are_reproduced(tiny: Path) -> None:
    """Every entry: sizes, seeds, epochs 1 to 3, chunks 1, 2 and 4, and ranks of 1, 2, 4 and 8."""
    entries = json.loads((tiny / "components/data_order.json").read_text())
    for entry in entries:
        data = make_data(entry["seq"], entry["batch_instances"], seed=entry["seed"], target=entry["max_target"])
        order = make_order(entry["dataset_len"], data)
        epoch, steps = entry["epoch"], order.steps_per_epoch
        assert steps == entry["total_batches"]
        ids = order.epoch_ids(0, epoch, 0, entry["dataset_len"] // order.chunk * order.chunk)
        assert hashlib.sha256(ids.astype("<u4").tobytes()).hexdigest() == entry["global_sha256_u32"]
        batches = np.stack([order.batch_ids((epoch - 1) * steps + k) for k in range(steps)])
        local = np.ascontiguousarray(batches[:, entry["dp_rank"] :: entry["dp_world_size"]])
        assert hashlib.sha256(local.astype("<u4").tobytes()).hexdigest() == entry["local_sha256_u32"]
    assert {entry["dp_world_size"] for entry in entries} == {1, 2, 4, 8}


@pytest.mark.parametrize("kind", ["olmo-core", "stateless", "sequential"])
@pytest.mark.parametrize("target", [None, 64])
def test_every_epoch_reads_every_window_once(kind: str, target: int | None) -> None:
    order = make_order(1000, make_data(16, 8, kind=kind, target=target))
    first, second = (np.concatenate([order.batch_ids(e * 125 + k) for k in range(125)]) for e in (0, 1))
    assert sorted(first.tolist()) == sorted(second.tolist()) == list(range(1000))
    assert (first == second).all() == (kind == "sequential")
    if target:
        assert (first.reshape(-1, 4) - first[::4, None] == np.arange(4)).all()


def test_chunks_are_cut_at_any_position() -> None:
    order = make_order(1000, make_data(16, 8, target=48))
    whole = order.epoch_ids(0, 1, 0, 999)
    for start, stop in ((0, 1), (1, 2), (2, 7), (500, 999), (998, 999)):
        assert (order.epoch_ids(0, 1, start, stop) == whole[start:stop]).all()


@pytest.mark.parametrize("size", [1, 2, 3, 10, 255, 256, 257, 65_536, 100_003])
def test_keyed_permutation_is_a_bijection_with_random_access(size: int) -> None:
    ids = permute(np.arange(size), size, "key")
    assert sorted(ids.tolist()) == list(range(size))
    some = np.random.default_rng(0).integers(0, size, 50)
    assert (permute(some, size, "key") == ids[some]).all()
    if size > 100:
        assert (permute(np.arange(size), size, "other") != ids).mean() > 0.9


def test_keyed_permutation_stays_as_it_is() -> None:
    """Runs that began with it must be able to resume: these values never change."""
    ids = permute(np.arange(5), 724_000_000, "34521/0/1/724000000")
    assert ids.tolist() == [3961227, 415406754, 445791076, 279978436, 641298976]


def test_keyed_permutation_mixes_as_a_shuffle_does() -> None:
    """Neighbours land apart, and every tenth of the positions draws evenly from every tenth of the ids (chi-square)."""
    size = 724_000_000
    ids = permute(np.arange(200_000), size, "key").astype(np.int64)
    table = np.histogram2d(np.arange(len(ids)), ids, bins=10, range=[[0, len(ids)], [0, size]])[0]
    expected = len(ids) / 100
    assert ((table - expected) ** 2 / expected).sum() < 160  # 99 degrees of freedom: p below 1e-4
    steps = np.abs(np.diff(ids)) / size
    assert abs(steps.mean() - 1 / 3) < 0.003
    assert len(set(ids.tolist())) == len(ids)


def test_phases_draw_from_their_own_ids() -> None:
    order = make_order((Phase(0, 0, 40), Phase(3, 40, 24)), make_data(batch=8))
    assert np.concatenate([order.batch_ids(k) for k in range(3)]).max() < 40
    later = np.concatenate([order.batch_ids(k) for k in range(3, 6)])
    assert sorted(later.tolist()) == list(range(40, 64))
    assert order.place(6) == (1, 2, 0)


def test_the_cache_folder_is_the_users_or_a_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert default_cache_dir() == tmp_path / ".cache/ectype/orders"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "x"))
    assert default_cache_dir() == tmp_path / "x/ectype/orders"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", classmethod(lambda _: (_ for _ in ()).throw(RuntimeError("no home"))))
    with pytest.raises(EctypeError, match="no folder for orders"):
        default_cache_dir()


def test_numpy_still_shuffles_as_it_did() -> None:
    check_numpy_shuffle()


def test_stored_order_equals_the_one_in_memory_and_travels_as_a_path(tmp_path: Path) -> None:
    data = make_data(batch=8)
    stored, memory = make_order(1000, data, tmp_path), make_order(1000, data)
    assert all((stored.batch_ids(k) == memory.batch_ids(k)).all() for k in (0, 124, 125))
    names = sorted(path.name for path in tmp_path.glob("*.u32"))
    assert names == ["order-1000-pcg64-8-v1.u32", "order-1000-pcg64-9-v1.u32"]
    assert len(pickle.dumps(stored)) < 1000
    again = pickle.loads(pickle.dumps(stored))
    assert (again.batch_ids(3) == memory.batch_ids(3)).all()
    assert isinstance(orderfile.open_or_build(tmp_path / names[0], 1000, lambda: pytest.fail("built")), np.memmap)


def test_a_crash_while_building_leaves_no_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full_disk(_: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(orderfile.os, "fsync", full_disk)
        with pytest.raises(EctypeError, match="No space left"):
            make_order(1000, make_data(batch=8), tmp_path).batch_ids(0)
    assert not list(tmp_path.glob("*.u32*"))
    make_order(1000, make_data(batch=8), tmp_path).batch_ids(0)


def test_a_stored_order_of_another_size_is_refused(tmp_path: Path) -> None:
    order = make_order(1000, make_data(batch=8), tmp_path)
    order.batch_ids(0)
    path = next(tmp_path.glob("*.u32"))
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(EctypeError, match="3996 bytes"):
        make_order(1000, make_data(batch=8), tmp_path).batch_ids(0)


def _build(folder: str, results: "multiprocessing.Queue[tuple[int, bytes]]") -> None:
    built = []

    def build() -> np.ndarray:
        built.append(1)
        return np.arange(100_000, dtype=np.uint32)

    ids = orderfile.open_or_build(Path(folder) / "order.u32", 100_000, build)
    results.put((len(built), hashlib.sha256(ids.tobytes()).digest()))


def test_processes_of_one_host_build_an_order_once(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    results: multiprocessing.Queue[tuple[int, bytes]] = context.Queue()
    workers = [context.Process(target=_build, args=(str(tmp_path), results)) for _ in range(4)]
    for worker in workers:
        worker.start()
    found = [results.get(timeout=60) for _ in workers]
    for worker in workers:
        worker.join()
    assert sum(built for built, _ in found) == 1
    assert len({digest for _, digest in found}) == 1
