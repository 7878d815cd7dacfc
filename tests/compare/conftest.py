"""Run folders that copy the bundled reference, with sixteen held-out windows in two domains and two landmarks."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from ectype.artifacts import package_path
from ectype.data.ledger import Ledger
from ectype.evaluate.runner import evaluate_run
from ectype.recipe.load import load_recipe, to_yaml
from ectype.recipe.reference import Reference, load_reference, read_batches, read_training_log

BUNDLE = package_path("package:demo/bundle")
Copy = Callable[..., Path]
Imported = Callable[[int], Path]


@pytest.fixture(scope="session")
def reference_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundle with less held-out text, no padded rows, and no noise record."""
    folder = tmp_path_factory.mktemp("reference")
    values = json.loads((BUNDLE / "reference.json").read_text())
    tokens = np.fromfile(BUNDLE / values["held_out"]["domains"]["devil"], "<u2")
    domains = {"first": "first.npy", "second": "second.npy"}
    for name, half in zip(domains.values(), np.split(tokens[: 16 * 256], 2), strict=True):
        half.tofile(folder / name)
    values |= {
        "landmarks": {str(step): {"weights": str(BUNDLE / f"hf/step{step}")} for step in (0, 640)},
        "log": values["log"] | {"path": str(BUNDLE / "log.csv")},
        "batches": str(BUNDLE / "batches.json"),
        "held_out": {"dtype": "uint16", "domains": domains},
        "tokenizer": str(BUNDLE / values["tokenizer"]),
        "noise": None,
    }
    (folder / "reference.json").write_text(json.dumps(values))
    return folder


@pytest.fixture(scope="session")
def reference(reference_folder: Path) -> Reference:
    return load_reference(reference_folder)


@pytest.fixture(scope="session")
def records(reference: Reference, tmp_path_factory: pytest.TempPathFactory, imported: Imported) -> Path:
    """Evaluations of a perfect copy, made once: a run of the same weights reuses them."""
    run = tmp_path_factory.mktemp("evaluated")
    write_run(run, 640, imported)
    evaluate_run(run, reference)
    return run / "evaluations"


@pytest.fixture
def copy(tmp_path: Path, reference: Reference, records: Path, imported: Imported) -> Copy:
    """A function that makes a run folder which reproduced the reference, but for what it is told to change."""

    def make(
        folder: str = "run",
        loss_shift: float = 0.0,
        final_weights: int = 640,
        swap_batch: int | None = None,
        evaluated: bool = True,
    ) -> Path:
        run = tmp_path / folder
        write_run(run, final_weights, imported)
        write_metrics(run, reference, loss_shift)
        write_ledger(run, reference, swap_batch)
        if evaluated:
            # A twin's record compares the same two sets of weights, but lies elsewhere.
            shutil.copytree(records, run / ("against-run" if "twins" in run.parts else "evaluations"))
        return run

    return make


def write_run(run: Path, final_weights: int, imported: Imported) -> None:
    (run / "checkpoints").mkdir(parents=True)
    changes = ["landmarks=[0,640]", "evaluation.bootstrap_samples=300"]
    (run / "recipe.yaml").write_text(to_yaml(load_recipe("toy-calm", changes)))
    for step, weights in ((0, 0), (640, final_weights)):
        (run / "checkpoints" / f"{step:08d}").symlink_to(imported(weights), target_is_directory=True)


def write_metrics(run: Path, reference: Reference, loss_shift: float) -> None:
    assert reference.log is not None
    log = read_training_log(reference.log)
    assert log.grad_norm is not None
    assert log.skipped is not None
    assert log.z_loss is not None
    assert log.learning_rate is not None
    rows = [
        {
            "step": int(step), "loss": loss + loss_shift, "z_loss": z_loss, "grad_norm": norm, "learning_rate": rate,
            "skipped": bool(skip), "step_seconds": 0.1,
        }
        for step, loss, z_loss, norm, rate, skip in zip(
            log.steps, log.loss, log.z_loss, log.grad_norm, log.learning_rate, log.skipped, strict=True
        )
    ]  # fmt: skip
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def write_ledger(run: Path, reference: Reference, swap_batch: int | None) -> None:
    assert reference.batches is not None
    ledger = Ledger(run, 0, 1)
    ledger.begin(0)
    for step, ids in read_batches(reference.batches).items():
        ledger.append(step - 1, np.arange(len(ids)), (ids[::-1] if step == swap_batch else ids).astype(np.uint32))
    ledger.flush()
