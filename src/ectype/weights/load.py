"""Weights from whatever the user names: a checkpoint, a run folder, or a Hugging Face folder."""

from pathlib import Path
from typing import Any

from ectype.errors import EctypeError
from ectype.recipe.spec import Model
from ectype.run.checkpoints import find_checkpoint
from ectype.weights.checkpoint import describe, load_weights, model_of
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
