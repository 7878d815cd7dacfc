"""The checkpoint directory: item `weights` (the parameter tree) and item `ectype` (what it is), restored strictly."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp

from ectype.artifacts import read_json
from ectype.errors import DamagedCheckpointError, EctypeError, first_of
from ectype.model.parameters import parameter_shapes
from ectype.recipe.parse import parse
from ectype.recipe.spec import Model
from ectype.run.checkpoints import WEIGHTS_ITEM, description_file
from ectype.weights import store, tree
from ectype.weights.store import Leaf
from ectype.weights.tree import LeafPath, Tree

FORMAT = 1
_DTYPES = ("float32", "bfloat16", "float16")


def layer_layout(model: Model) -> dict[str, Any]:
    """How layers are stacked: the repeating pattern, whole blocks of it, and layers left over."""
    blocks, rest = divmod(model.n_layers, len(model.window_pattern))
    return {"pattern": list(model.window_pattern), "blocks": blocks, "rest": rest}


def describe(model: Model, dtype: str, **more: Any) -> dict[str, Any]:
    """The `ectype` item of a checkpoint of `model` whose weights are stored as `dtype`; `more` must be JSON."""
    return {
        "format": FORMAT, "model": model.model_dump(mode="json"), "layout": layer_layout(model), "dtype": dtype, **more,
    }  # fmt: skip


def expected_leaves(model: Model, dtype: Any) -> dict[LeafPath, Leaf]:
    """Every leaf that a checkpoint of `model` holds."""
    return {path: Leaf(tuple(shape), np.dtype(dtype)) for path, shape in tree.flatten(parameter_shapes(model)).items()}


def save_arguments(params: Tree) -> Tree:
    """Orbax save arguments that bound each stored chunk, so that slices can later be read without the whole leaf."""
    chunked = ocp.SaveArgs(chunk_byte_size=store.TARGET_CHUNK_BYTES, shard_axes=(0,))
    return jax.tree.map(lambda leaf: chunked if leaf.ndim else ocp.SaveArgs(), params)


def read_meta(path: Path) -> dict[str, Any]:
    """The `ectype` item of a finished checkpoint."""
    try:
        meta = read_json(description_file(path), "Ectype checkpoint")
    except EctypeError as error:
        raise DamagedCheckpointError(error.found, error.expected, error.mend) from None
    found = meta.get("format") if isinstance(meta, dict) else None
    if found != FORMAT:
        raise EctypeError(
            f"{path}: checkpoint format {found!r}", f"format {FORMAT}", "read it with the Ectype that wrote it"
        )
    if meta.get("dtype") not in _DTYPES:
        raise DamagedCheckpointError(
            f"{path}: weights of dtype {meta.get('dtype')!r}", f"one of {', '.join(_DTYPES)}",
            "its description is damaged: use another checkpoint",
        )  # fmt: skip
    return meta


def model_of(meta: Mapping[str, Any], source: Path) -> Model:
    """The model that `meta` describes, its layer layout checked against it."""
    model = parse(
        Model, meta.get("model"), f"{source}: its model section", expected="a model section of this version",
        mend="write the checkpoint anew",
    )  # fmt: skip
    if meta.get("layout") != layer_layout(model):
        raise EctypeError(
            f"{source}: layers are laid out as {meta.get('layout')}",
            f"{layer_layout(model)}, as its model section says",
            "the checkpoint's description was changed after it was written: use another checkpoint",
        )  # fmt: skip
    return model


def load_weights(
    path: Path, *, shardings: Any = None, dtype: str | None = None, model: Model | None = None
) -> tuple[Tree, dict[str, Any]]:
    """Restore the parameter tree of a checkpoint: all of it, exactly as described, or an error.

    Args:
        path: checkpoint directory.
        shardings: tree of shardings, or one for all leaves; arrays are restored straight into them. None: the default
            device.
        dtype: element type to cast to on reading; None keeps the stored one.
        model: what the caller runs. Its sizes and layer layout must be those of the checkpoint.

    Returns:
        The tree of JAX arrays, and the `ectype` item.

    Raises:
        EctypeError: listing every leaf that is missing, extra, or of another shape or element type than described.
    """
    meta = read_meta(path)
    stored_model = model_of(meta, path)
    if model is not None:
        refuse_other_model(path, stored_model, model)
    expected = expected_leaves(stored_model, meta["dtype"])
    refuse_incomplete(path, expected)
    if shardings is None:
        shardings = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    placed = tree.flatten(shardings) if isinstance(shardings, Mapping) else dict.fromkeys(expected, shardings)
    target = {
        key: jax.ShapeDtypeStruct(leaf.shape, dtype or leaf.dtype, sharding=placed[key])
        for key, leaf in expected.items()
    }
    try:
        with ocp.StandardCheckpointer() as checkpointer:
            params = checkpointer.restore((path / WEIGHTS_ITEM).absolute(), tree.unflatten(target))
    except Exception as error:
        raise damaged(path, error, "write or fetch it anew") from error
    return params, meta


def damaged(path: Path, error: Exception, mend: str) -> DamagedCheckpointError:
    """What a failed restore means: of a damaged or missing chunk Orbax says so by a bare Exception."""
    return DamagedCheckpointError(
        f"{path}: {str(error).strip().splitlines()[-1]}", "every chunk of every array, in full",
        f"the checkpoint is damaged: {mend}",
    )  # fmt: skip


def leaves_of(arrays: Tree) -> dict[LeafPath, Leaf]:
    """Shape and element type of each leaf of a tree of arrays, abstract ones included."""
    return {path: Leaf(leaf.shape, np.dtype(leaf.dtype)) for path, leaf in tree.flatten(arrays).items()}


def differences(expected: Mapping[LeafPath, Leaf], found: Mapping[LeafPath, Leaf]) -> list[str]:
    """One line per leaf that is missing, extra, or of another shape or element type; empty when all agree."""
    lines = []
    for path in sorted(expected.keys() | found.keys()):
        name, left, right = tree.dotted(path), expected.get(path), found.get(path)
        if right is None and left is not None:
            lines.append(f"{name} {list(left.shape)} is missing")
        elif left is None and right is not None:
            lines.append(f"{name} {list(right.shape)} is extra")
        elif left is not None and right is not None and left.shape != right.shape:
            lines.append(f"{name} has shape {list(right.shape)}, not {list(left.shape)}")
        elif left is not None and right is not None and left.dtype != right.dtype:
            lines.append(f"{name} has dtype {right.dtype.name}, not {left.dtype.name}")
    return lines


def refuse_incomplete(path: Path, expected: Mapping[LeafPath, Leaf]) -> None:
    """Refuse a checkpoint whose stored weights are not the expected leaves, each with all of its chunks."""
    refuse_differences(path, differences(expected, store.read_leaves(path / WEIGHTS_ITEM)))
    refuse_differences(path, store.damaged_chunks(path / WEIGHTS_ITEM))


def refuse_differences(source: Path, lines: list[str]) -> None:
    """Raise with the first of `lines`; nothing when there is none."""
    if lines:
        raise EctypeError(
            f"{source}: {first_of(lines)}", "the whole tree as described, nothing else",
            "a partial restore is never made: use a checkpoint of this very model",
        )  # fmt: skip


def refuse_other_model(source: Path, stored: Model, asked: Model) -> None:
    """Raise when `asked` computes something else than `stored`, or lays out its layers otherwise."""
    fields = [name for name in Model.model_fields if not name.startswith("init_") and name != "trained_rows"]
    lines = [
        f"{name} is {getattr(stored, name)}, not {getattr(asked, name)}"
        for name in (*fields, "rows")
        if getattr(stored, name) != getattr(asked, name)
    ]
    if lines:
        other = "use the recipe that made this checkpoint, or another checkpoint"
        short = len(lines) == 1 and stored.rows < asked.rows
        raise EctypeError(
            f"{source}: " + "; ".join(lines), "weights of the very model that the recipe describes",
            "a Hugging Face export drops rows that no id uses: import it again with --padded-rows FILE, or with "
            f"--trained-rows {asked.rows}, which draws them anew; else {other}" if short else other,
        )  # fmt: skip
