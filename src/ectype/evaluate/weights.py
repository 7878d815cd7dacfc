"""Any two sets of weights, or one alone, or one beside a stored reference: one evaluation on one text, not written."""

from dataclasses import dataclass
from pathlib import Path

from ectype import __version__
from ectype.errors import EctypeError
from ectype.evaluate.engine import Settings
from ectype.evaluate.held_out import HeldOutText, load_set
from ectype.evaluate.record import Evaluation, InputHashes
from ectype.evaluate.runner import evaluation_of
from ectype.evaluate.sides import load_side, measure_sides, require_one_vocabulary, weights_sha256
from ectype.evaluate.stored_reference import (
    cut_of,
    is_stored_reference,
    make_stored,
    measure_against_stored,
    read_stored,
    write_stored,
)
from ectype.evaluate.subject import Subject
from ectype.progress import Progress, silent
from ectype.recipe.reference import LandmarkWeights
from ectype.recipe.spec import HeldOutSet


@dataclass(frozen=True)
class Weights:
    """Loaded weights, and the hash of what they were loaded from."""

    subject: Subject
    sha256: str


def open_weights(path: Path, settings: Settings, padded_rows: Path | None = None) -> Weights:
    """Load a checkpoint, a run's newest checkpoint or a Hugging Face folder.

    Raises:
        EctypeError: it can't be loaded.
    """
    subject = load_side(LandmarkWeights(weights=path, padded_rows=padded_rows), settings)
    return Weights(subject, weights_sha256(subject.path))


def text_for(weights: Weights, given: HeldOutSet, tokenizer: Path | None) -> HeldOutText:
    """A set as these weights would see it: their vocabulary, and their length and end of text unless it has its own.

    Raises:
        EctypeError: as for `load_set`, or nothing says how long windows are.
    """
    length = given.window_tokens or weights.subject.max_length
    if length is None:
        raise EctypeError(
            f"{weights.subject.path} does not say how long its inputs may be", "window_tokens in the set",
            "define the set in a YAML file, with window_tokens",
        )  # fmt: skip
    vocab_size, end = weights.subject.model.vocab_size, weights.subject.end_of_text_id
    return load_set(given, length, vocab_size, tokenizer=tokenizer, end_of_text_id=end)


def evaluate_weights(
    ours: Weights, text: HeldOutText, settings: Settings, reference: Weights | None = None, progress: Progress = silent
) -> Evaluation:
    """Losses of our weights on a text, and KL(reference || ours) where there is a reference.

    Raises:
        EctypeError: two vocabularies.
    """
    sides = [each.subject for each in (ours, reference) if each is not None]
    require_one_vocabulary(sides[0].model.vocab_size, sides[-1].model.vocab_size)
    inputs = _inputs(ours, None if reference is None else reference.sha256, dict(text.sha256), text.tokenizer_sha256)
    domains = measure_sides(sides, text, settings, progress)
    return evaluation_of(ours.subject.step, [side.model for side in sides], text.cut, inputs, settings, domains)


def evaluate_against_stored(ours: Weights, path: Path, settings: Settings, progress: Progress = silent) -> Evaluation:
    """Losses of our weights, and bounds on KL(reference || ours), on the text of a stored reference.

    Raises:
        EctypeError: no such file, or another vocabulary.
    """
    stored = read_stored(path)
    facts, model = stored.facts, ours.subject.model
    require_one_vocabulary(model.vocab_size, facts.vocabulary_rows)
    inputs = _inputs(ours, facts.weights_sha256, facts.text_sha256, facts.tokenizer_sha256)
    domains = measure_against_stored(ours.subject, stored, settings, progress)
    rows = (model.rows, facts.all_rows)
    return evaluation_of(
        ours.subject.step, [model], cut_of(stored), inputs, settings, domains, all_rows=rows, top_ids=facts.top_ids
    )


def store_reference(
    weights: Weights, text: HeldOutText, top_ids: int, settings: Settings, out: Path, progress: Progress = silent
) -> int:
    """Write what the weights say of a text to `out`, and return how many tokens that is.

    Raises:
        EctypeError: `out` has another ending than a stored reference, or too many ids are asked for.
    """
    if not is_stored_reference(out):
        raise EctypeError(f"--store {out}", "a file ending in .npz", "by which --against knows it")
    stored = make_stored(weights.subject, weights.sha256, text, top_ids, settings, progress)
    write_stored(out, stored)
    return len(stored.by_token["loss"])


def _inputs(ours: Weights, reference: str | None, texts: dict[str, str], tokenizer: str | None) -> InputHashes:
    return InputHashes(
        ours=ours.sha256, reference=reference, reference_padded_rows=None, held_out=texts, tokenizer=tokenizer,
        ectype=__version__,
    )  # fmt: skip
