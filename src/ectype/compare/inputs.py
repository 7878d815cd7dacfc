"""Read what a run left behind: its record of consumed windows, its evaluations."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from ectype.data.digest import batch_digest
from ectype.data.ledger import ledger_processes, spans_of
from ectype.errors import EctypeError
from ectype.evaluate.engine import Settings
from ectype.evaluate.held_out import HeldOutText, load_held_out
from ectype.evaluate.landmarks import find_landmarks
from ectype.evaluate.record import Evaluation, InputHashes, read_evaluation
from ectype.evaluate.runner import is_current, landmark_inputs, run_texts, window_tokens
from ectype.evaluate.sides import weights_sha256
from ectype.evaluate.stored_landmark import top_ids_of
from ectype.recipe.held_out_sets import MAIN_SET
from ectype.recipe.load import recipe_hash
from ectype.recipe.reference import Reference, read_batches
from ectype.recipe.spec import Recipe
from ectype.run.checkpoints import is_checkpoint
from ectype.run.manifest import first_step, read_manifest
from ectype.run.paths import RunFolder
from ectype.weights.checkpoint import read_meta


def consumed_digests(run_dir: Path, batch_windows: int) -> dict[int, np.ndarray] | None:
    """Step -> digest (uint64 [2]) of the batch that fed it, where all its rows are recorded; None: no record at all."""
    if not RunFolder(run_dir).ledger.is_dir():
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


def due_landmarks(run_dir: Path, recipe: Recipe, reference: Reference) -> tuple[int, ...]:
    """Those that the recipe shares with the reference, and the reference's last one within the run in any case.

    A recipe names landmarks freely; one that leaves out the end must not win a verdict about the whole run.
    """
    first, due = first_step(run_dir), find_landmarks(run_dir, recipe, reference).due
    within = sorted(step for step in reference.landmarks if first <= step <= recipe.duration_steps)
    return tuple(sorted({*due, *within[-1:]}))


def _is_of(checkpoint: Path, recipe_hashes: set[str]) -> bool:
    """Whether a run under one of these recipes made the checkpoint; what no run made, as an import, does not say."""
    found = read_meta(checkpoint).get("recipe_hash")
    return found is None or found in recipe_hashes


@dataclass(frozen=True)
class StoredEvaluations:
    """Evaluations that answer today's question, and the landmarks whose records do not."""

    current: Mapping[int, Evaluation]
    stale: Mapping[int, str]
    """Why not, in words."""


def require_evaluation(run_dir: Path, recipe: Recipe, reference: Reference) -> None:
    """Refuse a run without held-out evidence, before anything is spent on comparing it.

    Raises:
        EctypeError: no landmark that is due has an evaluation that counts.
    """
    due = due_landmarks(run_dir, recipe, reference)
    found = read_evaluations(run_dir, recipe, reference, due)
    if not found.current:
        stale = "".join(f"; that of {step} does not count: {why}" for step, why in found.stale.items())
        raise EctypeError(
            f"{run_dir} has no evaluation of a landmark{stale}",
            f"at least one of {', '.join(map(str, due)) or 'the reference, within the run'}, before twins are trained",
            "run `ectype evaluate RUN` first; --no-twins compares without held-out evidence",
        )  # fmt: skip


def read_evaluations(
    run_dir: Path, recipe: Recipe, reference: Reference, landmarks: Sequence[int]
) -> StoredEvaluations:
    """Records that evaluating now would give again: same weights on both sides, text, tokenizer and protocol."""
    held_out = load_held_out(reference, window_tokens(recipe), recipe.model.vocab_size)
    return _stored(run_dir, recipe, reference, landmarks, held_out, RunFolder(run_dir).evaluation)


def read_set_evaluations(
    run_dir: Path, recipe: Recipe, reference: Reference, landmarks: Sequence[int]
) -> dict[str, Mapping[int, Evaluation]]:
    """The same for each further set that recipe or reference name, by the set's name."""
    run = RunFolder(run_dir)
    if not {*reference.sets, *recipe.evaluation.sets}:
        return {}
    return {
        name: _stored(run_dir, recipe, reference, landmarks, text, partial(run.set_evaluation, name)).current
        for name, text in run_texts(recipe, reference).items()
        if name != MAIN_SET
    }


def _stored(
    run_dir: Path, recipe: Recipe, reference: Reference, landmarks: Sequence[int], text: HeldOutText,
    path_of: Callable[[int], Path],
) -> StoredEvaluations:  # fmt: skip
    current, stale, run = {}, {}, RunFolder(run_dir)
    known = {recipe_hash(recipe)}
    if run.manifest.is_file():
        known |= read_manifest(run_dir).recipe_hashes
    for step in landmarks:
        path = path_of(step)
        if not path.is_file():
            continue
        evaluation, checkpoint = read_evaluation(path), run.checkpoint(step)
        ours, of_this_run = evaluation.inputs.ours, True
        if is_checkpoint(checkpoint):  # One that is gone can't be compared; the record then speaks for it.
            ours, of_this_run = weights_sha256(checkpoint), _is_of(checkpoint, known)
        inputs, top_ids = landmark_inputs(ours, reference.landmarks[step], text), top_ids_of(reference.landmarks[step])
        settings = Settings(compute_dtype=evaluation.protocol.compute_dtype)
        if of_this_run and is_current(evaluation, step, inputs, text, settings, top_ids):
            current[step] = evaluation
        else:
            stale[step] = _why_stale(evaluation, inputs) if of_this_run else "another recipe made the checkpoint"
    return StoredEvaluations(current, stale)


def _why_stale(evaluation: Evaluation, inputs: InputHashes) -> str:
    """What it was made of that is no longer on disk."""
    names = {
        "ours": "our weights", "reference": "the reference's weights", "reference_padded_rows": "its padded rows",
        "held_out": "the held-out text", "tokenizer": "the tokenizer", "ectype": "the version of Ectype",
    }  # fmt: skip
    changed = [words for name, words in names.items() if getattr(evaluation.inputs, name) != getattr(inputs, name)]
    if not changed:
        return "it was measured in another way"
    return f"{' and '.join(changed)} changed since it was measured"
