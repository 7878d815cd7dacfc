"""Run checkpoints: weights, optimiser state and description, saved in the background, restored strictly.

A directory `checkpoints/<step>` exists only when it is complete: Orbax writes beside it and renames at the end.
"""

import shutil
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from jax.sharding import Mesh

from ectype.errors import DamagedCheckpointError, EctypeError, Stopped
from ectype.recipe.placement import Checkpoints, MomentsMemory
from ectype.recipe.spec import Recipe
from ectype.run.checkpoints import META_ITEM, OPTIMIZER_ITEM, WEIGHTS_ITEM, delete, finished_steps
from ectype.run.paths import RunFolder
from ectype.train import snapshot
from ectype.train.optimizer import init_optimizer
from ectype.train.state import TrainState, from_optimizer_tree, optimizer_tree, state_shardings
from ectype.weights import store
from ectype.weights.checkpoint import (
    damaged,
    describe,
    differences,
    leaves_of,
    load_weights,
    read_meta,
    refuse_differences,
    save_arguments,
)

Tree = Any


class Saver:
    """Writes a run's checkpoints in the background, one at a time, and keeps those that its policy names."""

    def __init__(self, run_dir: Path, recipe: Recipe, policy: Checkpoints) -> None:
        self._run_dir = run_dir
        self._recipe, self._policy = recipe, policy
        self._checkpointer = ocp.AsyncCheckpointer(ocp.CompositeCheckpointHandler())
        self._background = ThreadPoolExecutor(1, "ectype-save")
        self._begun: Future[None] | None = None
        self._spare: Any = None

    def is_due(self, step: int) -> bool:
        """Whether the state after `step` updates is to be kept: a landmark, the cadence, or the end."""
        recipe = self._recipe
        return step in recipe.landmarks or step % self._policy.every_steps == 0 or step == recipe.duration_steps

    def save(self, state: TrainState, step: int, meta: dict[str, Any]) -> None:
        """Copy the state and write it in the background; waits for the previous save first.

        Raises:
            EctypeError: the previous save failed.
        """
        self.wait()
        path = RunFolder(self._run_dir).checkpoint(step)
        if path.exists():
            return
        description = describe(self._recipe.model, self._recipe.numerics.parameters, kind="run", step=step, **meta)
        parts = {WEIGHTS_ITEM: state.params, OPTIMIZER_ITEM: optimizer_tree(state.optimizer, state.step)}
        with self._named_failures():
            if snapshot.can_copy(parts):
                # Orbax takes the state apart on the calling thread, which takes longer than to copy it.
                self._spare = snapshot.take(parts, self._spare)
                self._begun = self._background.submit(self._begin, path, self._spare, description)
            else:
                self._begin(path, parts, description)

    def _begin(self, path: Path, parts: Tree, description: dict[str, Any]) -> None:
        items: dict[str, Any] = {
            name: ocp.args.StandardSave(part, save_args=save_arguments(part)) for name, part in parts.items()
        }
        items[META_ITEM] = ocp.args.JsonSave(description)
        self._checkpointer.save(path.absolute(), args=ocp.args.Composite(**items))

    def check(self) -> None:
        """Raise EctypeError when the save in the background has already failed; never waits."""
        with self._named_failures():
            if self._begun is not None and self._begun.done():
                self._begun.result()
            self._checkpointer.check_for_errors()

    def wait(self) -> None:
        """Wait for the save under way, then delete what the policy no longer keeps.

        Raises:
            EctypeError: it failed.
        """
        with self._named_failures():
            if self._begun is not None:
                begun, self._begun = self._begun, None
                begun.result()
            self._checkpointer.wait_until_finished()
        if jax.process_index() == 0:
            self._retain()

    def __enter__(self) -> "Saver":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Finish the save under way and end the background threads. An error that is on its way out goes first."""
        try:
            self.wait()
        except EctypeError:
            if kind is None or issubclass(kind, Stopped):
                raise
        finally:
            self._background.shutdown()
            self._checkpointer.close()

    @contextmanager
    def _named_failures(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            raise unwritable(self._run_dir, f"a checkpoint could not be written: {error}") from error

    def _retain(self) -> None:
        steps = finished_steps(self._run_dir)
        for step in steps[: -self._policy.keep_last]:
            permanent = self._policy.permanent_every_steps
            if step not in self._recipe.landmarks and not (permanent and step % permanent == 0):
                delete(self._run_dir, step)


def unwritable(run_dir: Path, what: str) -> EctypeError:
    """The error of a run whose folder takes no more data: what failed, where, and how much room there is."""
    free = shutil.disk_usage(run_dir).free
    return EctypeError(
        f"{what}; {run_dir} has {free:,} bytes free", "a writable run folder with room for another checkpoint",
        "free space, then run the same command: the last complete checkpoint is intact",
    )  # fmt: skip


def restore(
    run_dir: Path, step: int, recipe: Recipe, mesh: Mesh, moments_memory: MomentsMemory = "device"
) -> tuple[TrainState, dict[str, Any]]:
    """The state after `step` updates, laid out on `mesh` whatever mesh wrote it, and its description.

    Raises:
        EctypeError: any leaf missing, extra, of another shape or element type, or a step that is not the folder's.
    """
    path = RunFolder(run_dir).checkpoint(step)
    meta = read_meta(path)
    shardings = state_shardings(recipe, mesh, moments_memory)
    params, _ = load_weights(path, shardings=shardings.params, model=recipe.model)
    found = {leaf.dtype for leaf in jax.tree.leaves(params)}
    if found != {np.dtype(recipe.numerics.parameters)}:
        raise EctypeError(
            f"{path}: weights of dtype {', '.join(map(str, found))}", recipe.numerics.parameters,
            "resume under the recipe that wrote this checkpoint",
        )  # fmt: skip
    abstract = jax.eval_shape(
        lambda: optimizer_tree(
            init_optimizer(params, recipe.optimizer, recipe.numerics.moments), jax.numpy.zeros((), "int32")
        )
    )
    refuse_differences(path, differences(leaves_of(abstract), store.read_leaves(path / OPTIMIZER_ITEM)))
    target = jax.tree.map(
        lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding),
        abstract, optimizer_tree(shardings.optimizer, shardings.step),
    )  # fmt: skip
    try:
        with ocp.StandardCheckpointer() as checkpointer:
            stored = checkpointer.restore((path / OPTIMIZER_ITEM).absolute(), target)
    except Exception as error:
        raise damaged(path, error, "move it away to resume from an older one") from error
    optimizer, stored_step = from_optimizer_tree(stored)
    if not int(stored_step) == meta.get("step") == step:
        raise EctypeError(
            f"{path}: holds step {int(stored_step)}, described as {meta.get('step')}", f"step {step} as its name says",
            "the folder was renamed or changed: move it away",
        )  # fmt: skip
    return TrainState(params, optimizer, stored_step), meta


def restore_newest(
    run_dir: Path,
    steps: Sequence[int],
    recipe: Recipe,
    mesh: Mesh,
    warn: Callable[[str], None],
    moments_memory: MomentsMemory = "device",
) -> tuple[TrainState, dict[str, Any]]:
    """State and description of the newest of `steps` that can be read in full; `warn` names each one that can't.

    Raises:
        EctypeError: none can be read. A run with checkpoints is never begun anew.
    """
    for step in sorted(steps, reverse=True):
        try:
            return restore(run_dir, step, recipe, mesh, moments_memory)
        except DamagedCheckpointError as error:
            warn(f"skipped a damaged checkpoint: {error.found}")
    raise none_readable(run_dir, sorted(steps))


def none_readable(run_dir: Path, found: Sequence[Any]) -> EctypeError:
    """The error of a run that has checkpoints, of which none can be read: it is never begun anew."""
    return EctypeError(
        f"{run_dir}: none of its checkpoints can be read: {', '.join(map(str, found))}", "at least one that is whole",
        "restore the folder from a copy, or begin anew in another --run folder",
    )  # fmt: skip
