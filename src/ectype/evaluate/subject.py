"""The weights to measure, from whatever the user names, placed on the devices, and what is known of their text."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax

from ectype.artifacts import read_json
from ectype.errors import EctypeError
from ectype.evaluate.devices import weight_shardings
from ectype.recipe.spec import Model
from ectype.run.checkpoints import find_checkpoint
from ectype.weights.checkpoint import load_weights, model_of, read_meta
from ectype.weights.load import load_any_weights

Tree = dict[str, Any]


@dataclass(frozen=True)
class Subject:
    """Weights on the devices and what they say of themselves."""

    path: Path
    """The checkpoint, or the Hugging Face folder."""
    params: Tree
    model: Model
    step: int | None
    max_length: int | None
    """The longest input that they were made for, in tokens; None where nothing says it."""
    end_of_text_id: int | None
    """The id that ends a document; None where nothing says it."""


def load_subject(
    path: Path,
    *,
    step: int | None = None,
    padded_rows: Path | None = None,
    split_weights: bool = False,
    devices: int | None = None,
) -> Subject:
    """Load weights in their stored element type.

    Args:
        path: a checkpoint, a run folder (its newest checkpoint, or `step`), or a Hugging Face folder.
        padded_rows: for a Hugging Face folder, the side file with vocabulary rows that it lacks.
        split_weights: spread them over the devices instead of keeping a copy on each.
        devices: the first so many of this process's devices; None: all.
    """
    if (path / "config.json").is_file():
        params, model, meta = load_any_weights(path, padded_rows)
        params = jax.device_put(params, weight_shardings(model, split_weights, devices))
        return Subject(path, params, model, None, *_of_text(read_json(path / "config.json", "configuration"), meta))
    checkpoint = find_checkpoint(path, step)
    meta = read_meta(checkpoint)
    model = model_of(meta, checkpoint)
    params, _ = load_weights(checkpoint, shardings=weight_shardings(model, split_weights, devices))
    config = (meta.get("source") or {}).get("config") or {}
    return Subject(checkpoint, params, model, meta.get("step"), *_of_text(config, meta))


def _of_text(config: dict[str, Any], meta: dict[str, Any]) -> tuple[int | None, int | None]:
    """Longest input and end-of-text id by a Hugging Face configuration, else by the recipe that trained."""
    length = config.get("max_position_embeddings") or meta.get("sequence_length_tokens")
    end = config.get("eos_token_id", (meta.get("data") or {}).get("eos_id"))
    return length, end[0] if isinstance(end, list) else end


def require_length(subject: Subject, asked: int | None) -> int:
    """`asked`, else the subject's own longest input.

    Raises:
        EctypeError: neither is known.
    """
    length = asked or subject.max_length
    if length is None:
        raise EctypeError(
            f"{subject.path} does not say how long its inputs may be", "the longest input in tokens",
            "give max_length (--max-length)",
        )  # fmt: skip
    return length
