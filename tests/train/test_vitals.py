"""The health policy in the loop: what stops a run, what is only said, and what a run tells of itself meanwhile."""

import json
import time

import numpy as np
import pytest
from typer.testing import CliRunner

from ectype.cli.main import app
from ectype.errors import EXIT_UNHEALTHY, UnhealthyError
from ectype.recipe.load import load_placement, load_recipe
from ectype.recipe.placement import Health
from ectype.run.checkpoints import finished_steps
from ectype.run.goodput import read_goodput
from ectype.run.heartbeats import read_heartbeats, write_heartbeat
from ectype.run.metrics import last_rows
from ectype.run.status import run_status
from ectype.train.heartbeat import Pulse
from ectype.train.loop import train_run
from ectype.train.vitals import Vitals
from ectype.train.watchdog import Watchdog

STEPS = 12
SMALL = [
    "model.d_model=16", "model.n_heads=2", "model.n_kv_heads=1", "model.head_dim=8", "model.d_ffn=24",
    "model.n_layers=2", "model.window_pattern=[8, null]", "data.sequence_length_tokens=32",
    "data.order.max_target_length_tokens=32", "optimizer.skip_step=null", f"duration_steps={STEPS}",
    f"schedule.horizon_steps={STEPS}", "schedule.warmup_steps=3", "landmarks=[0, 4]", "inputs.weights=null",
    "inputs.padded_rows=null",
]  # fmt: skip
PLACEMENT = ["checkpoints.every_steps=1", "checkpoints.keep_last=20", "devices=2", "health.heartbeat_seconds=0.05"]


def train(run, *more, placement=(), **options):
    return train_run(
        load_recipe("toy-calm", [*SMALL, *more]), load_placement("cpu-one", [*PLACEMENT, *placement]), run, **options
    )


def row(step, **changes):
    return {
        "step": step, "loss": 2.0, "grad_norm": 1.0, "step_seconds": 1.0, "data_wait_seconds": 0.25,
        "save_stall_seconds": 0.0,
    } | changes  # fmt: skip


@pytest.fixture
def pulse(tmp_path):
    return Pulse(tmp_path, Watchdog(60, 0, 1), Health(), 0, 1)


@pytest.fixture
def vitals(pulse):
    """A function that gives the judge under a policy, over sixteen losses near 2, and a list of what it warns of."""

    def make(**policy):
        health, said = Health(spike_window_updates=16, **policy), []
        earlier = 2 + 0.01 * np.random.default_rng(0).standard_normal(16)
        return Vitals(health, pulse, earlier, said.append, None), said

    return make


def test_a_spike_is_said_once_or_stops_the_run(vitals):
    judge, said = vitals()
    for step, loss in enumerate((2.0, 5.0, 5.1, 2.0, 6.0), 1):
        judge.updated(row(step, loss=loss), 0.0)
    assert said == [
        f"loss {loss:.4f} at step {step} spikes: spikes begin at 2.{said[i][-4:]}"
        for i, (step, loss) in enumerate(((2, 5.0), (5, 6.0)))
    ]
    judge, said = vitals(on_spike="stop")
    with pytest.raises(UnhealthyError, match=r"loss 5\.0000 at step 1, spikes begin at 2\.") as caught:
        judge.updated(row(1, loss=5.0), 0.0)
    assert "health.on_spike=warn" in caught.value.mend


def test_updates_that_are_not_finite_stop_the_run_only_in_a_row(vitals):
    judge, said = vitals(nan_in_a_row=2)
    for step, loss in enumerate((np.nan, 2.0, np.inf, 2.0), 1):
        judge.updated(row(step, loss=loss), 0.0)
    assert [text.split(":")[0] for text in said] == ["update 1 was skipped", "update 3 was skipped"]
    judge.updated(row(5, grad_norm=np.nan), 0.0)
    with pytest.raises(UnhealthyError, match="2 updates in a row, up to step 6"):
        judge.updated(row(6, loss=np.nan), 0.0)
    judge, said = vitals(nan_in_a_row=2, on_nan="warn")
    for step in range(1, 9):
        judge.updated(row(step, loss=np.nan), 0.0)
    assert len(said) == 1


def test_own_time_leaves_out_updates_and_saves(tmp_path, pulse, vitals):
    """An update begins at 10 and computes for 0.75; the next begins at 12, after a save of 1 second."""
    judge, _ = vitals()
    judge.updated(row(1), 10.0)
    judge.updated(row(2, save_stall_seconds=1.0), 12.0)
    with pulse.beating():
        pass
    [beat] = read_heartbeats(tmp_path)
    assert (beat.own_seconds, beat.step, beat.updating_seconds) == (0.25, 2, 1.5)


def test_a_run_tells_of_itself_while_it_trains_and_when_it_hangs(tmp_path):
    run, seen = tmp_path / "run", {}

    def watch(row):
        if row["step"] in (3, 6):
            time.sleep(0.2 if row["step"] == 3 else 1.2)
            seen[row["step"]] = run_status(run)

    placement = ["health.stalled_least_seconds=0.8", "health.probe_every_steps=2", "checkpoints.every_steps=4"]
    train(run, watch=watch, until=8, placement=placement)
    assert (seen[3].state, seen[3].completed_updates, seen[3].saved_updates) == ("training", 3, 0)
    assert (seen[6].state, [f.kind for f in seen[6].findings]) == ("stalled", ["stalled"])
    assert "step 6" in seen[6].findings[0].text
    assert seen[6].processes[0].probe_seconds > 0
    after = run_status(run)
    assert (after.state, after.completed_updates, after.saved_updates) == ("stopped", 8, 8)
    assert train(run).step == STEPS
    assert run_status(run).state == "finished"


def test_weights_that_explode_end_with_65_and_their_state_is_not_saved(tmp_path):
    """A learning rate of 50: the loss leaps, and the checkpoint of that update is not there."""
    run = tmp_path / "run"
    words = ["train", "toy-calm", "--run", str(run), "--placement", "cpu-one"]
    words += [part for value in [*SMALL, "schedule.peak=50"] for part in ("--set", value)]
    policy = ["health.on_spike=stop", "health.spike_window_updates=8", "health.spike_least_nats=0.1"]
    # A first stretch that is calm.
    train(run, until=6)
    placement = [part for value in [*PLACEMENT, *policy] for part in ("--placement-set", value)]
    result = CliRunner().invoke(app, [*words, *placement, "--allow-change", "schedule"])
    assert result.exit_code == EXIT_UNHEALTHY, result.stderr
    assert "spikes begin at" in result.stderr
    spiked = last_rows(run, 1)[0]["step"]
    assert spiked > 6
    assert max(finished_steps(run)) == spiked - 1
    assert [session.ended for session in read_goodput(run)[1]] == ["done", "unhealthy"]
    shown = CliRunner().invoke(app, ["status", str(run), "--json"])
    found = json.loads(shown.stdout)
    assert (shown.exit_code, found["state"]) == (1, "unhealthy")
    assert f"at step {spiked}" in found["words"]
    assert [finding["kind"] for finding in found["findings"]] == ["spike"]


def test_a_heartbeat_that_can_not_be_written_ends_nothing(tmp_path):
    [beat] = _one_beat(tmp_path)
    (tmp_path / "file").write_text("")
    write_heartbeat(tmp_path / "file", beat)
    assert (tmp_path / "file").read_text() == ""


def _one_beat(folder):
    with Pulse(folder, Watchdog(60, 0, 1), Health(), 0, 1).beating():
        pass
    return read_heartbeats(folder)


def test_how_a_session_ended_is_told(tmp_path):
    for fault, ended, error in (
        (None, "done", None), (UnhealthyError("a", "b", "c"), "unhealthy", "a"), (ValueError("x"), "failed", "x"),
        (KeyboardInterrupt(), "failed", "KeyboardInterrupt()"),
    ):  # fmt: skip
        try:
            with Pulse(tmp_path, Watchdog(60, 0, 1), Health(), 0, 1).beating():
                if fault is not None:
                    raise fault
        except type(fault):
            pass
        [beat] = read_heartbeats(tmp_path)
        assert (beat.ended, None if beat.error is None else beat.error.splitlines()[0]) == (ended, error)


def test_the_last_rows_are_read_from_the_end(tmp_path):
    path = tmp_path / "metrics.jsonl"
    assert last_rows(tmp_path, 3) == []
    lines = [json.dumps({"step": step, "loss": 1 / step}) for step in range(1, 20_001)]
    path.write_text("\n".join(lines) + '\n{"step": 20001, "lo')
    assert path.stat().st_size > 2 << 18
    assert [found["step"] for found in last_rows(tmp_path, 3)] == [19_998, 19_999, 20_000]
    assert [found["step"] for found in last_rows(tmp_path, 30_000)] == list(range(1, 20_001))
    # Steps that were done again count as they were last.
    path.write_text('{"step": 1, "loss": 1}\n{"step": 2, "loss": 1}\n{"step": 2, "loss": 3}\n')
    assert last_rows(tmp_path, 5) == [{"step": 1, "loss": 1}, {"step": 2, "loss": 3}]
