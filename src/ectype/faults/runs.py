"""One run of the matrix, in a process of its own: train, evaluate, compare, and write what came of it.

python -m ectype.faults OUT RUN
"""

import csv
import shutil
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import jax
import numpy as np

from ectype.artifacts import lock, read_json, write_json
from ectype.compare.inputs import consumed_digests, due_landmarks, read_evaluations, reference_digests
from ectype.compare.noise import read_noise, write_noise
from ectype.compare.runner import compare_run, grounds_of
from ectype.compare.trajectory import difference
from ectype.compare.twins import MeasuredNoise, twin_folder, twin_perturbation, twin_recipe, twins_noise
from ectype.data.audit_run import record_audit
from ectype.data.order import Order
from ectype.data.source import open_order
from ectype.errors import EctypeError
from ectype.evaluate.runner import evaluate_run
from ectype.faults.catalogue import Fault, Made, fault_named
from ectype.faults.detect import findings, tokens_estimated, tokens_that_catch
from ectype.faults.materials import training_index
from ectype.faults.orders import times_read
from ectype.faults.record import READ_ONCE, Finding, Reading, Row, Seconds
from ectype.faults.refusals import refused_by
from ectype.faults.regimes import (
    DETAILS,
    FAULT_SEED,
    HONEST_DEVICES,
    HONEST_SEED,
    Details,
    Regime,
    Run,
    regime_named,
    regime_recipe,
    run_named,
)
from ectype.recipe.load import load_placement, recipe_differences
from ectype.recipe.parse import parse
from ectype.recipe.placement import Placement
from ectype.recipe.reference import LandmarkWeights, Log, Reference, named_reference, read_training_log
from ectype.recipe.spec import Recipe
from ectype.run.manifest import Perturbation
from ectype.run.metrics import read_metrics, read_rows
from ectype.run.paths import RunFolder
from ectype.train import loop
from ectype.train.sharding import prepare_devices
from ectype.weights.checkpoint import load_weights

_COLUMNS: Sequence[str] = ("step", "loss", "z_loss", "grad_norm", "learning_rate", "skipped")
_WORDS = {"replay": "its own order", "re-run": "another seed"}


def main(out: Path, name: str) -> None:
    """Make the run called `name` of the matrix in `out`."""
    run = run_named(name)
    chosen = parse(Details, read_json(out / DETAILS, "details of a fault matrix"), str(out / DETAILS))
    regime = regime_named(run.regime)
    recipe = regime_recipe(chosen, regime)
    busy = EctypeError(
        f"run {run.name} of {out} is being made by a process of an earlier call", "one at a time",
        "wait until it has ended, or end it, and call again",
    )  # fmt: skip
    with lock(run.folder(out).with_suffix(".lock"), busy):
        _make(out, run, regime, recipe)


def _make(out: Path, run: Run, regime: Regime, recipe: Recipe) -> None:
    began = time.monotonic()
    if run.kind == "reference":
        _reference(out, run, recipe)
    elif run.kind == "twin":
        _twin(out, regime, recipe, int(run.of))
    elif run.kind == "noise":
        noise = twins_noise(
            _reference_run(out, regime), _published(out, regime, recipe), range(1, regime.twins + 1),
            reseeded=regime.reseeded,
        )  # fmt: skip
        assert noise.record is not None
        write_noise(_noise_file(out, regime), noise.record)
    else:
        shutil.rmtree(run.folder(out), ignore_errors=True)
        row = _judged(out, run, regime, recipe, began)
        write_json(run.done(out), row.model_dump(mode="json"))
        # A checkpoint for each landmark of each run would fill a gigabyte.
        shutil.rmtree(run.folder(out))
        return
    write_json(run.done(out), Seconds(seconds=time.monotonic() - began).model_dump(mode="json"))


def _reference_run(out: Path, regime: Regime) -> Path:
    return Run(regime.name, "reference").folder(out)


def _noise_file(out: Path, regime: Regime) -> Path:
    return out / regime.name / "noise-record.json"


def _placement(recipe: Recipe, devices: int = 1) -> Placement:
    """All checkpoints are kept: faults go back to older ones, and twins and landmarks need them."""
    every = min((step for step in recipe.landmarks if step), default=recipe.duration_steps)
    overrides = [f"checkpoints={{every_steps: {every}, keep_last: {recipe.duration_steps}}}"]
    if devices > 1:
        overrides += [f"devices={devices}", "mesh={data: -1}"]
    placement = load_placement("cpu-one", overrides)
    prepare_devices(placement)
    return placement


def _reference(out: Path, run: Run, recipe: Recipe) -> None:
    """The run that stands for the published one, with the files that its publisher would give."""
    folder = run.folder(out)
    loop.train_run(recipe, _placement(recipe), folder)
    with (folder / "log.csv").open("w", newline="") as stream:
        writer = csv.DictWriter(stream, _COLUMNS, extrasaction="ignore")
        writer.writeheader()
        writer.writerows({**row, "skipped": int(row["skipped"])} for row in read_rows(folder).values())
    order = _order(recipe)
    batches = [{"step": n + 1, "index": order.batch_ids(n).tolist()} for n in range(recipe.duration_steps)]
    write_json(folder / "batches.json", batches)


def _twin(out: Path, regime: Regime, recipe: Recipe, number: int) -> None:
    folder = twin_folder(RunFolder(_reference_run(out, regime)), number, regime.reseeded).path
    perturb = None if regime.reseeded else twin_perturbation(number)
    loop.train_run(twin_recipe(recipe, number, regime.reseeded), _placement(recipe), folder, perturb=perturb)


def _published(out: Path, regime: Regime, recipe: Recipe) -> Reference:
    """The reference as a reader finds it: weights at landmarks, log, batches, and the bundled held-out text."""
    folder, bundled = _reference_run(out, regime), named_reference(recipe)
    return bundled.model_copy(
        update={
            "name": f"{recipe.name} ({regime.name})",
            "framework": "Ectype",
            "dtype": "float32",
            "landmarks": {s: LandmarkWeights(weights=RunFolder(folder).checkpoint(s)) for s in recipe.landmarks},
            "log": Log(path=folder / "log.csv", **dict(zip(_COLUMNS, _COLUMNS, strict=True))),
            "batches": None if regime.reseeded else folder / "batches.json",
            "noise": None,
        }
    )


def _judged(out: Path, run: Run, regime: Regime, recipe: Recipe, began: float) -> Row:
    """Train with one fault or with none, evaluate, compare and find."""
    folder, fault = run.folder(out), fault_named(run.of) if run.kind == "fault" else None
    number = HONEST_SEED + int(run.of) if fault is None else FAULT_SEED
    devices = HONEST_DEVICES[number % len(HONEST_DEVICES)] if fault is None else 1
    subject = twin_recipe(recipe, number, regime.reseeded)
    perturb = Perturbation(scale=twin_perturbation(1).scale, seed=number) if not (regime.reseeded or fault) else None
    placement = _placement(recipe, devices)
    refused = None
    if fault is not None:
        refused = refused_by(fault, recipe, folder / "refused", _reference_run(out, regime))
    # A step that was compiled before the fault was made would be a sound one.
    loop.jitted_step.cache_clear()
    with ExitStack() as stack:
        stack.callback(loop.jitted_step.cache_clear)
        made = Made(subject) if fault is None else fault.make(subject, folder / "spoiled", stack)
        for stop in (*made.restarts, subject.duration_steps):
            loop.train_run(made.recipe, placement, folder / "run", until=stop, perturb=perturb)
        published = _published(out, regime, recipe)
        evaluate_run(folder / "run", published)
        # Within the block: what was silenced would refuse the fault's files here as well.
        return _row(out, run, regime, subject, made, published, fault, refused, number, devices, began)


def _row(
    out: Path, run: Run, regime: Regime, subject: Recipe, made: Made, published: Reference, fault: Fault | None,
    refused: str | None, seed: int, devices: int, began: float,
) -> Row:  # fmt: skip
    run_dir, recipe = run.folder(out) / "run", made.recipe
    noise = MeasuredNoise(read_noise(_noise_file(out, regime)), False, "twins of the reference")
    verdict, record = compare_run(run_dir, published, noise)
    evaluations = read_evaluations(run_dir, recipe, published, due_landmarks(run_dir, recipe, published)).current
    assert published.log is not None
    differences = difference(read_metrics(run_dir), read_training_log(published.log), recipe.duration_steps)
    said = findings(record.criteria, differences, recipe.duration_steps, _first_other_batch(run_dir, recipe, published))
    said[READ_ONCE] = _audited(run_dir, recipe)
    last = evaluations[max(evaluations)].overall
    catching = tokens_that_catch(evaluations, grounds_of(recipe, published, noise, evaluations, 0))
    over = record.overlay
    return Row(
        name=run.of,
        title=fault.title if fault else f"honest run {run.of}",
        what=_what(fault, subject, made.recipe) if fault else f"{_WORDS[regime.name]}, {devices} devices",
        area=fault.area if fault else "none",
        seed=seed,
        devices=devices,
        verdict=verdict.answer,
        findings=said,
        refused_by=refused,
        weights_differ=None if regime.reseeded else _weights_differ(run_dir, _reference_run(out, regime), recipe),
        reading=_reading(made),
        training_loss_last_quarter=None if over is None else over.mean_last_quarter,
        held_out_loss_last=last.loss.difference,
        kl_last=last.kl_mean,
        repeated_data_warning=over is not None and over.warning is not None,
        tokens_that_catch=catching,
        tokens_estimated=None if catching else tokens_estimated(record.criteria),
        seconds=time.monotonic() - began,
    )


def _what(fault: Fault, sound: Recipe, faulty: Recipe) -> str:
    """What the fault is; where it is another number in the recipe, that number beside the sound one."""
    changes = recipe_differences(sound, faulty)
    return fault.what or "; ".join(f"{field} {new} instead of {old}" for field, (old, new) in changes.items())


def _order(recipe: Recipe) -> Order:
    return open_order(training_index(recipe), recipe.data)


def _audited(run_dir: Path, recipe: Recipe) -> Finding:
    """The audit of what the ledger says was read, by the run's own index and seed."""
    index = training_index(recipe)
    audit = record_audit(run_dir, open_order(index, recipe.data), index, recipe.data)
    if audit.clean:
        return Finding(said="holds")
    return Finding(said="broken", step=min((f.first_step for f in audit.faults), default=audit.steps))


def _reading(made: Made) -> Reading | None:
    """How often the fault's loader would read each window in the updates of one whole pass."""
    if made.order is None:
        return None
    order = _order(made.recipe)
    windows = order.phases[0].windows
    times = times_read(made.order(order), windows, order.steps_per_epoch)
    return Reading(windows=windows, unread=int((times == 0).sum()), read_again=int((times > 1).sum()))


def _first_other_batch(run_dir: Path, recipe: Recipe, published: Reference) -> int | None:
    if published.batches is None:
        return None
    ours, theirs = consumed_digests(run_dir, recipe.data.global_batch_windows) or {}, reference_digests(published)
    return min(
        (step for step in ours if step not in theirs or not np.array_equal(ours[step], theirs[step])), default=None
    )


def _weights_differ(run_dir: Path, reference: Path, recipe: Recipe) -> bool:
    """Whether any weight of both runs' ends differs in any bit."""
    ours, theirs = (
        jax.tree.leaves(load_weights(RunFolder(folder).checkpoint(recipe.duration_steps))[0])
        for folder in (run_dir, reference)
    )
    return not all(np.array_equal(left, right) for left, right in zip(ours, theirs, strict=True))
