"""Stages 1 to 3 at toy size through every hand-over, each judged against OLMo-core's own run of the same chain."""

import csv
import json
import subprocess
import sys
from dataclasses import dataclass
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

pytestmark = [pytest.mark.reference, pytest.mark.long]
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


@dataclass(frozen=True)
class Chain:
    """The right runs: where they and their references lie, what each began from, and its verdict with the exit code."""

    references: Path
    runs: dict[str, Path]
    verdicts: dict[str, tuple[int, dict[str, Any]]]
    noise: Path
    """Of stage 3."""

    def source(self, stage: str) -> Path | None:
        return dict(zip(STAGES, (None, *self.runs.values()), strict=False))[stage]


@pytest.fixture(scope="module")
def chain(references: Path, tmp_path_factory: pytest.TempPathFactory) -> Chain:
    """Every stage trained from the one before it. Twins are needed for the noise of stage 3 alone: agreement within the
    floors proves sameness."""
    folder = tmp_path_factory.mktemp("chain")
    chain = Chain(references, {stage: folder / stage for stage in STAGES}, {}, folder / "noise.json")
    for stage, run in chain.runs.items():
        train(stage, run, chain.source(stage))
        evaluate(run, references / stage)
        twins = ("--twins", 1, "--write-noise", chain.noise) if stage == "stage3" else ("--no-twins",)
        chain.verdicts[stage] = compare(run, references / stage, *twins)
    return chain


@pytest.mark.parametrize("stage", STAGES)
def test_each_stage_is_the_same_model(chain: Chain, stage: str) -> None:
    code, record = chain.verdicts[stage]
    assert (code, record["verdict"]) == (0, "same model"), record["reason"]
    assert {criterion["name"] for criterion in record["criteria"]} == EVERY_CRITERION
    first, last = STAGES[stage]
    ours, theirs = logs(chain.runs[stage], chain.references / stage)
    assert [row["step"] for row in ours] == [row["step"] for row in theirs] == list(range(first, last + 1))
    for mine, other in zip(ours, theirs, strict=True):
        assert mine["loss"] == pytest.approx(other["loss"], abs=1e-5)
        assert mine["grad_norm"] == pytest.approx(other["grad_norm"], rel=2e-4)
        assert mine["learning_rate"] == pytest.approx(other["learning_rate"], rel=1e-12, abs=1e-18)
        assert mine["skipped"] == bool(other["skipped"])


@pytest.mark.parametrize("stage", ["stage1-extension", "stage2"])
def test_the_skip_rule_acted_before_a_hand_over(chain: Chain, stage: str) -> None:
    """Else Adam's count would be the number of steps, and taking over one for the other would make no difference."""
    ours, _ = logs(chain.runs[stage], chain.references / stage)
    assert any(row["skipped"] for row in ours)


def assert_other(criterion: str, code: int, record: dict[str, Any]) -> None:
    assert (code, record["verdict"]) == (1, "not the same model"), record["reason"]
    assert criterion in record["decided_by"], record["reason"]


def test_an_extension_whose_schedule_begins_anew_is_another_model(chain: Chain, tmp_path: Path) -> None:
    stage = "stage1-extension"
    train(stage, tmp_path / "run", chain.source(stage), "--reset", "schedule", "--until", "18")
    assert_other(LEARNING_RATE, *compare(tmp_path / "run", chain.references / stage, "--no-twins"))


@pytest.mark.parametrize(
    ("stage", "wrong"),
    [
        ("stage2", ("--reset", "moments", "--reset", "adam_count")),
        ("stage3", ("--set", "data.document_masks=false")),
    ],
)
def test_moments_begun_anew_or_documents_that_see_each_other_make_another_model(
    chain: Chain, tmp_path: Path, stage: str, wrong: tuple[str, ...]
) -> None:
    run = tmp_path / "run"
    train(stage, run, chain.source(stage), *wrong, "--set", "duration_steps=6", "--set", "landmarks=[6]")
    evaluate(run, chain.references / stage)
    assert_other(STEP_LOSS, *compare(run, chain.references / stage, "--twins", 1))


def yarn_everywhere(model: Model, positions_L: jax.Array) -> tuple[Any, Any]:
    scaled = rotary_tables(positions_L, model.rope_theta, model.head_dim, model.yarn)
    return scaled, scaled


def test_yarn_in_all_layers_makes_another_model(
    chain: Chain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    """Its recipe is the right run's, so that the noise of that one is its own."""
    with monkeypatch.context() as patched:
        patched.setattr(decoder, "layer_rotary", yarn_everywhere)
        loop.jitted_step.cache_clear()
        train("stage3", tmp_path / "run", chain.source("stage3"), "--until", "6")
    loop.jitted_step.cache_clear()
    reference = with_noise(chain.references / "stage3", chain.noise, tmp_path / "with-noise")
    code, record = compare(tmp_path / "run", reference)
    assert_other(STEP_LOSS, code, record)
    assert record["horizon"]["noise_source"].startswith("noise record of the reference")


def with_noise(reference: Path, noise: Path, folder: Path) -> Path:
    """The reference with what a twin of the right run showed."""
    values = json.loads((reference / "reference.json").read_text()) | {"noise": str(noise)}
    for landmark in values["landmarks"].values():
        landmark |= {name: str(reference / path) for name, path in landmark.items()}
    values["log"]["path"], values["batches"] = str(reference / "log.csv"), str(reference / "batches.json")
    folder.mkdir()
    (folder / "reference.json").write_text(json.dumps(values))
    return folder
