"""Real processes over loopback: the same run as one process, and a common end when one of them fails."""

import json
import os
import signal
import socket
import subprocess
import sys
import time

import pytest

from ectype.data.audit_run import audit_run
from ectype.data.index import load_index
from ectype.data.order import make_order
from ectype.recipe.load import load_recipe
from ectype.run.checkpoints import finished_steps
from ectype.run.status import run_status

STEPS = 30
SETTINGS = [
    "model.d_model=16", "model.n_heads=2", "model.n_kv_heads=1", "model.head_dim=8", "model.d_ffn=24",
    "model.n_layers=2", "model.window_pattern=[8, null]", "data.sequence_length_tokens=32",
    "data.order.max_target_length_tokens=32", f"duration_steps={STEPS}", f"schedule.horizon_steps={STEPS}",
    "landmarks=[0]", "inputs.weights=null", "inputs.padded_rows=null",
]  # fmt: skip


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def start(run, processes=1, placement=(), more=((), ())):
    port, started = free_port(), []
    for number in range(processes):
        command = [sys.executable, "-m", "ectype.cli", "train", "toy-calm", "--run", str(run), "--placement", "cpu-one"]
        command += [part for value in SETTINGS for part in ("--set", value)]
        for value in ("mesh.data=-1", "checkpoints.every_steps=5", *placement):
            command += ["--placement-set", value]
        command += more[number] if number < len(more) else ()
        if processes > 1:
            command += ["--coordinator", f"127.0.0.1:{port}", "--processes", str(processes), "--process", str(number)]
        flags = {"JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}
        started.append(
            subprocess.Popen(command, env=os.environ | flags, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        )
    return started


def finish(processes, seconds=300):
    deadline = time.monotonic() + seconds
    outputs = [process.communicate(timeout=max(1, deadline - time.monotonic()))[1].decode() for process in processes]
    return [process.returncode for process in processes], "\n".join(outputs)


def rows(run):
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def assert_follows(run, one):
    for ours, theirs in zip(rows(run), rows(one), strict=True):
        assert ours["loss"] == pytest.approx(theirs["loss"], rel=1e-5)
        assert ours["grad_norm"] == pytest.approx(theirs["grad_norm"], rel=1e-4)
    spec = load_recipe("toy-calm", SETTINGS)
    index = load_index(spec.inputs.index, spec.data, spec.model.vocab_size)
    audit = audit_run(run, make_order(index.windows, spec.data), STEPS)
    assert audit.clean, audit
    assert audit.epochs[0].read_once == STEPS * spec.data.global_batch_windows


@pytest.fixture(scope="module")
def one(tmp_path_factory):
    run = tmp_path_factory.mktemp("one") / "run"
    codes, errors = finish(start(run))
    assert codes == [0], errors
    return run


@pytest.mark.slow
@pytest.mark.parametrize(
    ("count", "placement"),
    [
        (2, ["mesh.tensor=2"]),
        pytest.param(2, ["mesh.context=2"], marks=pytest.mark.long),
        pytest.param(4, ["mesh.fsdp=2"], marks=pytest.mark.long),
    ],
)
def test_processes_equal_one(one, tmp_path, count, placement):
    codes, errors = finish(start(tmp_path / "run", count, placement))
    assert codes == [0] * count, errors
    assert_follows(tmp_path / "run", one)


def test_killing_one_ends_all_and_a_restart_continues(one, tmp_path):
    """kill -9 of the last process: the others end within the heartbeat limit, and one process alone goes on."""
    run = tmp_path / "run"
    started = start(run, 2)
    while len(finished_steps(run)) < 2:
        assert started[0].poll() is None, finish(started)[1]
        time.sleep(0.02)
    started[1].kill()
    killed = time.monotonic()
    codes, _ = finish(started, 150)
    assert time.monotonic() - killed < 120
    assert all(code != 0 for code in codes)
    silent = [found.process for found in run_status(run, time.time() + 1000).findings if found.kind == "lost"]
    assert 1 in silent  # Process 0 may have had the time to say that it failed.
    codes, errors = finish(start(run))
    assert run_status(run).state == "finished"
    assert codes == [0], errors
    assert_follows(run, one)


def test_asking_one_to_stop_stops_all_at_one_step(one, tmp_path):
    run = tmp_path / "run"
    started = start(run, 2)
    while len(finished_steps(run)) < 2:
        assert started[0].poll() is None, finish(started)[1]
        time.sleep(0.02)
    started[1].send_signal(signal.SIGTERM)
    codes, errors = finish(started)
    assert codes in ([75, 75], [0, 0]), errors
    codes, errors = finish(start(run, 2))
    assert codes == [0, 0], errors
    assert_follows(run, one)


END_ALONE = """
import os, signal, sys
import ectype.stopping
import ectype.train.loop as loop
from ectype.errors import EctypeError

ectype.stopping.FAREWELL_SECONDS = 2.0

_prepare = loop.prepare_devices

def prepare(placement):
    match sys.argv[-1]:
        case "1": os.kill(os.getpid(), signal.SIGTERM)
        case "2": raise EctypeError("a disk too few", "one", "add it")
        case "3": raise ValueError("out of the blue")
    _prepare(placement)

loop.prepare_devices = prepare
"""


def test_one_that_ends_alone_does_not_wait_for_those_who_wait_for_it(tmp_path, monkeypatch):
    """Process 0 asks the others for their devices. JAX would keep them at their exits, for five minutes, until it
    exits too.
    """
    (tmp_path / "sitecustomize.py").write_text(END_ALONE)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}")
    first, *alone = start(tmp_path / "run", 4)
    deadline = time.monotonic() + 90
    errors = [process.communicate(timeout=max(1, deadline - time.monotonic()))[1].decode() for process in alone]
    first.kill()
    first.communicate()
    assert [process.returncode for process in alone] == [75, 2, 1], errors
    for said, words in zip(errors, ("stopped: ", "a disk too few", "ValueError: out of the blue"), strict=True):
        assert words in said


@pytest.mark.parametrize("fault", ["cut", "replaced"])
def test_files_that_differ_on_one_host_are_refused_by_name_on_all(tmp_path, fault):
    """Each host looks at its own copy; before step 0 both end with exit 2, and no run folder is made."""
    import numpy as np

    tokens = np.random.default_rng(0).integers(2, 999, 40_000).astype("<u2")
    for host in (0, 1):
        for name in ("a", "b"):
            (tmp_path / f"host{host}").mkdir(exist_ok=True)
            tokens.tofile(tmp_path / f"host{host}/{name}.npy")
    (tmp_path / "mix.txt").write_text("web,gs://mix/a.npy\nweb,gs://mix/b.npy\n")
    changed = tmp_path / "host1/b.npy"
    changed.write_bytes(changed.read_bytes()[:-3] if fault == "cut" else tokens[::-1].tobytes())
    more = [("--index", str(tmp_path / "mix.txt"), "--remap", f"gs://mix={tmp_path}/host{host}") for host in (0, 1)]
    codes, errors = finish(start(tmp_path / "run", 2, more=more))
    assert codes == [2, 2], errors
    assert f"{tmp_path}/host1/b.npy" in errors
    said = "process 1 refused its index" if fault == "cut" else f"other data than process 0: {tmp_path}/host0/b.npy"
    assert said in errors
    assert not (tmp_path / "run").exists()


SAVE_ON_TWO = """
import sys
from pathlib import Path

import jax
import numpy as np
from jax.experimental.multihost_utils import process_allgather

from ectype.model.parameters import init_parameters
from ectype.recipe.load import load_placement, load_recipe
from ectype.train import distributed
from ectype.train.checkpoint import Saver
from ectype.train.sharding import make_mesh
from ectype.train.state import fresh_state
from ectype.train.step import DeviceBatch, build_train_step

address, process, folder, settings = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]), sys.argv[4:]
distributed.join(address, 2, process)
recipe, placement = load_recipe("toy-calm", settings), load_placement("cpu-one", ["mesh.tensor=2"])
mesh = make_mesh(placement)
state = fresh_state(init_parameters(recipe.model, 0), recipe, mesh)
tokens = np.arange(64, dtype=np.int32).reshape(2, 32)
batch = DeviceBatch(tokens, np.ones(2, bool), np.zeros(2, bool))
state, _ = jax.jit(build_train_step(recipe, placement, mesh))(state, batch, np.float32(1e-3))
with Saver(folder, recipe, placement.checkpoints) as saver:
    saver.save(state, 1, {})
whole = process_allgather(state, tiled=True)
np.savez(folder / f"{process}.npz", *jax.tree.leaves(whole))
"""


def test_two_processes_to_one_is_bit_equal(tmp_path):
    """C43: what two processes hold in halves, one process restores whole: parameters, moments and counters."""
    import jax
    import numpy as np

    from ectype.recipe.load import load_placement
    from ectype.train.checkpoint import restore
    from ectype.train.sharding import make_mesh

    port = free_port()
    (tmp_path / "checkpoints").mkdir()
    command = [sys.executable, "-c", SAVE_ON_TWO, f"127.0.0.1:{port}"]
    flags = {"JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}
    started = [
        subprocess.Popen([*command, str(process), str(tmp_path), *SETTINGS], env=os.environ | flags, stderr=-1)
        for process in (0, 1)
    ]
    codes, errors = finish(started)
    assert codes == [0, 0], errors
    state, _ = restore(tmp_path, 1, load_recipe("toy-calm", SETTINGS), make_mesh(load_placement("cpu-one")))
    for process in (0, 1):
        held = np.load(tmp_path / f"{process}.npz")
        leaves = jax.tree.leaves(state)
        assert len(held.files) == len(leaves)
        for name, leaf in zip(held.files, leaves, strict=True):
            assert np.array_equal(held[name], np.asarray(leaf))
            assert held[name].dtype == leaf.dtype
