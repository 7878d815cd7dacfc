"""Weights from whatever the user names: a checkpoint, a run folder, or a Hugging Face folder."""

from pathlib import Path
from typing import Any

from ectype.errors import EctypeError
from ectype.recipe.spec import Model
from ectype.weights.checkpoint import META_ITEM, describe, load_weights, model_of
from ectype.weights.hf_source import load_source, open_source
from ectype.weights.tree import Tree


def load_any_weights(
    path: Path, padded_rows: Path | None = None, *, step: int | None = None, model: Model | None = None
) -> tuple[Tree, Model, dict[str, Any]]:
    """The parameter tree, its model and its description, in the stored element type.

    Args:
        path: an Ectype checkpoint, a run folder (its newest finished checkpoint, or `step`), or a Hugging Face folder.
        padded_rows: for a Hugging Face folder, the side file with the rows it lacks.
        step: for a run folder, the step to load.
        model: what the caller runs; the weights must be of this very model, and take its layer layout.
    """
    if (path / "config.json").is_file():
        source = open_source(path, padded_rows=padded_rows, model=model)
        meta = describe(
            source.model, source.dtype, kind="weights", source={"kind": "hugging face", "folder": path.name}
        )
        return load_source(source), source.model, meta
    if padded_rows is not None:
        raise EctypeError(
            f"padded rows {padded_rows} for {path}, which is no Hugging Face folder",
            "a checkpoint holds all its rows already", "leave padded_rows out",
        )  # fmt: skip
    checkpoint = find_checkpoint(path, step)
    params, meta = load_weights(checkpoint, model=model)
    return params, model_of(meta, checkpoint), meta


def find_checkpoint(path: Path, step: int | None = None) -> Path:
    """`path` itself when it is a checkpoint, else the newest finished one of a run folder, or that of `step`."""
    if (path / META_ITEM).is_dir():
        return path
    found = {
        int(child.name): child
        for child in (path / "checkpoints").glob("[0-9]*")
        if child.name.isdigit() and (child / META_ITEM).is_dir()
    }
    if not found or (step is not None and step not in found):
        raise EctypeError(
            f"{path} holds no {'checkpoint' if step is None else f'checkpoint of step {step}'}",
            "an Ectype checkpoint, a run folder with checkpoints/, or a Hugging Face folder with config.json",
            f"steps found: {sorted(found)}" if found else "check the path",
        )  # fmt: skip
    return found[max(found) if step is None else step]
