"""The training loop: load, step, record, save. Everything it computes lies in `step`; this file only drives it."""

import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from ectype.artifacts import package_path
from ectype.data.index import load_index
from ectype.data.ledger import Ledger
from ectype.data.loader import Batch, open_loader
from ectype.data.rows import process_rows
from ectype.data.tokenindex import TokenIndex
from ectype.errors import EctypeError, Stopped
from ectype.model.parameters import init_parameters
from ectype.progress import Progress, silent
from ectype.recipe.load import recipe_hash
from ectype.recipe.placement import Placement
from ectype.recipe.spec import Recipe
from ectype.train import checkpoint, run_folder
from ectype.train.schedule import learning_rate
from ectype.train.sharding import BATCH_AXES, check_batch, make_mesh, prepare_devices
from ectype.train.state import TrainState, fresh_state, perturbed
from ectype.train.step import DeviceBatch, Metrics, build_train_step
from ectype.weights.load import load_any_weights

Row = dict[str, Any]


@dataclass(frozen=True)
class Result:
    """How a call of `train_run` ended: updates done in all, and the last row of metrics of this session."""

    step: int
    last: Row | None


@dataclass(frozen=True)
class Job:
    """One session's fixed parts."""

    recipe: Recipe
    placement: Placement
    run_dir: Path
    mesh: Mesh
    index: TokenIndex
    rows: np.ndarray
    perturb: tuple[float, int] | None


def train_run(
    recipe: Recipe,
    placement: Placement,
    run_dir: Path,
    *,
    until: int | None = None,
    perturb: tuple[float, int] | None = None,
    allowed: Sequence[str] = (),
    progress: Progress = silent,
    watch: Callable[[Row], None] = lambda row: None,
) -> Result:
    """Train `recipe` into `run_dir` up to `until` updates, resuming from its newest complete checkpoint.

    Args:
        until: stop after this many updates in all, with a checkpoint; None: the recipe's duration.
        perturb: (scale, seed) of a relative change to the step-0 weights; makes a twin.
        allowed: dotted recipe fields that may differ from those the run began with.
        watch: called with each update's row of metrics.

    Raises:
        EctypeError: inputs that do not fit, or a folder that belongs to another run.
        Stopped: SIGTERM or SIGINT came; the state is saved.
    """
    prepare_devices(placement)
    mesh = make_mesh(placement)
    check_batch(recipe.data, mesh, placement)
    end = recipe.duration_steps if until is None else min(until, recipe.duration_steps)
    if recipe.inputs.index is None:
        raise EctypeError("the recipe names no index", "inputs.index", "give --index FILE")
    index = load_index(recipe.inputs.index, recipe.data, recipe.model.vocab_size, progress=progress)
    sharding = NamedSharding(mesh, PartitionSpec(BATCH_AXES))
    job = Job(
        recipe, placement, run_dir, mesh, index, process_rows(sharding, recipe.data.global_batch_windows), perturb
    )
    with run_folder.locked(run_dir):
        run_folder.open_run(run_dir, recipe, placement, index.fingerprint, perturb, allowed)
        saver = checkpoint.Saver(run_dir, recipe, placement.checkpoints)
        try:
            state, start = _begin(job, saver)
            run_folder.record_session(run_dir, start, mesh.size, jax.process_count())
            return _train(job, state, start, end, saver, progress, watch)
        finally:
            saver.close()


def _begin(job: Job, saver: checkpoint.Saver) -> tuple[TrainState, int]:
    """The newest checkpoint's state, or the step-0 weights, saved as landmark 0 where the recipe has one."""
    step = checkpoint.newest_step(job.run_dir)
    if step is not None:
        state, _ = checkpoint.restore(job.run_dir, step, job.recipe, job.mesh)
        return state, step
    state = fresh_state(_initial_weights(job), job.recipe, job.mesh)
    if 0 in job.recipe.landmarks:
        saver.save(state, 0, _meta(job, 0, np.zeros(2, np.uint64)))
    return state, 0


def _initial_weights(job: Job) -> Any:
    recipe = job.recipe
    if recipe.inputs.weights is None:
        params = init_parameters(recipe.model, recipe.model.init_seed, recipe.numerics.parameters)
    else:
        padded = recipe.inputs.padded_rows
        params, _, _ = load_any_weights(
            package_path(recipe.inputs.weights), None if padded is None else package_path(padded), model=recipe.model
        )
    return params if job.perturb is None else perturbed(params, *job.perturb)


def _train(
    job: Job, state: TrainState, start: int, end: int, saver: checkpoint.Saver, progress: Progress,
    watch: Callable[[Row], None],
) -> Result:  # fmt: skip
    step_function = _compiled_step(job.recipe, job.placement, job.mesh)
    ledger = Ledger(job.run_dir, jax.process_index(), jax.process_count())
    ledger.begin(start)
    metrics_file = run_folder.MetricsFile(job.run_dir, start)
    loader = job.placement.loader
    row = None
    with (
        open_loader(
            job.index, job.recipe.data, first_batch=start, end_batch=end, rows=job.rows,
            workers=loader.workers, prefetch=loader.prefetch_batches,
        ) as batches,
        _signals() as stopping,
    ):  # fmt: skip
        for step, batch in zip(range(start + 1, end + 1), batches, strict=False):
            began = time.perf_counter()
            rate = learning_rate(job.recipe.schedule, step)
            state, metrics = step_function(state, _on_devices(batch, job), np.float32(rate))
            row = _row(job, step, rate, metrics, batch, began)
            ledger.append(batch.batch_number, job.rows, batch.window_ids)
            metrics_file.write(row)
            watch(row)
            progress("train", step, end)
            if saver.is_due(step) or step == end or stopping():
                ledger.flush()
                metrics_file.sync()
                saver.save(state, step, _meta(job, step, ledger.digest))
            if stopping() and step < end:
                saver.wait()
                metrics_file.close()
                raise Stopped(f"saved at step {step} of {end} in {job.run_dir}; the same command resumes")
    metrics_file.close()
    return Result(end if row is None else row["step"], row)


@lru_cache(maxsize=4)
def _compiled_step(recipe: Recipe, placement: Placement, mesh: Mesh) -> Callable[..., tuple[TrainState, Metrics]]:
    """The jitted step; a second session of one process, as a twin's, compiles nothing anew."""
    return jax.jit(build_train_step(recipe, placement, mesh), donate_argnums=0)


def _on_devices(batch: Batch, job: Job) -> DeviceBatch:
    """This process's rows as global arrays split over the mesh."""
    place = partial(jax.make_array_from_process_local_data, NamedSharding(job.mesh, PartitionSpec(BATCH_AXES)))
    optional = [None if array is None else place(array) for array in (batch.segment_ids, batch.target_mask)]
    return DeviceBatch(place(batch.tokens), place(batch.keep), *optional)


def _row(job: Job, step: int, rate: float, metrics: Metrics, batch: Batch, began: float) -> Row:
    """One line of metrics; reading them waits for the update to finish."""
    values = {name: value.item() for name, value in asdict(jax.device_get(metrics)).items()}
    seconds = time.perf_counter() - began + batch.wait_seconds
    tokens = job.recipe.data.global_batch_tokens
    return {
        "step": step,
        "loss": values["loss"],
        "z_loss": values["z_loss"],
        "grad_norm": values["grad_norm"],
        "learning_rate": rate,
        "skipped": values["skipped"],
        "loss_tokens": int(values["loss_tokens"]),
        "tokens_seen": step * tokens,
        "step_seconds": seconds,
        "data_wait_seconds": batch.wait_seconds,
        "tokens_per_second": tokens / seconds,
    }


def _meta(job: Job, step: int, ledger_digest: np.ndarray) -> dict[str, Any]:
    return {
        "recipe_hash": recipe_hash(job.recipe),
        "next_batch": step,
        "tokens_seen": step * job.recipe.data.global_batch_tokens,
        "sequence_length_tokens": job.recipe.data.sequence_length_tokens,
        "index_fingerprint": job.index.fingerprint,
        "ledger_digest": [f"{int(word):016x}" for word in ledger_digest],
    }


@contextmanager
def _signals() -> Iterator[Callable[[], bool]]:
    """Within it, SIGTERM and SIGINT ask the loop to save and stop; the yielded call tells whether one came."""
    came: list[int] = []
    old = {
        number: signal.signal(number, lambda number, _: came.append(number))
        for number in (signal.SIGTERM, signal.SIGINT)
    }
    try:
        yield lambda: bool(came)
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)
