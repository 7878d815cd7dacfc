"""Evaluate a run's landmarks against a reference's, one record per landmark and set; finished records are reused.

This file reads, loads and writes; what is computed lies in `windows`, `measures` and `summary`.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from ectype import __version__
from ectype.errors import EctypeError
from ectype.evaluate.disjoint import CHECKED_WINDOWS, require_disjoint
from ectype.evaluate.engine import Settings
from ectype.evaluate.held_out import Cut, HeldOutText, load_held_out, load_set
from ectype.evaluate.landmarks import Landmarks, find_landmarks, landmark_lock, require_due
from ectype.evaluate.record import Evaluation, InputHashes, Protocol, read_evaluation, write_evaluation
from ectype.evaluate.sides import load_side, measure_sides, require_one_vocabulary, weights_sha256
from ectype.evaluate.stored_landmark import measurable, require_facts, stored_facts, top_ids_of
from ectype.evaluate.stored_reference import cut_of, measure_against_stored, read_stored
from ectype.evaluate.subject import Subject
from ectype.evaluate.summary import DomainMeasures, domain_record, join_measures, summarise
from ectype.progress import Progress, silent
from ectype.recipe.held_out_sets import MAIN_SET, check_names
from ectype.recipe.reference import LandmarkWeights, Reference
from ectype.recipe.spec import HeldOutSet, Model, Recipe
from ectype.run.goodput import GoodputLog
from ectype.run.manifest import load_run_recipe, read_manifest
from ectype.run.paths import RunFolder


def default_settings(run_dir: Path) -> Settings:
    """float32, and as many windows at a time as the placement says that the run was trained with."""
    if not RunFolder(run_dir).manifest.is_file():
        return Settings()
    return Settings(batch_windows=read_manifest(run_dir).placement.evaluation_batch_windows)


def evaluate_run(
    run_dir: Path,
    reference: Reference,
    *,
    landmarks: Sequence[int] = (),
    texts: Mapping[str, HeldOutText] | None = None,
    settings: Settings | None = None,
    disjoint_windows: int = CHECKED_WINDOWS,
    progress: Progress = silent,
) -> dict[int, Evaluation]:
    """Evaluate every available landmark of a run, or those given; each record is written as soon as it is done.

    Args:
        run_dir: the run folder.
        reference: the run to compare with.
        landmarks: steps to evaluate; empty means all that are available.
        texts: from `run_texts`; None: all that the reference and the recipe name.
        settings: None takes `default_settings`.
        disjoint_windows: training windows that are searched for held-out text, at most.

    Returns:
        Step -> evaluation on the reference's own text; those on other sets are only written.

    Raises:
        EctypeError: a landmark asked for is not due or has no checkpoint, nothing can be compared at all, or training
            reads held-out text.
    """
    recipe = load_run_recipe(run_dir)
    steps = _chosen(landmarks, find_landmarks(run_dir, recipe, reference), reference)
    texts = run_texts(recipe, reference) if texts is None else texts
    settings = settings or default_settings(run_dir)
    require_disjoint(run_dir, recipe, texts, most_windows=disjoint_windows, progress=progress)
    results = {}
    with GoodputLog(run_dir).spending("evaluation"):
        for number, step in enumerate(steps):
            part = _part_of(progress, number, len(steps))
            results[step] = evaluate_sets(run_dir, step, reference, texts, settings, part)[MAIN_SET]
    return results


def run_texts(
    recipe: Recipe, reference: Reference, given: Mapping[str, HeldOutSet] | None = None, tokenizer: Path | None = None
) -> dict[str, HeldOutText]:
    """The reference's own text, and further sets by name: those of the reference, of the recipe, and those given.

    Raises:
        EctypeError: two sets of one name that differ, a name that can't be one, or as for `load_set`.
    """
    length, vocab_size = window_tokens(recipe), recipe.model.vocab_size
    sets: dict[str, HeldOutSet] = {}
    for source in (reference.sets, recipe.evaluation.sets, given or {}):
        if differing := [name for name in source if name in sets and sets[name] != source[name]]:
            raise EctypeError(
                f"held-out set {differing[0]!r} is defined twice, in two ways", "each name once", "rename one of them"
            )
        sets |= source
    return {MAIN_SET: load_held_out(reference, length, vocab_size)} | {
        name: load_set(
            each, length, vocab_size, tokenizer=tokenizer or reference.tokenizer, end_of_text_id=recipe.data.eos_id
        )
        for name, each in check_names(sets).items()
    }


def evaluate_sets(
    run_dir: Path,
    step: int,
    reference: Reference,
    texts: Mapping[str, HeldOutText],
    settings: Settings,
    progress: Progress = silent,
) -> dict[str, Evaluation]:
    """Evaluate one landmark of a run on each text, and write what is not there yet.

    One process at a time: another that is asked for the same landmark waits, and then finds it done.
    """
    with landmark_lock(run_dir, step):
        return evaluate_locked(run_dir, step, reference, texts, settings, progress)


def evaluate_locked(
    run_dir: Path, step: int, reference: Reference, texts: Mapping[str, HeldOutText], settings: Settings,
    progress: Progress,
) -> dict[str, Evaluation]:  # fmt: skip
    """The same by a process that holds the landmark's lock."""
    run = RunFolder(run_dir)
    texts = measurable(texts, reference.landmarks[step])
    outs = {name: _record_path(run, name, step) for name in texts}
    ours = LandmarkWeights(weights=run.checkpoint(step))
    found = _evaluated(step, ours, reference.landmarks[step], [(texts[n], outs[n]) for n in texts], settings, progress)
    return dict(zip(texts, found, strict=True))


def is_evaluated(
    run_dir: Path, step: int, reference: Reference, texts: Mapping[str, HeldOutText], settings: Settings
) -> bool:
    """Whether the records of a landmark on all texts are there, and are what evaluating it now would give."""
    run, known = RunFolder(run_dir), None
    top_ids = top_ids_of(reference.landmarks[step])
    for name, text in measurable(texts, reference.landmarks[step]).items():
        stored = _stored(_record_path(run, name, step))
        if stored is None:
            return False
        known = known or landmark_inputs(weights_sha256(run.checkpoint(step)), reference.landmarks[step], text)
        if not is_current(stored, step, _on(text, known), text, settings, top_ids):
            return False
    return True


def _record_path(run: RunFolder, name: str, step: int) -> Path:
    return run.evaluation(step) if name == MAIN_SET else run.set_evaluation(name, step)


def _part_of(progress: Progress, number: int, parts: int) -> Progress:
    """Progress of the part `number` of `parts` equal ones, shown as progress of the whole."""
    return lambda label, done, total: progress(label, number * total + done, parts * total)


def window_tokens(recipe: Recipe) -> int:
    """Length of the evaluation windows: the recipe's own choice, else the training length."""
    return recipe.evaluation.sequence_length_tokens or recipe.data.sequence_length_tokens


def _chosen(asked: Sequence[int], found: Landmarks, reference: Reference) -> tuple[int, ...]:
    require_due(found, reference)
    absent = [step for step in asked if step not in found.available]
    if absent or not found.available:
        raise EctypeError(
            f"landmark {', '.join(map(str, absent or found.due))} is not there to evaluate",
            f"one of {list(found.available)}: due, kept as a checkpoint, and in the reference",
            "let the run reach it, or name another",
        )
    return tuple(sorted(set(asked))) or found.available


def evaluate_pair(
    step: int, ours: LandmarkWeights, reference: LandmarkWeights, wanted: Sequence[tuple[HeldOutText, Path]],
    settings: Settings, progress: Progress = silent,
) -> list[Evaluation]:  # fmt: skip
    """Compare two sets of weights on each text, and write its record to the path beside it; weights are loaded once.

    A record that is already there is returned as it is when its inputs and its protocol are what they would be now.

    Raises:
        EctypeError: weights can't be loaded, belong to another step, or differ in vocabulary.
    """
    return list(_evaluated(step, ours, reference, wanted, settings, progress))


def _evaluated(
    step: int, ours: LandmarkWeights, reference: LandmarkWeights, wanted: Sequence[tuple[HeldOutText, Path]],
    settings: Settings, progress: Progress,
) -> Iterator[Evaluation]:  # fmt: skip
    """The evaluation on each text, which also lies at its path then; weights are loaded once, and only when needed."""
    sides: list[Subject] = []
    known = landmark_inputs(weights_sha256(ours.weights), reference, wanted[0][0])
    facts = stored_facts(reference)
    for text, out in wanted:
        inputs, stored = _on(text, known), _stored(out)
        if stored is not None and is_current(stored, step, inputs, text, settings, facts and facts.top_ids):
            yield stored
            continue
        if facts is not None:
            require_facts(facts, reference.weights, step, settings)
            sides = sides or [load_side(ours, settings, step)]
            evaluation = _beside_stored(step, sides[0], reference.weights, inputs, settings, progress)
            write_evaluation(out, evaluation)
            yield evaluation
            continue
        sides = sides or [load_side(side, settings, step) for side in (ours, reference)]
        require_one_vocabulary(*(side.model.vocab_size for side in sides))
        domains = measure_sides(sides, text, settings, progress)
        evaluation = evaluation_of(step, [side.model for side in sides], text.cut, inputs, settings, domains)
        write_evaluation(out, evaluation)
        yield evaluation


def _beside_stored(
    step: int, ours: Subject, path: Path, inputs: InputHashes, settings: Settings, progress: Progress
) -> Evaluation:
    """The record of our weights beside a stored reference, on the text that it holds."""
    stored = read_stored(path)
    facts = stored.facts
    require_one_vocabulary(ours.model.vocab_size, facts.vocabulary_rows)
    domains = measure_against_stored(ours, stored, settings, progress)
    rows = (ours.model.rows, facts.all_rows)
    return evaluation_of(
        step, [ours.model], cut_of(stored), inputs, settings, domains, all_rows=rows, top_ids=facts.top_ids
    )


def evaluation_of(
    step: int | None,
    models: Sequence[Model],
    cut: Cut,
    inputs: InputHashes,
    settings: Settings,
    domains: Mapping[str, DomainMeasures],
    all_rows: tuple[int, ...] | None = None,
    top_ids: int | None = None,
) -> Evaluation:
    """The record of what was measured.

    Args:
        models: of our weights, and of the reference's where they were run.
        all_rows: rows behind the losses of all rows; None: those of `models`.
        top_ids: of the reference's stored record, where that stood for its weights.
    """
    rows = tuple(model.rows for model in models) if all_rows is None else all_rows
    return Evaluation(
        step=step,
        protocol=_protocol(cut, settings, models[0].vocab_size, rows, top_ids),
        inputs=inputs,
        overall=summarise(join_measures(list(domains.values()))),
        domains={name: domain_record(measures) for name, measures in domains.items()},
    )


_FIXED = {field: Protocol.model_fields[field].default for field in ("windows", "scored", "kl")}
_BOUND = (
    "lower bound on KL(reference || ours) over vocabulary_rows, nats per token: the reference's top_ids one by one, "
    "all other ids as one"
)


def _protocol(
    cut: Cut, settings: Settings, vocabulary_rows: int, all_rows: tuple[int, ...], top_ids: int | None = None
) -> Protocol:
    rolling = {
        "windows": f"rolling, documents {cut.documents}",
        "scored": "every token once" if cut.prefix_id is not None else "every token but a text's first, once",
    }
    words = _FIXED | (rolling if cut.stride_tokens is not None else {}) | ({"kl": _BOUND} if top_ids else {})
    return Protocol(
        window_tokens=cut.window_tokens,
        stride_tokens=cut.stride_tokens,
        prefix_id=cut.prefix_id,
        remainder=cut.remainder,
        units="documents" if cut.documents == "one by one" else "windows",
        vocabulary_rows=vocabulary_rows,
        all_rows=all_rows,
        compute_dtype=settings.compute_dtype,
        top_ids=top_ids,
        **words,
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


def _on(text: HeldOutText, known: InputHashes) -> InputHashes:
    """The inputs of an evaluation of the same weights on another text."""
    return known.model_copy(update={"held_out": dict(text.sha256), "tokenizer": text.tokenizer_sha256})


def is_current(
    record: Evaluation, step: int, inputs: InputHashes, held_out: HeldOutText, settings: Settings,
    top_ids: int | None = None,
) -> bool:  # fmt: skip
    """Whether a stored record is what evaluating `step` now would give; `top_ids` are of a stored reference."""
    protocol = _protocol(held_out.cut, settings, record.protocol.vocabulary_rows, record.protocol.all_rows, top_ids)
    return (record.step, record.inputs, record.protocol) == (step, inputs, protocol)


def _stored(path: Path) -> Evaluation | None:
    """The record at `path`; a broken or older one is simply computed anew."""
    try:
        return read_evaluation(path)
    except EctypeError:
        return None
