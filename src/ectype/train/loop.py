"""The training loop: load, step, record, save. Everything it computes lies in `step`; this file only drives it."""

import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from ectype.artifacts import package_path
from ectype.data.digest import hexadecimal
from ectype.data.index import load_index
from ectype.data.ledger import Ledger
from ectype.data.loader import Batch, open_loader
from ectype.data.rows import process_rows
from ectype.data.tokenindex import TokenIndex
from ectype.errors import EctypeError, Stopped
from ectype.model.flops import flops_per_token
from ectype.model.parameters import init_parameters
from ectype.progress import Progress, silent
from ectype.recipe.chips import load_chip
from ectype.recipe.load import parse_remap, recipe_hash
from ectype.recipe.placement import Placement
from ectype.recipe.spec import Recipe
from ectype.run.checkpoints import finished_steps, roll_back
from ectype.run.metrics import MetricsFile, Row
from ectype.train import checkpoint, distributed, run_folder
from ectype.train.agreement import agreed_index
from ectype.train.schedule import learning_rate
from ectype.train.sharding import BATCH_AXES, check_batch, make_mesh, prepare_devices
from ectype.train.state import TrainState, fresh_state, perturbed
from ectype.train.step import DeviceBatch, Metrics, build_train_step
from ectype.train.watchdog import Watchdog
from ectype.weights.load import load_any_weights


@dataclass(frozen=True)
class Result:
    """How a call of `train_run` ended: updates done in all, and the last row of metrics of this session."""

    step: int
    last: Row | None


@dataclass(frozen=True)
class Watchers:
    """Who is told of what: bars, each row of metrics, and warnings in words."""

    progress: Progress = silent
    row: Callable[[Row], None] = lambda row: None
    warn: Callable[[str], None] = lambda text: None


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
    watchdog: Watchdog
    watchers: Watchers

    @property
    def batch_sharding(self) -> NamedSharding:
        """Rows of the batch split over all devices."""
        return NamedSharding(self.mesh, PartitionSpec(BATCH_AXES))


def train_run(
    recipe: Recipe,
    placement: Placement,
    run_dir: Path,
    *,
    until: int | None = None,
    from_step: int | None = None,
    perturb: tuple[float, int] | None = None,
    allowed: Sequence[str] = (),
    progress: Progress = silent,
    watch: Callable[[Row], None] = lambda row: None,
    warn: Callable[[str], None] = lambda text: None,
) -> Result:
    """Train `recipe` into `run_dir` up to `until` updates, resuming from its newest complete checkpoint.

    Every process of a job calls it alike; process 0 alone writes the manifest and the metrics.

    Args:
        until: stop after this many updates in all, with a checkpoint; None: the recipe's duration.
        from_step: roll back to the checkpoint of this step first; later ones are archived.
        perturb: (scale, seed) of a relative change to the step-0 weights; makes a twin.
        allowed: dotted recipe fields that may differ from those the run began with.
        watch: called with each update's row of metrics.
        warn: told in words of what was skipped or mended.

    Raises:
        EctypeError: inputs that do not fit, or a folder that belongs to another run.
        Stopped: SIGTERM or SIGINT came; the state is saved.
    """
    prepare_devices(placement)
    mesh = make_mesh(placement)
    check_batch(recipe.data, mesh, placement)
    if recipe.inputs.index is None:
        raise EctypeError("the recipe names no index", "inputs.index", "give --index FILE")
    watchdog = Watchdog(placement.phase_limit_seconds, jax.process_index(), jax.process_count())
    with watchdog.running():
        load = partial(load_index, prefixes=parse_remap(recipe.inputs.remap), progress=progress)
        index = agreed_index(partial(load, recipe.inputs.index, recipe.data, recipe.model.vocab_size))
        rows = process_rows(NamedSharding(mesh, PartitionSpec(BATCH_AXES)), recipe.data.global_batch_windows)
        watchers = Watchers(progress, watch, warn)
        job = Job(recipe, placement, run_dir, mesh, index, rows, perturb, watchdog, watchers)
        with run_folder.locked(run_dir) if jax.process_index() == 0 else nullcontext():
            if jax.process_index() == 0:
                run_folder.open_run(run_dir, recipe, placement, index, perturb, allowed)
                if from_step is not None:
                    roll_back(run_dir, from_step)
            distributed.meet("the run folder is open")
            end = recipe.duration_steps if until is None else min(until, recipe.duration_steps)
            return _session(job, end)


def _session(job: Job, end: int) -> Result:
    """Restore or begin, train to `end`, and finish the saves under way."""
    if job.placement.compilation_cache is not None:
        jax.config.update("jax_compilation_cache_dir", job.placement.compilation_cache)
    saver = checkpoint.Saver(job.run_dir, job.recipe, job.placement.checkpoints)
    try:
        state, start = _begin(job, saver)
        if jax.process_index() == 0:
            run_folder.record_session(job.run_dir, start, job.mesh.size, jax.process_count())
        distributed.meet("the session is recorded")
        with _signals() as stopping:
            result = _train(job, state, start, end, saver, stopping)
        job.watchdog.phase("finishing the last save")
        saver.wait()
        if result.step < end:
            raise Stopped(f"saved at step {result.step} of {end} in {job.run_dir}; the same command resumes")
        return result
    finally:
        saver.close()


def _begin(job: Job, saver: checkpoint.Saver) -> tuple[TrainState, int]:
    """The newest readable checkpoint's state, or the step-0 weights, saved as landmark 0 where the recipe has one."""
    steps = finished_steps(job.run_dir)
    newest = distributed.from_first_process(max(steps, default=None))
    if newest is not None:
        job.watchdog.phase(f"restoring step {newest}")
        state, meta = checkpoint.restore_newest(job.run_dir, steps, job.recipe, job.mesh, job.watchers.warn)
        run_folder.check_description(job.run_dir, meta, job.recipe, job.index)
        return state, meta["step"]
    job.watchdog.phase("loading step-0 weights")
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
    job: Job, state: TrainState, start: int, end: int, saver: checkpoint.Saver, stopping: Callable[[], bool]
) -> Result:
    """Updates `start` + 1 to `end`, or as far as a signal lets it come; the last one is saved."""
    step_function = _compiled_step(job.recipe, job.placement, job.mesh)  # pyright: ignore[reportArgumentType] - frozen
    ledger = Ledger(job.run_dir, jax.process_index(), jax.process_count())
    ledger.begin(start)
    loader, row, step, stall = job.placement.loader, None, start, 0.0
    place = partial(jax.make_array_from_process_local_data, job.batch_sharding)
    flags = {stop: place(np.full(len(job.rows), stop)) for stop in (False, True)}
    with (
        MetricsFile(job.run_dir, start, writes=jax.process_index() == 0) as metrics_file,
        open_loader(
            job.index, job.recipe.data, first_batch=start, end_batch=end, rows=job.rows,
            workers=loader.workers, prefetch=loader.prefetch_batches,
            place=partial(_on_devices, place=place, stop=flags[False]),
        ) as batches,
    ):  # fmt: skip
        for step in range(start + 1, end + 1):
            job.watchdog.phase(f"waiting for the data of step {step}")
            batch = next(batches)
            job.watchdog.phase(f"compiling, then step {step}" if step == start + 1 else f"step {step}")
            began = time.perf_counter()
            rate = learning_rate(job.recipe.schedule, step)
            # The batch came to the devices ahead of time; whether to stop is asked as late as can be.
            placed = replace(batch.placed, stop=flags[stopping()])
            state, metrics = step_function(state, placed, np.float32(rate))
            values = jax.device_get(metrics)
            row = _row(job, step, rate, values, batch, time.perf_counter() - began, stall)
            ledger.append(batch.batch_number, job.rows, batch.window_ids)
            metrics_file.write(row)
            job.watchers.row(row)
            job.watchers.progress("train", step, end)
            stall = 0.0
            if saver.is_due(step) or step == end or values.stop:
                stall = _save(job, saver, state, step, ledger, metrics_file)
            if values.stop:
                break
    return Result(step, row)


def _save(
    job: Job, saver: checkpoint.Saver, state: TrainState, step: int, ledger: Ledger, metrics_file: MetricsFile
) -> float:
    """Start the save of `step` once the records that it counts on are on disk; seconds that the loop stood still."""
    job.watchdog.phase(f"saving step {step}")
    began = time.perf_counter()
    ledger.flush()
    metrics_file.sync()
    saver.save(state, step, _meta(job, step, distributed.sum_over_processes(ledger.digest)))
    return time.perf_counter() - began


@lru_cache(maxsize=4)
def _compiled_step(recipe: Recipe, placement: Placement, mesh: Mesh) -> Callable[..., tuple[TrainState, Metrics]]:
    """The jitted step; a second session of one process, as a twin's, compiles nothing anew."""
    return jax.jit(build_train_step(recipe, placement, mesh), donate_argnums=0)


def _on_devices(batch: Batch, place: Callable[[np.ndarray], jax.Array], stop: jax.Array) -> DeviceBatch:
    """This process's rows as global arrays split over the mesh; the loader's thread calls it ahead of the step."""
    optional = [None if array is None else place(array) for array in (batch.segment_ids, batch.target_mask)]
    return DeviceBatch(place(batch.tokens), place(batch.keep), stop, *optional)


def _row(job: Job, step: int, rate: float, metrics: Metrics, batch: Batch, step_seconds: float, stall: float) -> Row:
    """One line of metrics, of values on the host. `stall` is what the save before this update took from the loop."""
    recipe = job.recipe
    tokens = recipe.data.global_batch_tokens
    seconds = step_seconds + batch.wait_seconds
    per_device = tokens / seconds / job.mesh.size
    exact, causal = (
        flops_per_token(recipe.model, recipe.data.sequence_length_tokens, full_causal=full) * per_device
        for full in (False, True)
    )
    peak = None if job.placement.chip is None else load_chip(job.placement.chip).peak_flops_per_device
    return {
        "step": step,
        "loss": metrics.loss.item(),
        "z_loss": metrics.z_loss.item(),
        "grad_norm": metrics.grad_norm.item(),
        "learning_rate": rate,
        "skipped": metrics.skipped.item(),
        "loss_tokens": int(metrics.loss_tokens),
        "tokens_seen": step * tokens,
        "step_seconds": seconds,
        "data_wait_seconds": batch.wait_seconds,
        "save_stall_seconds": stall,
        "tokens_per_second": tokens / seconds,
        "model_tflops_per_device": exact / 1e12,
        "mfu": None if peak is None else exact / peak,
        "mfu_full_causal": None if peak is None else causal / peak,
    }


def _meta(job: Job, step: int, ledger_digest: np.ndarray) -> dict[str, Any]:
    return {
        "recipe_hash": recipe_hash(job.recipe),
        "sequence_length_tokens": job.recipe.data.sequence_length_tokens,
        "index_fingerprint": job.index.fingerprint,
        "ledger_digest": hexadecimal(ledger_digest),
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
