"""How a stage begins from another one's checkpoint: what is taken over is planned and recorded, then read."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp

from ectype.data.tokenindex import TokenIndex
from ectype.errors import EctypeError
from ectype.recipe.spec import HandOver, Model, Recipe
from ectype.run.checkpoints import OPTIMIZER_ITEM, find_checkpoint
from ectype.run.manifest import HandOverRecord, read_manifest
from ectype.run.paths import RunFolder
from ectype.train.optimizer import History, OptimizerState, init_optimizer
from ectype.train.state import TrainState, optimizer_tree
from ectype.weights import store
from ectype.weights.checkpoint import (
    damaged,
    differences,
    expected_leaves,
    leaves_of,
    load_weights,
    model_of,
    read_meta,
    refuse_differences,
    refuse_incomplete,
    refuse_other_model,
)

_SWITCHES = ("moments", "adam_count", "schedule", "data_position", "skip_history")
_STORED_PARTS = {
    "moments": ("first_moment", "second_moment"), "adam_count": ("count",), "skip_history": ("history",),
}  # fmt: skip
"""Of the optimiser's item: which of its parts each switch keeps."""
_MAY_CHANGE = ("rope_theta", "yarn")
"""Model fields without weights of their own, which a stage for longer windows changes."""


def plan_hand_over(recipe: Recipe, run_dir: Path, index: TokenIndex) -> HandOverRecord | None:
    """What the run takes over, checked before anything is written; None for a run that begins from its own weights.

    A run that was begun keeps the source that its manifest names, even where that has moved on or is gone.

    Raises:
        EctypeError: no source or an incomplete one, another model beyond its RoPE, or a position that this recipe and
            index do not share.
    """
    switches, given = recipe.hand_over, recipe.inputs.source
    if switches is None:
        if given is not None:
            raise EctypeError(f"inputs.source {given} without hand_over", "both", "add the section hand_over")
        return None
    if RunFolder(run_dir).manifest.is_file():
        return _recorded(run_dir, given)
    if given is None or recipe.inputs.weights is not None:
        found = "no source" if given is None else f"source {given} beside weights {recipe.inputs.weights}"
        raise EctypeError(
            f"recipe {recipe.name} goes on from another run, and {found} is given",
            "the run, or one of its checkpoints", "give --from RUN_OR_CHECKPOINT and no --weights",
        )  # fmt: skip
    path = _find(Path(given), switches)
    meta = read_meta(path)
    step = meta.get("step")
    changed = _changed_fields(path, meta, recipe)
    if step is None and "keep" in (switches.schedule, switches.data_position):
        raise EctypeError(
            f"{path} holds weights without a step", "a run's checkpoint, where schedule or data position are kept",
            "give --reset schedule --reset data_position",
        )  # fmt: skip
    if switches.data_position == "keep":
        _check_position(path, meta, recipe, index)
    refuse_incomplete(path, expected_leaves(model_of(meta, path), meta["dtype"]))
    _check_stored_parts(path, switches)
    first_step = int(step or 0) if switches.data_position == "keep" else 0
    return HandOverRecord(
        given=given,
        source=str(path),
        source_step=step,
        source_recipe_hash=meta.get("recipe_hash"),
        source_ledger_digest=meta.get("ledger_digest"),
        switches=switches,
        changed=changed,
        first_step=first_step,
        schedule_offset_steps=(int(step or 0) if switches.schedule == "keep" else 0) - first_step,
    )


def take_over(record: HandOverRecord, recipe: Recipe, shardings: TrainState) -> TrainState:
    """The state before the stage's first update: weights and what is kept, bit for bit; the rest as at a new start.

    Args:
        shardings: of each leaf of the state; everything is read straight into them.

    Raises:
        EctypeError: the source is not what was recorded, or lacks what is to be kept.
    """
    path = Path(record.source)
    meta = read_meta(path)
    found = (meta.get("step"), meta.get("recipe_hash"), meta.get("ledger_digest"))
    if found != (record.source_step, record.source_recipe_hash, record.source_ledger_digest):
        raise EctypeError(
            f"{path} was written anew since this run began from it", f"the checkpoint of step {record.source_step}",
            "restore it, or begin another run",
        )  # fmt: skip
    model = _with_source_rope(recipe.model, model_of(meta, path))
    params, _ = load_weights(path, shardings=shardings.params, dtype=recipe.numerics.parameters, model=model)
    begin = partial(init_optimizer, optimizer=recipe.optimizer, moments_dtype=recipe.numerics.moments)
    optimizer = jax.jit(begin, out_shardings=shardings.optimizer)(params)
    kept = _read_kept(path, record.switches, optimizer)
    step = jax.jit(lambda: jnp.int32(record.first_step), out_shardings=shardings.step)()
    return TrainState(params, _with_kept(optimizer, kept), step)


def hand_over_table(record: HandOverRecord, recipe: Recipe) -> list[tuple[str, str, str]]:
    """What the stage takes over, for people: part, keep or reset, and what that means here."""
    switches, first = record.switches, record.first_step
    rate = first + record.schedule_offset_steps + 1
    meaning = {
        "moments": ("bit for bit", "zeros"),
        "adam_count": ("as stored", f"{recipe.optimizer.count_starts_at}"),
        "schedule": (f"the next rate is that of update {rate:,}",) * 2,
        "data_position": (f"the next batch is {first:,}",) * 2,
        "skip_history": ("as stored", "empty"),
    }
    step = "of no step" if record.source_step is None else f"of step {record.source_step:,}"
    rows = [("weights", "keep", f"{step}: {record.source}")]
    for name in _SWITCHES:
        choice = getattr(switches, name)
        rows.append((name.replace("_", " "), choice, meaning[name][choice == "reset"]))
    return rows + [(name, "change", words) for name, words in record.changed.items()]


def _recorded(run_dir: Path, given: str | None) -> HandOverRecord | None:
    record = read_manifest(run_dir).hand_over
    if record is not None and given not in (None, record.given, record.source):
        raise EctypeError(
            f"{run_dir} began from {record.source}, and {given} is given", f"{record.given}, or no source",
            "leave --from out, or choose another --run folder",
        )  # fmt: skip
    return record


def _find(given: Path, switches: HandOver) -> Path:
    if (given / "config.json").is_file():
        raise EctypeError(
            f"{given} is a Hugging Face folder", "a run folder or a checkpoint",
            "import it with `ectype weights import`; it holds no optimiser state, so moments and count must be reset",
        )  # fmt: skip
    path = find_checkpoint(given, switches.source_step)
    step = read_meta(path).get("step")
    if None not in (step, switches.source_step) and step != switches.source_step:
        raise EctypeError(
            f"{path} holds step {step}", f"step {switches.source_step}, as the recipe's hand_over.source_step says",
            f"give that checkpoint, or --set hand_over.source_step={step}",
        )  # fmt: skip
    return path


def _changed_fields(path: Path, meta: dict[str, Any], recipe: Recipe) -> dict[str, str]:
    """What of the RoPE and of the element type changes, in words; every other difference of the model is refused."""
    stored = model_of(meta, path)
    refuse_other_model(path, stored, _with_source_rope(recipe.model, stored))
    changed = {
        f"model.{name}": f"{_words(getattr(stored, name))} -> {_words(getattr(recipe.model, name))}"
        for name in _MAY_CHANGE
        if getattr(stored, name) != getattr(recipe.model, name)
    }
    if meta["dtype"] != recipe.numerics.parameters:
        changed["numerics.parameters"] = f"{meta['dtype']} -> {recipe.numerics.parameters}"
    return changed


def _with_source_rope(model: Model, source: Model) -> Model:
    return model.model_copy(update={name: getattr(source, name) for name in _MAY_CHANGE})


def _words(value: Any) -> str:
    if hasattr(value, "model_dump"):
        return ", ".join(f"{name} {part}" for name, part in value.model_dump(exclude_none=True).items())
    return "none" if value is None else f"{value:g}"


def _check_position(path: Path, meta: dict[str, Any], recipe: Recipe, index: TokenIndex) -> None:
    stored, asked = meta.get("data"), recipe.data.model_dump(mode="json")
    if stored != asked:
        fields = [key for key in asked if stored is None or stored.get(key) != asked[key]]
        raise EctypeError(
            f"{path}: its data position, to be kept, is in another order of windows: data.{', data.'.join(fields)}",
            "the very data section of the run that it comes from",
            "use that section, or begin the data anew with --reset data_position",
        )  # fmt: skip
    if not index.continues(str(meta.get("index_fingerprint")), int(meta["step"])):
        raise EctypeError(
            f"{path} was made with index {meta.get('index_fingerprint')}", f"{index.fingerprint}, this stage's",
            "use the index that the run read, or begin the data anew with --reset data_position",
        )  # fmt: skip


def _kept_parts(switches: HandOver) -> tuple[str, ...]:
    return tuple(part for name, parts in _STORED_PARTS.items() if getattr(switches, name) == "keep" for part in parts)


def _check_stored_parts(path: Path, switches: HandOver) -> None:
    parts = _kept_parts(switches)
    item = path / OPTIMIZER_ITEM
    stored = {leaf[0] for leaf in store.read_leaves(item)} if item.is_dir() else set()
    absent = [name for name, needed in _STORED_PARTS.items() if set(needed) & set(parts) - stored]
    if absent:
        raise EctypeError(
            f"{path} holds no {', '.join(name.replace('_', ' ') for name in absent)}, which this stage keeps",
            "a run's checkpoint, with its optimiser's state",
            "begin them anew with " + " ".join(f"--reset {name}" for name in absent),
        )  # fmt: skip
    if parts:
        refuse_differences(path, store.damaged_chunks(item))


def _read_kept(path: Path, switches: HandOver, fresh: OptimizerState) -> dict[str, Any]:
    """The parts that are kept, straight into the shardings of `fresh`; nothing else is read."""
    parts = _kept_parts(switches)
    if not parts:
        return {}
    wanted = {key: leaf for key, leaf in optimizer_tree(fresh, jnp.zeros(())).items() if key in parts}
    item = path / OPTIMIZER_ITEM
    stored = {key: leaf for key, leaf in store.read_leaves(item).items() if key[0] in parts}
    refuse_differences(path, differences(leaves_of(wanted), stored))
    target = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding), wanted)
    arguments = ocp.args.PyTreeRestore(
        item=target, restore_args=ocp.checkpoint_utils.construct_restore_args(target), partial_restore=True
    )
    try:
        with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as checkpointer:
            return checkpointer.restore(item.absolute(), args=arguments)
    except Exception as error:
        raise damaged(path, error, "go on from another one") from error


def _with_kept(fresh: OptimizerState, kept: dict[str, Any]) -> OptimizerState:
    history = {"history": History(**kept["history"])} if "history" in kept else {}
    return replace(fresh, **{key: part for key, part in kept.items() if key != "history"}, **history)
