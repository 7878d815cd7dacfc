"""Stops, restarts and kills: the same losses and parameters to the last bit, and every window once."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from ectype.data.audit_run import audit_run
from ectype.data.index import load_index
from ectype.data.order import make_order
from ectype.errors import EctypeError, Stopped
from ectype.recipe.load import load_placement, load_recipe, recipe_hash
from ectype.run.checkpoints import finished_steps
from ectype.train import loop
from ectype.train.loop import train_run
from ectype.weights.load import load_any_weights

STEPS = 10
SMALL = [
    "model.d_model=16", "model.n_heads=2", "model.n_kv_heads=1", "model.head_dim=8", "model.d_ffn=24",
    "model.n_layers=2", "model.window_pattern=[8, null]", "data.sequence_length_tokens=32",
    "data.order.max_target_length_tokens=32", "optimizer.skip_step.window_steps=8", f"duration_steps={STEPS}",
    f"schedule.horizon_steps={STEPS}", "schedule.warmup_steps=3", "landmarks=[0, 4]", "inputs.weights=null",
    "inputs.padded_rows=null",
]  # fmt: skip
PLACEMENT = ["checkpoints.every_steps=1", "checkpoints.keep_last=3", "devices=2"]


def recipe(*more):
    return load_recipe("toy-calm", [*SMALL, *more])


def train(run, *more, placement=(), **options):
    return train_run(recipe(*more), load_placement("cpu-one", [*PLACEMENT, *placement]), run, **options)


def rows(run):
    names = ("step", "loss", "z_loss", "grad_norm", "learning_rate", "skipped", "loss_tokens")
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [tuple(line[name] for name in names) for line in lines]


def final_bytes(run):
    from ectype.weights import tree

    params, _, _ = load_any_weights(run, step=STEPS)
    return {path: np.asarray(leaf).tobytes() for path, leaf in tree.flatten(params).items()}


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    run = tmp_path_factory.mktemp("straight") / "run"
    train(run)
    return run


def assert_same(run, straight):
    assert rows(run) == rows(straight)
    assert final_bytes(run) == final_bytes(straight)
    spec = recipe()
    index = load_index(spec.inputs.index, spec.data, spec.model.vocab_size)
    audit = audit_run(run, make_order(index.windows, spec.data), STEPS)
    assert audit.clean, audit
    assert audit.epochs[0].read_once == STEPS * spec.data.global_batch_windows


@pytest.mark.parametrize("stops", [[5], list(range(1, STEPS)), [3, 4, 9]])
def test_restarts_are_bit_equal(straight, tmp_path, stops):
    """C27: 10 steps straight, 5 + 5, and a restart at every step."""
    for stop in (*stops, STEPS):
        assert train(tmp_path / "run", until=stop).step == stop
    assert_same(tmp_path / "run", straight)


def test_unfinished_and_foreign_folders_are_not_resumed_from(straight, tmp_path):
    """C27: an incomplete folder 7 and an unrelated folder 999 change nothing."""
    run = tmp_path / "run"
    train(run, until=5)
    for name in ("7", "00000007", "999", "00000999", "00000006.orbax-checkpoint-tmp-1"):
        (run / "checkpoints" / name / "weights").mkdir(parents=True)
    warnings = []
    train(run, warn=warnings.append)
    assert_same(run, straight)
    assert any("00000007" in text for text in warnings)
    assert (run / "checkpoints/00000007/weights").is_dir()


def test_a_renamed_checkpoint_is_refused(tmp_path):
    """C27: the position is the one stored in the checkpoint, and a name that disagrees is an error."""
    run = tmp_path / "run"
    train(run, until=3)
    (run / "checkpoints/00000003").rename(run / "checkpoints/00000008")
    with pytest.raises(EctypeError, match="holds step 3"):
        train(run)


def test_retention_keeps_landmarks_and_the_last(straight):
    assert finished_steps(straight) == [0, 4, 8, 9, 10]


def test_retention_keeps_permanent_checkpoints(tmp_path):
    train(tmp_path / "run", placement=["checkpoints.permanent_every_steps=3", "checkpoints.keep_last=1"])
    assert finished_steps(tmp_path / "run") == [0, 3, 4, 6, 9, 10]


def test_a_trace_and_step_times_without_compilation(tmp_path):
    from ectype.run.goodput import read_goodput
    from ectype.train.profile import ProfiledSteps

    run, warm = tmp_path / "run", []
    train(run, "model.d_ffn=40", until=6, profile=ProfiledSteps(2, 3), watch=warm.append)
    assert list((run / "profile").rglob("*.xplane.pb"))
    whole, (session,) = read_goodput(run)
    assert session.ended == "done"
    # The first update takes what the others take: its compilation stands elsewhere.
    assert warm[0]["step_seconds"] < 0.5 * whole.compile_seconds
    assert sum(row["step_seconds"] for row in warm) == pytest.approx(
        whole.productive_seconds + whole.data_wait_seconds, rel=1e-6
    )
    assert warm[0]["device_memory_peak_bytes"] is None
    assert warm[0]["process_memory_peak_bytes"] > 50e6
    with pytest.raises(EctypeError, match="steps within 7-10"):
        train(run, "model.d_ffn=40", profile=ProfiledSteps(5, 6))


def test_a_run_whose_only_checkpoints_are_torn_is_never_begun_anew(tmp_path):
    import shutil

    run = tmp_path / "run"
    train(run, "landmarks=[]", until=2, placement=["checkpoints.keep_last=1"])
    shutil.rmtree(run / "checkpoints/00000002/ectype")
    with pytest.raises(EctypeError, match="none of its checkpoints can be read: 00000002"):
        train(run, "landmarks=[]")
    assert (run / "checkpoints/00000002/weights").is_dir()


def test_skip_history_survives_a_restart(tmp_path):
    """C38: the history is full right after a restart, so the guard is never off."""
    run = tmp_path / "run"
    train(run, until=6)
    from ectype.train.checkpoint import restore
    from ectype.train.sharding import make_mesh

    state, meta = restore(run, 6, recipe(), make_mesh(load_placement("cpu-one", ["devices=2"])))
    assert int(state.optimizer.history.count) == 6
    losses = [row[1] for row in rows(run)]
    assert np.asarray(state.optimizer.history.losses)[:6].tolist() == losses
    assert meta["step"] == 6


def test_another_recipe_is_refused_field_by_field_unless_named(tmp_path):
    run = tmp_path / "run"
    train(run, until=2)
    with pytest.raises(EctypeError, match=r"schedule\.peak: stored 0\.0006, asked 0\.001") as caught:
        train(run, "schedule.peak=1e-3", "optimizer.beta2=0.99")
    assert "optimizer.beta2: stored 0.95, asked 0.99" in str(caught.value)
    assert train(run, "schedule.peak=1e-3", until=3, allowed=["schedule.peak"]).step == 3


def test_other_data_is_refused(tmp_path):
    run = tmp_path / "run"
    train(run, until=2)
    manifest = tmp_path / "m.txt"
    package = Path(sys.modules["ectype"].__file__).parent / "demo/bundle/tokens"
    manifest.write_text(f"kjv,{package}/kjv/part-0.npy\n")
    with pytest.raises(EctypeError, match="index fingerprint"):
        train(run, f"inputs.index={manifest}")


def test_partial_restore_is_refused(tmp_path):
    """C44: three layers into four, and bfloat16 moments into float32."""
    run = tmp_path / "run"
    train(run, until=2)
    before = [(run / name).read_bytes() for name in ("recipe.yaml", "run.json", "metrics.jsonl")]
    with pytest.raises(EctypeError, match="n_layers is 2, not 4"):
        train(run, "model.n_layers=4", allowed=["*"])
    with pytest.raises(EctypeError, match=r"first_moment\.\S+ has dtype float32, not bfloat16"):
        train(run, "numerics.moments=bfloat16", allowed=["*"])
    # A change that came to nothing leaves the run what it was: it goes on under its own recipe.
    assert [(run / name).read_bytes() for name in ("recipe.yaml", "run.json", "metrics.jsonl")] == before
    assert train(run, until=3).step == 3


@pytest.mark.parametrize(("name", "said"), [("schedule.peek", "schedule.peak"), ("modle", "model"), ("", "field ''")])
def test_a_change_of_a_field_that_does_not_exist_is_refused(tmp_path, name, said):
    with pytest.raises(EctypeError, match=said):
        train(tmp_path / "run", until=2, allowed=[name])
    assert not (tmp_path / "run" / "run.json").exists()


def test_other_step_0_weights_are_refused_once_they_are_no_longer_read(tmp_path):
    """The run would go on from its checkpoint, and its record would name weights that it never saw."""
    run = tmp_path / "run"
    train(run, until=2)
    with pytest.raises(EctypeError, match=r"inputs\.weights: stored None, asked 'elsewhere/step0'") as caught:
        train(run, "inputs.weights=elsewhere/step0", until=3)
    assert "another recipe" not in str(caught.value)
    assert f"`ectype train {run}/recipe.yaml --run {run}` resumes" in str(caught.value)
    assert train(run, "inputs.weights=elsewhere/step0", until=3, allowed=["inputs"]).step == 3
    assert "weights: elsewhere/step0" in (run / "recipe.yaml").read_text()


def test_a_named_change_is_recorded_with_the_recipes_before_it(tmp_path):
    run = tmp_path / "run"
    train(run, until=2)
    train(run, "schedule.peak=1e-3", until=3, allowed=["schedule"], placement=["loader.prefetch_batches=3"])
    stored = json.loads((run / "run.json").read_text())
    assert stored["recipe_hash"] == recipe_hash(recipe("schedule.peak=1e-3"))
    assert stored["earlier_recipe_hashes"] == [recipe_hash(recipe())]
    assert stored["placement"]["loader"]["prefetch_batches"] == 3
    assert [session["from_step"] for session in stored["sessions"]] == [0, 2]
    assert load_recipe(str(run / "recipe.yaml")).schedule.peak == 1e-3


def test_missing_moments_are_listed(tmp_path):
    """C44: a file that lacks the second moment."""
    import shutil

    run = tmp_path / "run"
    train(run, until=2)
    shutil.rmtree(run / "checkpoints/00000002/optimizer")
    with pytest.raises(EctypeError, match="optimizer"):
        train(run)


def test_a_run_folder_takes_one_trainer(tmp_path):
    from ectype.train.run_folder import locked

    with locked(tmp_path / "run"), pytest.raises(EctypeError, match="another process"):
        train(tmp_path / "run")


def test_files_that_are_no_run_are_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("precious")
    with pytest.raises(EctypeError, match=r"no run\.json"):
        train(tmp_path)
    assert (tmp_path / "thesis.tex").read_text() == "precious"


def test_sigterm_saves_and_resumes(straight, tmp_path):
    run = tmp_path / "run"
    # The request travels with the next update, so that all processes stop at the same one.
    with pytest.raises(Stopped, match="step 5"):
        train(run, watch=lambda row: row["step"] == 4 and os.kill(os.getpid(), signal.SIGTERM))
    train(run)
    assert_same(run, straight)


def test_batches_reach_the_devices_ahead_of_their_step(tmp_path, monkeypatch):
    """The loader's thread places a batch while the step before it runs."""
    placed = []

    def recorded(batch, **options):
        placed.append((batch.batch_number, threading.current_thread().name))
        return on_devices(batch, **options)

    def next_is_placed(row):
        deadline = time.monotonic() + 20
        while len(placed) <= row["step"] < STEPS and time.monotonic() < deadline:
            time.sleep(0.01)
        assert len(placed) > row["step"] or row["step"] == STEPS

    on_devices = loop.on_devices
    monkeypatch.setattr(loop, "on_devices", recorded)
    train(tmp_path / "run", watch=next_is_placed)
    assert placed == [(k, "ectype-loader") for k in range(STEPS)]


def test_a_batch_that_devices_cannot_share_names_workable_counts(tmp_path):
    with pytest.raises(EctypeError, match="nearest workable counts of devices: 1, 2, 4"):
        train(tmp_path / "run", placement=["devices=3"])


def _start(run):
    command = [sys.executable, "-m", "ectype.cli", "train", "toy-calm", "--run", str(run), "--placement", "cpu-one"]
    command += [part for value in SMALL for part in ("--set", value)]
    command += [part for value in PLACEMENT for part in ("--placement-set", value)]
    flags = {"JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}
    return subprocess.Popen(command, env=os.environ | flags, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def test_kill_in_the_middle_of_a_save(straight, tmp_path):
    """kill -9 while an unfinished checkpoint folder exists; then bit-equal to the undisturbed run."""
    run = tmp_path / "run"
    process = _start(run)
    deadline = time.monotonic() + 240
    while process.poll() is None and time.monotonic() < deadline:
        if list((run / "checkpoints").glob("*tmp*")) and finished_steps(run):
            process.kill()
        time.sleep(0.002)
    assert process.wait() == -9, process.stderr.read().decode()
    process = _start(run)
    _, errors = process.communicate(timeout=240)
    assert process.returncode == 0, errors.decode()
    assert_same(run, straight)


@pytest.mark.parametrize("damage", ["weights", "optimizer"])
def test_a_damaged_checkpoint_is_named_and_an_older_one_taken(straight, tmp_path, damage):
    """The newest complete checkpoint that can be read wins; nothing is deleted."""
    run, warnings = tmp_path / "run", []
    train(run, until=6)
    for path in (run / "checkpoints/00000006" / damage).rglob("d/*"):
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    train(run, warn=warnings.append)
    assert any("00000006" in text for text in warnings)
    assert rows(run) == rows(straight)


def test_never_back_to_step_zero_when_no_checkpoint_can_be_read(tmp_path):
    run = tmp_path / "run"
    train(run, until=2)
    for path in (run / "checkpoints").rglob("d/*"):
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(EctypeError, match="none of its checkpoints can be read"):
        train(run)


def test_rolling_back_archives_later_steps(straight, tmp_path):
    """C45: run to 8, back to 4, on to 6; a restart uses the new branch, and the ledger counts each window once."""
    run = tmp_path / "run"
    keep_all = ["checkpoints.keep_last=20"]
    train(run, until=8, placement=keep_all)
    train(run, "schedule.peak=1e-3", until=6, from_step=4, allowed=["schedule.peak"], placement=keep_all)
    assert finished_steps(run) == [0, 1, 2, 3, 4, 5, 6]
    assert sorted(p.name for p in (run / "checkpoints/rolled-back-1").iterdir()) == [f"{s:08d}" for s in (5, 6, 7, 8)]
    branch = rows(run)
    assert branch[:4] == rows(straight)[:4]
    assert branch[5] != rows(straight)[5]
    train(run, "schedule.peak=1e-3", until=7, placement=keep_all)
    assert rows(run)[:6] == branch
    with pytest.raises(EctypeError, match="no checkpoint of step 9"):
        train(run, "schedule.peak=1e-3", from_step=9)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ((8, 2), (4, 4)),
        ((2, 2), (1, 1)),
        pytest.param((8, 1), (1, 1), marks=pytest.mark.long),
        pytest.param((4, 1), (8, 8), marks=pytest.mark.long),
    ],
)
def test_restore_on_another_mesh_is_bit_equal(tmp_path, before, after):
    """C43: parameters, moments and counters, whatever mesh wrote them; the target decides the layout."""
    import jax

    from ectype.train.checkpoint import restore
    from ectype.train.sharding import make_mesh

    meshes = [make_mesh(load_placement("cpu-one", [f"devices={n}", f"mesh.fsdp={f}"])) for n, f in (before, after)]
    train(tmp_path / "run", until=2, placement=[f"devices={before[0]}", f"mesh.fsdp={before[1]}"])
    states = [restore(tmp_path / "run", 2, recipe(), mesh)[0] for mesh in meshes]
    for left, right in zip(*map(jax.tree.leaves, states), strict=True):
        assert np.array_equal(np.asarray(left), np.asarray(right))
        assert left.dtype == right.dtype
    assert {leaf.sharding.mesh.size for leaf in jax.tree.leaves(states[1])} == {after[0]}
    resumed = train(tmp_path / "run", until=3, placement=[f"devices={after[0]}", f"mesh.fsdp={after[1]}"])
    assert resumed.step == 3


def test_a_ledger_that_does_not_belong_is_refused(tmp_path):
    run = tmp_path / "run"
    train(run, until=3)
    ledger = run / "ledger/process-00000.ledger"
    ledger.write_bytes(ledger.read_bytes()[:-32])
    with pytest.raises(EctypeError, match="the ledger sums to"):
        train(run)


def test_the_mix_may_change_where_a_new_phase_begins(tmp_path):
    """An index that continues the run's is admitted at its step, and no window of the first mix comes again."""
    from ectype.data.index import write_index
    from ectype.data.mixture import Mixture, Source, change_mix_of_run

    spec, run = recipe(), tmp_path / "run"
    first = load_index(spec.inputs.index, spec.data, spec.model.vocab_size)
    mixture = Mixture(requested_tokens=16384, sources=(Source(name="kjv", target_ratio=1.0, labels=("kjv",)),))
    second = change_mix_of_run(first, spec.data, first, mixture, 4)
    write_index(second, tmp_path / "second.json")
    train(run, until=3)
    with pytest.raises(EctypeError, match="index fingerprint"):
        train(run, f"inputs.index={tmp_path}/second.json")
    train(run, until=4)
    assert train(run, f"inputs.index={tmp_path}/second.json").step == STEPS
    audit = audit_run(run, make_order(second.order_phases, spec.data), STEPS)
    assert audit.clean, audit
    with pytest.raises(EctypeError, match="index fingerprint"):
        train(run)
