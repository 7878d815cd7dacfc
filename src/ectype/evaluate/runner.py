"""Evaluate a run's landmarks against a reference's, one record per landmark; finished records are reused.

This file reads, loads and writes; what is computed lies in `windows`, `measures` and `summary`.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ectype import __version__
from ectype.artifacts import sha256_of_file
from ectype.errors import EctypeError
from ectype.evaluate.held_out import HeldOutText, load_held_out
from ectype.evaluate.record import Evaluation, InputHashes, Protocol, read_evaluation, write_evaluation
from ectype.evaluate.summary import DomainMeasures, domain_record, join_measures, reduce_measures, summarise
from ectype.evaluate.windows import scored_mask
from ectype.progress import Progress, silent
from ectype.recipe.reference import LandmarkWeights, Reference
from ectype.recipe.spec import Dtype, Model, Recipe
from ectype.run.checkpoints import META_ITEM, WEIGHTS_ITEM, finished_steps
from ectype.run.goodput import GoodputLog
from ectype.run.manifest import first_step, load_run_recipe, read_manifest
from ectype.run.paths import RunFolder

CHUNK_TOKENS = 1024
"""Tokens whose logits exist at a time; results do not depend on it beyond float32 rounding."""


@dataclass(frozen=True)
class Settings:
    """How an evaluation is computed. `batch_windows` changes speed and memory only."""

    batch_windows: int = 16
    compute_dtype: Dtype = "float32"


def default_settings(run_dir: Path) -> Settings:
    """float32, and as many windows at a time as the placement says that the run was trained with."""
    if not RunFolder(run_dir).manifest.is_file():
        return Settings()
    return Settings(batch_windows=read_manifest(run_dir).placement.evaluation_batch_windows)


@dataclass(frozen=True)
class Landmarks:
    """A run's landmarks beside its reference's: which to compare, and which can't be."""

    due: tuple[int, ...]
    """Landmarks of the recipe for which the reference has weights; none before the step that a stage counts on from."""
    available: tuple[int, ...]
    """Those of `due` whose checkpoint exists in the run."""

    @property
    def missing(self) -> tuple[int, ...]:
        """Landmarks that are due and that the run holds no checkpoint of."""
        return tuple(step for step in self.due if step not in self.available)


def find_landmarks(run_dir: Path, recipe: Recipe, reference: Reference) -> Landmarks:
    """Which of the recipe's landmarks the reference has too, and which of those the run has reached and kept."""
    shared, first = set(recipe.landmarks) & reference.landmarks.keys(), first_step(run_dir)
    due = tuple(sorted(step for step in shared if step >= first))
    finished = finished_steps(run_dir)
    return Landmarks(due, tuple(step for step in due if step in finished))


def evaluate_run(
    run_dir: Path,
    reference: Reference,
    *,
    landmarks: Sequence[int] = (),
    settings: Settings | None = None,
    progress: Progress = silent,
) -> dict[int, Evaluation]:
    """Evaluate every available landmark of a run, or those given; each record is written as soon as it is done.

    Args:
        run_dir: the run folder.
        reference: the run to compare with.
        landmarks: steps to evaluate; empty means all that are available.
        settings: None takes `default_settings`.

    Returns:
        Step -> evaluation.

    Raises:
        EctypeError: a landmark asked for is not due or has no checkpoint, or nothing can be compared at all.
    """
    recipe = load_run_recipe(run_dir)
    found = find_landmarks(run_dir, recipe, reference)
    steps = _chosen(landmarks, found, reference)
    held_out = load_held_out(reference, window_tokens(recipe), recipe.model.vocab_size)
    settings = settings or default_settings(run_dir)
    results = {}
    with GoodputLog(run_dir).spending("evaluation"):
        for number, step in enumerate(steps):
            results[step] = evaluate_landmark(
                step,
                LandmarkWeights(weights=RunFolder(run_dir).checkpoint(step)),
                reference.landmarks[step],
                held_out,
                settings,
                RunFolder(run_dir).evaluation(step),
                _part_of(progress, number, len(steps)),
            )
    return results


def _part_of(progress: Progress, number: int, parts: int) -> Progress:
    """Progress of the part `number` of `parts` equal ones, shown as progress of the whole."""
    return lambda label, done, total: progress("evaluate, windows", number * total + done, parts * total)


def window_tokens(recipe: Recipe) -> int:
    """Length of the evaluation windows: the recipe's own choice, else the training length."""
    return recipe.evaluation.sequence_length_tokens or recipe.data.sequence_length_tokens


def _chosen(asked: Sequence[int], found: Landmarks, reference: Reference) -> tuple[int, ...]:
    if not found.due:
        raise EctypeError(
            "no landmark of the recipe is one of the reference's",
            f"at least one of {sorted(reference.landmarks)} in the recipe's `landmarks`",
            "train with --set landmarks=[...], or name another reference",
        )
    absent = [step for step in asked if step not in found.available]
    if absent or not found.available:
        raise EctypeError(
            f"landmark {', '.join(map(str, absent or found.due))} is not there to evaluate",
            f"one of {list(found.available)}: due, kept as a checkpoint, and in the reference",
            "let the run reach it, or name another",
        )
    return tuple(sorted(set(asked))) or found.available


def evaluate_landmark(
    step: int,
    ours: LandmarkWeights,
    reference: LandmarkWeights,
    held_out: HeldOutText,
    settings: Settings,
    out: Path,
    progress: Progress = silent,
) -> Evaluation:
    """Compare two sets of weights on the held-out text and write the record to `out`.

    A record already at `out` is returned as it is when its inputs and its protocol are what they would be now.

    Raises:
        EctypeError: weights can't be loaded, belong to another step, or differ in vocabulary.
    """
    inputs = landmark_inputs(weights_sha256(ours.weights), reference, held_out)
    stored = _stored(out)
    if stored is not None and is_current(stored, step, inputs, held_out, settings):
        return stored
    sides = [_load(side, step) for side in (ours, reference)]
    params, models = tuple(side[0] for side in sides), (sides[0][1], sides[1][1])
    if models[0].vocab_size != models[1].vocab_size:
        raise EctypeError(
            f"vocabulary of {models[0].vocab_size} ids in ours and {models[1].vocab_size} in the reference",
            "one vocabulary, or there is no divergence between their predictions",
            "compare runs that share a tokenizer",
        )
    domains, done = {}, 0
    total = sum(len(windows.targets) for windows in held_out.domains.values())
    for name in held_out.domains:
        parts = []
        for part in _batches(name, params, models, held_out, settings):
            parts.append(part)
            done += len(part.targets)
            progress(f"landmark {step}", done, total)
        domains[name] = join_measures(parts)
    evaluation = Evaluation(
        step=step,
        protocol=_protocol(held_out, settings, models[0].vocab_size, (models[0].rows, models[1].rows)),
        inputs=inputs,
        overall=summarise(join_measures(list(domains.values()))),
        domains={name: domain_record(measures) for name, measures in domains.items()},
    )
    write_evaluation(out, evaluation)
    return evaluation


def _batches(
    name: str, params: tuple, models: tuple[Model, Model], held_out: HeldOutText, settings: Settings
) -> Iterator[DomainMeasures]:
    """Measures of one domain, batch by batch. Every batch has one shape, so that the step compiles once."""
    from ectype.evaluate.measures import window_measures

    windows = held_out.domains[name]
    mask = scored_mask(windows.targets, held_out.window_tokens)
    for start in range(0, len(windows.targets), settings.batch_windows):
        rows = slice(start, start + settings.batch_windows)
        tokens = windows.tokens[rows]
        padding = np.zeros((settings.batch_windows - len(tokens), held_out.window_tokens), np.int32)
        measured = window_measures(
            params,
            np.concatenate([tokens, padding]),
            models=models,
            compute_dtype=settings.compute_dtype,
            chunk_tokens=CHUNK_TOKENS,
        )
        counted = {measure: np.asarray(values)[: len(tokens)] for measure, values in measured.items()}
        target_bytes = None if held_out.token_bytes is None else held_out.token_bytes[tokens[:, 1:]]
        yield reduce_measures(counted, mask[rows], target_bytes)


def _protocol(held_out: HeldOutText, settings: Settings, vocabulary_rows: int, all_rows: tuple[int, int]) -> Protocol:
    return Protocol(
        window_tokens=held_out.window_tokens,
        remainder=held_out.remainder,
        vocabulary_rows=vocabulary_rows,
        all_rows=all_rows,
        compute_dtype=settings.compute_dtype,
    )


def landmark_inputs(ours_sha256: str, reference: LandmarkWeights, held_out: HeldOutText) -> InputHashes:
    """Content hashes of all that an evaluation made now would depend on."""
    return InputHashes(
        ours=ours_sha256,
        reference=weights_sha256(reference.weights),
        reference_padded_rows=None if reference.padded_rows is None else weights_sha256(reference.padded_rows),
        held_out=dict(held_out.sha256),
        tokenizer=held_out.tokenizer_sha256,
        ectype=__version__,
    )


def is_current(record: Evaluation, step: int, inputs: InputHashes, held_out: HeldOutText, settings: Settings) -> bool:
    """Whether a stored record is what evaluating `step` now would give."""
    protocol = _protocol(held_out, settings, record.protocol.vocabulary_rows, record.protocol.all_rows)
    return (record.step, record.inputs, record.protocol) == (step, inputs, protocol)


def _stored(path: Path) -> Evaluation | None:
    """The record at `path`; a broken or older one is simply computed anew."""
    try:
        return read_evaluation(path)
    except EctypeError:
        return None


def _load(side: LandmarkWeights, step: int) -> tuple[dict, Model]:
    from ectype.weights.load import load_any_weights

    params, model, meta = load_any_weights(side.weights, padded_rows=side.padded_rows)
    stored_step = meta.get("step")
    if stored_step is not None and stored_step != step:
        raise EctypeError(
            f"{side.weights} holds step {stored_step}", f"step {step}", "a checkpoint was moved or renamed: restore it"
        )
    return params, model


def weights_sha256(path: Path) -> str:
    """SHA-256 over names and contents of the files that hold weights: a file, a folder, or a checkpoint's items.

    A checkpoint's optimiser state is left out: no evaluation depends on it.

    Raises:
        EctypeError: there is nothing at `path`.
    """
    if path.is_file():
        roots = [path]
    else:
        items = [path / item for item in (WEIGHTS_ITEM, META_ITEM)]
        roots = items if items[0].is_dir() else [path]
    files = sorted(file for root in roots for file in ([root] if root.is_file() else root.rglob("*")) if file.is_file())
    if not files:
        raise EctypeError(f"no weights at {path}", "a checkpoint or a Hugging Face folder", "check the path")
    digest = hashlib.sha256()
    for file in files:
        digest.update(str(file.relative_to(path.parent if path.is_file() else path)).encode() + b"\0")
        digest.update(bytes.fromhex(sha256_of_file(file)))
    return digest.hexdigest()
