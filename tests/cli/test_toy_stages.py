"""Stages 1 to 3 at toy size through every hand-over, each judged against OLMo-core's own run of the same chain."""

import csv
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import pytest
from typer.testing import CliRunner

from ectype.cli.main import app
from ectype.compare.held_out_criteria import KL, LOSS, LOSS_BY_DOMAIN, TOP1
from ectype.compare.trajectory_criteria import (
    DATA,
    LEARNING_RATE,
    SKIPPED,
    STEP_GRAD_NORM,
    STEP_LOSS,
    STEP_Z_LOSS,
)
from ectype.model import decoder
from ectype.model.rope import rotary_tables
from ectype.recipe.spec import Model
from ectype.train import loop

pytestmark = pytest.mark.reference
SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks/peers/olmo_core_stages.py"
STAGES = {"stage1": (1, 16), "stage1-extension": (17, 24), "stage2": (1, 16), "stage3": (1, 12)}
"""First and last update of each."""
PLACEMENT = ("attention_block_tokens=512", "evaluation_batch_windows=8")
"""Fewer blocks of attention than by default, which are compiled in a third of the time."""
CONTEXT_PARALLEL = ("mesh.data=1", "mesh.context=2")
EVERY_CRITERION = {LOSS, LOSS_BY_DOMAIN, KL, TOP1, STEP_LOSS, STEP_GRAD_NORM, STEP_Z_LOSS, LEARNING_RATE, SKIPPED, DATA}


@pytest.fixture(scope="module")
def references(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A reference folder for each stage, made now: OLMo-core packs documents as this machine's NumPy sorts them."""
    pytest.importorskip("olmo_core")
    pytest.importorskip("transformers")
    folder = tmp_path_factory.mktemp("references")
    done = subprocess.run([sys.executable, str(SCRIPT), str(folder)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return folder


def ectype(*words: object) -> tuple[int, str]:
    """Exit code and standard output of a verb."""
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exit_code in (0, 1), result.output
    return result.exit_code, result.stdout


def train(stage: str, run: Path, source: Path | None, *words: str) -> None:
    begin = () if source is None else ("--from", source)
    chosen = (*PLACEMENT, *(CONTEXT_PARALLEL if stage == "stage3" else ()))
    placed = [word for value in chosen for word in ("--placement-set", value)]
    assert ectype("train", f"toy-{stage}", "--run", run, *begin, *placed, *words)[0] == 0


def evaluate(run: Path, reference: Path) -> None:
    assert ectype("evaluate", run, "--reference", reference)[0] == 0


def compare(run: Path, reference: Path, *words: object) -> tuple[int, dict[str, Any]]:
    """The exit code and the verdict."""
    code, text = ectype("compare", run, "--reference", reference, "--json", *words)
    return code, json.loads(text)


def logs(run: Path, reference: Path) -> tuple[list[dict[str, float]], list[dict[str, float]]]:
    ours = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    with open(reference / "log.csv", newline="") as stream:
        theirs = [{name: float(cell) for name, cell in row.items()} for row in csv.DictReader(stream)]
    return ours, theirs


def assert_same(stage: str, run: Path, reference: Path, code: int, record: dict[str, Any]) -> None:
    assert (code, record["verdict"]) == (0, "same model"), record["reason"]
    assert {criterion["name"] for criterion in record["criteria"]} == EVERY_CRITERION
    first, last = STAGES[stage]
    ours, theirs = logs(run, reference)
    assert [row["step"] for row in ours] == [row["step"] for row in theirs] == list(range(first, last + 1))
    for mine, other in zip(ours, theirs, strict=True):
        assert mine["loss"] == pytest.approx(other["loss"], abs=1e-5)
        assert mine["grad_norm"] == pytest.approx(other["grad_norm"], rel=2e-4)
        assert mine["learning_rate"] == pytest.approx(other["learning_rate"], rel=1e-12, abs=1e-18)
        assert mine["skipped"] == bool(other["skipped"])


def yarn_everywhere(model: Model, positions_L: jax.Array) -> tuple[Any, Any]:
    scaled = rotary_tables(positions_L, model.rope_theta, model.head_dim, model.yarn)
    return scaled, scaled


def with_noise(reference: Path, noise: Path, folder: Path) -> Path:
    """The reference with what a twin of the right run showed."""
    values = json.loads((reference / "reference.json").read_text()) | {"noise": str(noise)}
    for landmark in values["landmarks"].values():
        landmark |= {name: str(reference / path) for name, path in landmark.items()}
    values["log"]["path"], values["batches"] = str(reference / "log.csv"), str(reference / "batches.json")
    folder.mkdir()
    (folder / "reference.json").write_text(json.dumps(values))
    return folder


def assert_other(criterion: str, code: int, record: dict[str, Any]) -> None:
    assert (code, record["verdict"]) == (1, "not the same model"), record["reason"]
    assert criterion in record["decided_by"], record["reason"]


def test_each_stage_is_the_same_model_and_one_handed_over_wrongly_is_not(
    references: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One test, so that the chain is trained once, whatever worker runs it. Where none is said, twins are not needed:
    agreement within the floors proves sameness, and the learning rate and the data order are exact."""
    runs = {stage: tmp_path / stage for stage in STAGES}
    source: dict[str, Path | None] = dict(zip(STAGES, (None, *runs.values()), strict=False))
    noise = tmp_path / "noise.json"
    for stage, run in runs.items():
        train(stage, run, source[stage])
        evaluate(run, references / stage)
        twins = ("--twins", 1, "--write-noise", noise) if stage == "stage3" else ("--no-twins",)
        code, record = compare(run, references / stage, *twins)
        assert_same(stage, run, references / stage, code, record)

    run, reference = tmp_path / "schedule-anew", references / "stage1-extension"
    train("stage1-extension", run, source["stage1-extension"], "--reset", "schedule", "--until", "18")
    assert_other(LEARNING_RATE, *compare(run, reference, "--no-twins"))

    for stage, wrong in (
        ("stage2", ("--reset", "moments", "--reset", "adam_count")),
        ("stage3", ("--set", "data.document_masks=false")),
    ):
        run = tmp_path / f"{stage}-wrong"
        train(stage, run, source[stage], *wrong)
        evaluate(run, references / stage)
        assert_other(STEP_LOSS, *compare(run, references / stage, "--twins", 1))

    run = tmp_path / "yarn-everywhere"
    with monkeypatch.context() as patched:
        patched.setattr(decoder, "layer_rotary", yarn_everywhere)
        loop._jitted_step.cache_clear()
        train("stage3", run, source["stage3"])
    loop._jitted_step.cache_clear()
    # Its recipe is the right run's, and so is the noise.
    code, record = compare(run, with_noise(references / "stage3", noise, tmp_path / "with-noise"))
    assert_other(STEP_LOSS, code, record)
    assert record["horizon"]["noise_source"].startswith("noise record of the reference")
