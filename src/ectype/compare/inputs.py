"""Read what a run left behind: its log, its record of consumed windows, its evaluations."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ectype.data.digest import batch_digest
from ectype.data.ledger import ledger_processes, spans_of
from ectype.errors import EctypeError
from ectype.evaluate.held_out import load_held_out
from ectype.evaluate.record import Evaluation, evaluation_path, read_evaluation
from ectype.evaluate.runner import (
    Settings,
    checkpoint_path,
    is_current,
    landmark_inputs,
    weights_sha256,
    window_tokens,
)
from ectype.recipe.reference import Reference, TrainingLog, read_batches
from ectype.recipe.spec import Recipe


def read_metrics(run_dir: Path) -> TrainingLog:
    """A run's own log. Of rows with one step number the last counts: earlier ones were rolled back.

    Raises:
        EctypeError: no metrics, or an unreadable row other than a last one that a crash cut short.
    """
    path = run_dir / "metrics.jsonl"
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise EctypeError(f"{path}: {error}", "the log of a run", "train first: `ectype train`") from None
    rows: dict[int, dict[str, Any]] = {}
    for number, line in enumerate(lines, start=1):
        try:
            row = json.loads(line)
            rows[int(row["step"])] = row
        except (ValueError, KeyError, TypeError):
            if number == len(lines):
                break
            raise EctypeError(
                f"{path}, line {number}: no metrics row", "one JSON object per line", "restore it"
            ) from None
    if not rows:
        raise EctypeError(f"{path} has no rows", "at least one step", "train first: `ectype train`")
    steps = sorted(rows)

    def series(name: str) -> np.ndarray:
        return np.array([_metric(rows[step].get(name)) for step in steps], np.float64)

    return TrainingLog(
        steps=np.array(steps, np.int64),
        loss=series("loss"),
        z_loss=series("z_loss"),
        grad_norm=series("grad_norm"),
        learning_rate=series("learning_rate"),
        skipped=series("skipped"),
    )


def _metric(value: Any) -> float:
    return math.nan if value is None else float(value)


def consumed_digests(run_dir: Path, batch_windows: int) -> dict[int, np.ndarray] | None:
    """Step -> digest (uint64 [2]) of the batch that fed it, where all its rows are recorded; None: no record at all."""
    if not (run_dir / "ledger").is_dir():
        return None
    digests: dict[int, np.ndarray] = {}
    rows: dict[int, int] = {}
    for process in ledger_processes(run_dir):
        for span in spans_of(run_dir, process):
            for batch, digest in zip(span.batches.tolist(), span.digests, strict=True):
                digests[batch + 1] = digests.get(batch + 1, np.zeros(2, np.uint64)) + digest
                rows[batch + 1] = rows.get(batch + 1, 0) + len(span.rows)
    return {step: digest for step, digest in digests.items() if rows[step] == batch_windows}


def reference_digests(reference: Reference) -> dict[int, np.ndarray]:
    """Step -> digest of the reference's batch, as `consumed_digests` gives it for the run."""
    batches = read_batches(reference.batches) if reference.batches else {}
    return {step: batch_digest(step - 1, np.arange(len(ids)), ids.astype(np.uint32)) for step, ids in batches.items()}


@dataclass(frozen=True)
class StoredEvaluations:
    """Evaluations that answer today's question, and the landmarks whose records do not."""

    current: Mapping[int, Evaluation]
    stale: tuple[int, ...]


def read_evaluations(
    run_dir: Path, recipe: Recipe, reference: Reference, landmarks: Sequence[int]
) -> StoredEvaluations:
    """Records that evaluating now would give again: same weights on both sides, text, tokenizer and protocol."""
    current, stale = {}, []
    held_out = load_held_out(reference, window_tokens(recipe), recipe.model.vocab_size)
    for step in landmarks:
        path = evaluation_path(run_dir, step)
        if not path.is_file():
            continue
        evaluation, checkpoint = read_evaluation(path), checkpoint_path(run_dir, step)
        # A checkpoint that is gone can't be compared; the record then speaks for it.
        ours = weights_sha256(checkpoint) if checkpoint.is_dir() else evaluation.inputs.ours
        inputs = landmark_inputs(ours, reference.landmarks[step], held_out)
        if is_current(evaluation, step, inputs, held_out, Settings(compute_dtype=evaluation.protocol.compute_dtype)):
            current[step] = evaluation
        else:
            stale.append(step)
    return StoredEvaluations(current, tuple(stale))
