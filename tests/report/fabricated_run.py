"""A finished run folder, made up from the bundled reference's own log: the shapes are real, the differences drawn."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np

from ectype.data.ledger import Ledger
from ectype.evaluate.held_out import load_held_out
from ectype.evaluate.record import Evaluation, Protocol, write_evaluation
from ectype.evaluate.runner import landmark_inputs
from ectype.evaluate.summary import DomainMeasures, domain_record, join_measures, reduce_measures, summarise
from ectype.recipe.load import load_recipe, recipe_hash, to_yaml
from ectype.recipe.reference import Reference, TrainingLog, load_reference, read_batches, read_training_log
from ectype.run.manifest import Manifest, write_manifest
from ectype.run.paths import RunFolder

DOMAIN_WINDOWS = {"kjv": 65, "jargon": 56, "devil": 16, "pycode": 27, "tz": 14}
WINDOW_TOKENS = 256
STEP_SECONDS = 0.1
BATCH_TOKENS = 2048


def reference_log() -> TrainingLog:
    """The bundled reference's training log."""
    reference = load_reference("package:demo/bundle")
    assert reference.log is not None
    return read_training_log(reference.log)


def write_metrics(run_dir: Path, *, scale: float = 3e-7, steps: int = 640) -> None:
    """metrics.jsonl: the reference's series with a relative error that grows to `scale`."""
    log, generator = reference_log(), np.random.default_rng(0)
    assert log.z_loss is not None
    assert log.grad_norm is not None
    assert log.learning_rate is not None
    assert log.skipped is not None
    growth = scale * np.linspace(0.05, 1, len(log.steps))
    loss = log.loss * (1 + growth * generator.standard_normal(len(log.steps)))
    rows = [
        {
            "step": int(step),
            "loss": float(loss[i]),
            "z_loss": float(log.z_loss[i]),
            "grad_norm": float(log.grad_norm[i] * (1 + 10 * growth[i])),
            "learning_rate": float(log.learning_rate[i]),
            "skipped": bool(log.skipped[i]),
            "loss_tokens": BATCH_TOKENS - 8,
            "tokens_seen": BATCH_TOKENS * int(step),
            "step_seconds": STEP_SECONDS,
            "data_wait_seconds": 0.001,
            "tokens_per_second": BATCH_TOKENS / STEP_SECONDS,
        }
        for i, step in enumerate(log.steps[:steps])
    ]
    (run_dir / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def write_ledger(run_dir: Path, reference: Reference) -> None:
    """A ledger of one process that consumed the reference's batches."""
    assert reference.batches is not None
    ledger = Ledger(run_dir, 0, 1)
    ledger.begin(0)
    for step, ids in read_batches(reference.batches).items():
        ledger.append(step - 1, np.arange(len(ids)), ids.astype(np.uint32))
    ledger.flush()


def fabricated_evaluation(step: int, reference: Reference, *, offset: float = 0.0, size: float = 1e-6) -> Evaluation:
    """Per-token losses drawn from a gamma distribution; ours differ by `offset` plus noise of `size`."""
    generator = np.random.default_rng(step)
    level = 2.5 + 4.4 * np.exp(-step / 220)
    domains = {}
    for place, (name, windows) in enumerate(DOMAIN_WINDOWS.items()):
        domains[name] = _measures(generator, level + 0.1 * place, windows, offset, size * (1 + step / 100))
    held_out = load_held_out(reference, WINDOW_TOKENS, 1000)
    return Evaluation(
        step=step,
        protocol=Protocol(
            window_tokens=WINDOW_TOKENS, remainder="drop", vocabulary_rows=1000, all_rows=(1024, 1024),
            compute_dtype="float32",
        ),
        inputs=landmark_inputs("a" * 64, reference.landmarks[step], held_out),
        overall=summarise(join_measures(list(domains.values()))),
        domains={name: domain_record(measures) for name, measures in domains.items()},
    )  # fmt: skip


def _measures(generator: np.random.Generator, level: float, windows: int, offset: float, size: float) -> DomainMeasures:
    shape = (windows, WINDOW_TOKENS - 1)
    reference = generator.gamma(4, level / 4, shape)
    loss = reference + offset + size * generator.standard_normal(shape)
    kl = np.maximum(offset, size) ** 2 * generator.lognormal(-1, 2, shape)
    agree = (kl < np.quantile(kl, 0.9999)) | (offset == 0)
    values = {"loss": loss, "reference_loss": reference, "kl": kl, "agree": agree}
    values |= {"loss_all_rows": loss, "reference_loss_all_rows": reference}
    return reduce_measures(
        {name: np.asarray(value, np.float32) for name, value in values.items()},
        np.ones(shape, bool),
        np.full(windows, 3 * (WINDOW_TOKENS - 1)),
    )


def make_run(
    run_dir: Path, make_manifest: Callable[..., Manifest], *, loss_scale: float = 3e-7, offset: float = 0.0
) -> Path:
    """A run folder with everything but checkpoints and a verdict."""
    recipe, reference = load_recipe("toy-calm"), load_reference("package:demo/bundle")
    run_dir.mkdir(parents=True)
    (run_dir / "recipe.yaml").write_text(to_yaml(recipe), encoding="utf-8")
    write_metrics(run_dir, scale=loss_scale)
    for step in recipe.landmarks:
        evaluation = fabricated_evaluation(step, reference, offset=offset if step else 0.0)
        write_evaluation(RunFolder(run_dir).evaluation(step), evaluation)
    write_ledger(run_dir, reference)
    write_manifest(run_dir, make_manifest(recipe_hash=recipe_hash(recipe)))
    return run_dir
