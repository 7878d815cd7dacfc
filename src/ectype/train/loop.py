"""The training loop: load, step, record, save. Everything it computes lies in `step`; this file only drives it."""

import errno
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import chain
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
from ectype.data.rows import process_rows, recorded_rows
from ectype.data.source import open_order
from ectype.data.tokenindex import TokenIndex
from ectype.errors import EctypeError, Stopped
from ectype.model.parameters import init_parameters
from ectype.progress import Progress, silent
from ectype.recipe.load import parse_remap, recipe_hash
from ectype.recipe.placement import Placement
from ectype.recipe.spec import Recipe, Schedule
from ectype.run.checkpoints import damaged_folders, finished_steps, remove_leftovers, roll_back
from ectype.run.goodput import GoodputLog
from ectype.run.health import End
from ectype.run.heartbeats import remove_heartbeats
from ectype.run.manifest import HandOverRecord, Perturbation, read_manifest
from ectype.run.metrics import MetricsFile, Row, rows_after
from ectype.run.paths import RunFolder
from ectype.stopping import StopSignals
from ectype.train import checkpoint, distributed, run_folder
from ectype.train.agreed_index import agreed_index
from ectype.train.hand_over import plan_hand_over, take_over
from ectype.train.heartbeat import Pulse, end_of
from ectype.train.measurement import open_meter
from ectype.train.profile import ProfiledSteps, Tracer
from ectype.train.schedule import learning_rate, with_known_horizon
from ectype.train.sharding import BATCH_AXES, check_fit, check_memory, make_mesh, prepare_devices
from ectype.train.state import TrainState, fresh_state, perturbed, state_shardings
from ectype.train.step import DeviceBatch, build_train_step
from ectype.train.vitals import open_vitals
from ectype.train.watchdog import Watchdog
from ectype.weights.load import load_any_weights

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@dataclass(frozen=True)
class Result:
    """How a call of `train_run` ended: updates done in all, and the last row of metrics of this session."""

    step: int
    last: Row | None


@dataclass(frozen=True)
class Watchers:
    """Who is told of what: bars, each row of metrics, warnings in words, what a stage takes over."""

    progress: Progress = silent
    watch: Callable[[Row], None] = lambda row: None
    warn: Callable[[str], None] = lambda text: None
    announce: Callable[[HandOverRecord], None] = lambda record: None


@dataclass(frozen=True)
class Job:
    """One session's fixed parts."""

    recipe: Recipe
    placement: Placement
    run_dir: Path
    mesh: Mesh
    index: TokenIndex
    rows: np.ndarray
    perturb: Perturbation | None
    watchdog: Watchdog
    watchers: Watchers
    signals: StopSignals
    goodput: GoodputLog
    hand_over: HandOverRecord | None
    schedule: Schedule
    pulse: Pulse

    @property
    def first_step(self) -> int:
        """Updates that the run counts on from."""
        return 0 if self.hand_over is None else self.hand_over.first_step

    def rate(self, step: int) -> float:
        """Learning rate of update `step`."""
        return learning_rate(self.schedule, step + (self.hand_over.schedule_offset_steps if self.hand_over else 0))

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
    perturb: Perturbation | None = None,
    allowed: Sequence[str] = (),
    profile: ProfiledSteps | None = None,
    progress: Progress = silent,
    watch: Callable[[Row], None] = lambda row: None,
    warn: Callable[[str], None] = lambda text: None,
    announce: Callable[[HandOverRecord], None] = lambda record: None,
) -> Result:
    """Train `recipe` into `run_dir` up to `until` updates, resuming from its newest complete checkpoint.

    Every process of a job calls it alike; process 0 alone writes the manifest and the metrics.

    Args:
        until: stop after this many updates in all, with a checkpoint; None: the recipe's duration.
        from_step: roll back to the checkpoint of this step first; later ones are archived.
        perturb: the change of the step-0 weights that makes a twin.
        allowed: dotted recipe fields that may differ from those the run began with.
        profile: updates to write an XProf trace of.
        watch: called with each update's row of metrics.
        warn: told in words of what was skipped or mended.
        announce: told what a stage takes over from another run, before its first update.

    Raises:
        EctypeError: inputs that do not fit, or a folder that belongs to another run.
        Stopped: SIGTERM or SIGINT came; the state is saved, or nothing was trained yet.
    """
    with StopSignals() as signals, ExitStack() as held:
        with signals.at_once(f"{run_dir} is as it was before"):
            watchers = Watchers(progress, watch, warn, announce)
            job = _open_job(recipe, placement, run_dir, perturb, allowed, from_step, watchers, signals, held)
        end = recipe.duration_steps if until is None else min(until, recipe.duration_steps)
        try:
            return _session(job, end, profile)
        except OSError as error:
            if error.errno in _NO_ROOM:
                what = f"{error.filename or 'a record'}: {error.strerror}"
                raise checkpoint.unwritable(run_dir, what) from error
            raise


def _open_job(
    recipe: Recipe, placement: Placement, run_dir: Path, perturb: Perturbation | None, allowed: Sequence[str],
    from_step: int | None, watchers: Watchers, signals: StopSignals, held: ExitStack,
) -> Job:  # fmt: skip
    """Devices, index and run folder, before anything is trained; `held` keeps the folder locked and watched."""
    prepare_devices(placement)
    mesh = make_mesh(placement)
    check_fit(recipe, mesh, placement)
    if recipe.inputs.index is None:
        raise EctypeError("the recipe names no index", "inputs.index", "give --index FILE")
    first = jax.process_index() == 0
    goodput = GoodputLog(run_dir, writes=first)
    watchdog = Watchdog(placement.phase_limit_seconds, jax.process_index(), jax.process_count())
    held.enter_context(watchdog.running())
    run_folder.check_recipe(run_dir, recipe, allowed)
    load = partial(load_index, prefixes=parse_remap(recipe.inputs.remap), progress=watchers.progress)
    index = agreed_index(partial(load, recipe.inputs.index, recipe.data, recipe.model.vocab_size))
    check_memory(recipe, placement)
    rows = process_rows(NamedSharding(mesh, PartitionSpec(BATCH_AXES)), recipe.data.global_batch_windows)
    if first:
        held.enter_context(run_folder.locked(run_dir))
        hand_over = plan_hand_over(recipe, run_dir, index)
        run_folder.open_run(run_dir, recipe, placement, index, perturb, allowed, hand_over)
        for path in remove_leftovers(run_dir):
            watchers.warn(f"deleted what a killed save had left: {path}")
        if from_step is not None:
            roll_back(run_dir, from_step)
        remove_heartbeats(run_dir)
    distributed.meet("the run folder is open")
    pulse = Pulse(run_dir, watchdog, placement.health, jax.process_index(), jax.process_count())
    held.enter_context(pulse.beating())
    hand_over, schedule = read_manifest(run_dir).hand_over, recipe.schedule
    if schedule.horizon_steps == "epoch":
        schedule = with_known_horizon(schedule, open_order(index, recipe.data).steps_per_epoch)
    return Job(
        recipe, placement, run_dir, mesh, index, rows, perturb, watchdog, watchers, signals, goodput, hand_over,
        schedule, pulse,
    )  # fmt: skip


def _session(job: Job, end: int, profile: ProfiledSteps | None) -> Result:
    """Restore or begin, train to `end`, and finish the saves under way."""
    _use_compilation_cache(job.placement)
    start_seconds, began = job.goodput.age_seconds, time.perf_counter()
    with checkpoint.Saver(job.run_dir, job.recipe, job.placement.checkpoints) as saver:
        with job.signals.at_once(f"{job.run_dir} is as it was before"):
            state, start = _begin(job)
        if profile is not None:
            profile.check(start, end)
        if jax.process_index() == 0:
            processes = jax.process_count()
            what = (job.run_dir, job.recipe, job.placement, job.index)
            run_folder.record_session(*what, start, job.mesh.size, processes)
        job.goodput.begin(start)
        job.goodput.add("start", start_seconds)
        job.goodput.add("restore", time.perf_counter() - began)
        distributed.meet("the session is recorded")
        ended: End = "failed"
        try:
            if start == job.first_step and start in job.recipe.landmarks:
                with job.goodput.spending("save_stall"):
                    saver.save(state, start, _meta(job, start, np.zeros(2, np.uint64)))
            result = _train(job, state, start, end, saver, Tracer(RunFolder(job.run_dir).profile, profile))
            job.watchdog.phase("finishing the last save")
            with job.goodput.spending("save_stall"):
                saver.wait()
            ended = "done" if result.step == end else "stopped"
        except BaseException as fault:
            ended = end_of(fault)
            raise
        finally:
            job.goodput.end(ended)
    if result.step < end:
        raise Stopped(f"saved at step {result.step} of {end} in {job.run_dir}; the same command resumes")
    return result


def _use_compilation_cache(placement: Placement) -> None:
    if placement.compilation_cache is not None:
        jax.config.update("jax_compilation_cache_dir", placement.compilation_cache)
        # By default only what took a second to compile is kept; a start also compiles much that takes less.
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)


def _begin(job: Job) -> tuple[TrainState, int]:
    """The newest readable checkpoint's state and step, or the step-0 weights of a run that has no checkpoint."""
    steps, damaged = finished_steps(job.run_dir), damaged_folders(job.run_dir)
    for path in damaged:
        job.watchers.warn(f"skipped a damaged checkpoint: {path} is not complete")
    newest = distributed.from_first_process(max(steps, default=None))
    if newest is not None:
        job.watchdog.phase(f"restoring step {newest}")
        state, meta = checkpoint.restore_newest(
            job.run_dir, steps, job.recipe, job.mesh, job.watchers.warn, job.placement.moments_memory
        )
        run_folder.check_description(job.run_dir, meta, job.recipe, job.index)
        return state, meta["step"]
    if damaged:
        raise checkpoint.none_readable(job.run_dir, [path.name for path in damaged])
    if job.hand_over is not None:
        return _taken_over(job, job.hand_over), job.first_step
    job.watchdog.phase("loading step-0 weights")
    return fresh_state(initial_weights(job), job.recipe, job.mesh, job.placement.moments_memory), 0


def _taken_over(job: Job, record: HandOverRecord) -> TrainState:
    """The state with which a stage begins that goes on from another run."""
    job.watchdog.phase(f"taking over {record.source}")
    if jax.process_index() == 0:
        job.watchers.announce(record)
    state = take_over(record, job.recipe, state_shardings(job.recipe, job.mesh, job.placement.moments_memory))
    return state if job.perturb is None else replace(state, params=perturbed(state.params, job.perturb))


def initial_weights(job: Job) -> Any:
    """The step-0 weights of a run that begins anew: imported or drawn, and a twin's changed."""
    recipe = job.recipe
    if recipe.inputs.weights is None:
        params = init_parameters(recipe.model, recipe.model.init_seed, recipe.numerics.parameters)
    else:
        padded = recipe.inputs.padded_rows
        params, _, _ = load_any_weights(
            package_path(recipe.inputs.weights), None if padded is None else package_path(padded), model=recipe.model
        )
    return params if job.perturb is None else perturbed(params, job.perturb)


def _train(job: Job, state: TrainState, start: int, end: int, saver: checkpoint.Saver, tracer: Tracer) -> Result:
    """Updates `start` + 1 to `end`, or as far as a signal lets it come; the last one is saved."""
    if start >= end:
        return Result(start, None)
    ledger = Ledger(job.run_dir, jax.process_index(), jax.process_count())
    ledger.begin(start)
    windows = job.recipe.data.global_batch_windows
    recorded = np.isin(job.rows, recorded_rows(job.batch_sharding, windows, jax.process_index()))
    _record_lost(job, start)
    loader, row, step, stall = job.placement.loader, None, start, 0.0
    meter = open_meter(job.recipe, job.placement, job.mesh.size)
    place = partial(jax.make_array_from_process_local_data, job.batch_sharding)
    flags = {stop: place(np.full(len(job.rows), stop)) for stop in (False, True)}
    with (
        MetricsFile(job.run_dir, start, writes=jax.process_index() == 0) as metrics_file,
        closing(tracer),
        open_loader(
            job.index, job.recipe.data, first_batch=start, end_batch=end, rows=job.rows,
            workers=loader.workers, prefetch=loader.prefetch_batches,
            place=partial(on_devices, place=place, stop=flags[False]),
        ) as batches,
    ):  # fmt: skip
        first, step_function = _first_batch_and_program(job, state, batches, saver)
        vitals = open_vitals(job.run_dir, job.recipe, job.placement, job.mesh, job.pulse, start, job.watchers.warn)
        for step, batch in enumerate(chain([first], batches), start + 1):
            job.watchdog.phase(f"step {step}", "update")
            tracer.before(step)
            began = time.perf_counter()
            rate = job.rate(step)
            # The batch came to the devices ahead of time; whether to stop is asked as late as can be.
            placed = replace(batch.placed, stop=flags[job.signals.asked])
            state, metrics = step_function(state, placed, np.float32(rate))
            values = jax.device_get(metrics)
            row = meter.row(step, rate, values, batch, time.perf_counter() - began, stall)
            tracer.after(step)
            ledger.append(batch.batch_number, job.rows[recorded], batch.window_ids[recorded])
            metrics_file.write(row)
            job.goodput.updated(row["step_seconds"])
            job.watchers.watch(row)
            job.watchers.progress("train", step, end)
            vitals.updated(row, began)
            stall = 0.0
            if saver.is_due(step) or step == end or values.stop:
                stall = _save(job, saver, state, step, ledger, metrics_file)
            else:
                saver.check()
            if values.stop:
                break
            job.watchdog.phase(f"waiting for the data of step {step + 1}", "data")
    return Result(step, row)


def _record_lost(job: Job, start: int) -> None:
    """Seconds of the updates after `start` that an earlier session took and whose state was never saved."""
    lost = [row for row in rows_after(job.run_dir, start) if "step_seconds" in row]
    if lost:
        job.goodput.lost(sum(row["step_seconds"] for row in lost), len(lost))


def _first_batch_and_program(
    job: Job, state: TrainState, batches: Iterator[Batch], saver: checkpoint.Saver
) -> tuple[Batch, Callable[..., Any]]:
    """What the first update needs; the step is compiled apart from its first call, and so kept out of its time.

    Nothing was trained yet, so a signal ends the session at once.
    """
    words = f"before the first update of this session; {job.run_dir} loses nothing"
    with job.signals.at_once(words, finish=saver.wait):
        job.watchdog.phase("waiting for the first batch")
        batch = next(batches)
        job.watchdog.phase("compiling")
        step_function = jitted_step(job.recipe, job.placement, job.mesh)  # pyright: ignore[reportArgumentType] - frozen
        with job.goodput.spending("compile"):
            step_function.lower(state, batch.placed, np.float32(0)).compile()
    return batch, step_function


def _save(
    job: Job, saver: checkpoint.Saver, state: TrainState, step: int, ledger: Ledger, metrics_file: MetricsFile
) -> float:
    """Start the save of `step` once the records that it counts on are on disk; seconds that the loop stood still."""
    job.watchdog.phase(f"saving step {step}")
    began = time.perf_counter()
    ledger.flush()
    metrics_file.sync()
    saver.save(state, step, _meta(job, step, distributed.sum_over_processes(ledger.digest)))
    seconds = time.perf_counter() - began
    job.goodput.add("save_stall", seconds)
    return seconds


@lru_cache(maxsize=4)
def jitted_step(recipe: Recipe, placement: Placement, mesh: Mesh) -> Any:
    """The jitted step; a second session of one process, as a twin's, compiles nothing anew."""
    return jax.jit(build_train_step(recipe, placement, mesh), donate_argnums=0)


def on_devices(batch: Batch, place: Callable[[np.ndarray], jax.Array], stop: jax.Array) -> DeviceBatch:
    """This process's rows as global arrays split over the mesh; the loader's thread calls it ahead of the step."""
    optional = [None if array is None else place(array) for array in (batch.segment_ids, batch.target_mask)]
    return DeviceBatch(place(batch.tokens), place(batch.keep), stop, *optional)


def _meta(job: Job, step: int, ledger_digest: np.ndarray) -> dict[str, Any]:
    return {
        "recipe_hash": recipe_hash(job.recipe),
        "sequence_length_tokens": job.recipe.data.sequence_length_tokens,
        "data": job.recipe.data.model_dump(mode="json"),
        "index_fingerprint": job.index.fingerprint,
        "ledger_digest": hexadecimal(ledger_digest),
    }
