"""`ectype train --from`: flags become the recipe's hand-over, which is shown before the first update."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from ectype.cli.main import app
from ectype.run.manifest import load_run_recipe, read_manifest

SMALL = [
    "model.d_model=16", "model.n_heads=2", "model.n_kv_heads=1", "model.head_dim=8", "model.d_ffn=24",
    "model.n_layers=2", "model.window_pattern=[8, null]", "data.sequence_length_tokens=32",
    "data.order.max_target_length_tokens=32", "duration_steps=2", "schedule.horizon_steps=2", "landmarks=[]",
]  # fmt: skip


def _train(run: Path, *words: str) -> Result:
    settings = [part for value in SMALL for part in ("--set", value)]
    command = ["train", "toy-calm", "--run", str(run), "--placement", "cpu-one", "--json", *settings, *words]
    return CliRunner().invoke(app, command)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("source") / "run"
    none = ("--set", "inputs.weights=null", "--set", "inputs.padded_rows=null")
    assert _train(run, *none).exit_code == 0
    return run


def test_a_recipe_without_a_hand_over_gets_the_default_one(source: Path, tmp_path: Path) -> None:
    result = _train(tmp_path / "run", "--from", str(source))
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["step"] == 2
    for words in ("hand-over", "moments", "bit for bit", "skip history", "empty", "the next batch is 0"):
        assert words in result.stderr
    spec, record = load_run_recipe(tmp_path / "run"), read_manifest(tmp_path / "run").hand_over
    assert spec.hand_over is not None
    assert record is not None
    assert record.switches == spec.hand_over
    assert (spec.inputs.weights, spec.inputs.source) == (None, str(source))
    again = _train(tmp_path / "run", "--from", str(source))
    assert (again.exit_code, "hand-over" in again.stderr) == (0, False)


def test_flags_keep_and_reset(source: Path, tmp_path: Path) -> None:
    flags = ("--reset", "moments", "--reset", "adam-count", "--keep", "schedule", "--keep", "skip_history")
    result = _train(tmp_path / "run", "--from", str(source), *flags)
    assert result.exit_code == 0, result.output
    switches = load_run_recipe(tmp_path / "run").hand_over
    assert switches is not None
    assert switches.model_dump() == {
        "source_step": None, "moments": "reset", "adam_count": "reset", "schedule": "keep", "data_position": "reset",
        "skip_history": "keep",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--keep", "momentum"), "'momentum'"),
        (("--keep", "moments", "--reset", "moments"), "'moments'"),
        (("--keep", "source_step"), "'source_step'"),
        (("--weights", "somewhere"), "beside weights"),
        (("--set", "hand_over.source_step=1"), "source_step"),
    ],
)
def test_flags_that_do_not_fit_are_refused(source: Path, tmp_path: Path, flags: tuple[str, ...], said: str) -> None:
    path = source / "checkpoints/00000002"
    result = _train(tmp_path / "run", "--from", str(path), *flags)
    assert result.exit_code == 2
    assert "Traceback" not in result.output
    assert said in result.stderr


def test_keep_and_reset_need_a_source(tmp_path: Path) -> None:
    result = _train(tmp_path / "run", "--keep", "moments", "--set", "inputs.weights=null")
    assert result.exit_code == 2
    assert "no source is given" in result.stderr
