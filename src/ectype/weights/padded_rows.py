"""Vocabulary rows that the reference trained and a Hugging Face export drops: from a side file, or drawn."""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ectype.errors import EctypeError
from ectype.recipe.spec import Model
from ectype.weights.mapping import VOCABULARY_PATHS, olmo_core_tensors
from ectype.weights.safetensors_files import DTYPES, check_tensors, name_of_dtype, read_header
from ectype.weights.tree import LeafPath


@dataclass(frozen=True)
class PaddedRows:
    """Rows vocab_size.. of the embedding and the head, and where they came from (JSON, for the checkpoint)."""

    rows: dict[LeafPath, np.ndarray]
    origin: dict[str, Any]


def side_file_names(model: Model) -> dict[str, LeafPath]:
    """Tensor names of a side file, which are OLMo-core's, with the leaves they extend."""
    return {name: place.path for name, place in olmo_core_tensors(model).items() if place.path in VOCABULARY_PATHS}


def read_padded_rows(file: Path, model: Model) -> tuple[PaddedRows, int]:
    """The rows in `file`, and the row count of embedding and head with them.

    The file holds `embeddings.weight` and, unless the head is tied, `lm_head.w_out.weight`, each [n, D].
    """
    found, names = read_header(file), side_file_names(model)
    counts = {tensor.shape[0] for tensor in found.values() if tensor.shape}
    count = min(counts, default=0)
    if found and count == 0:
        raise EctypeError(f"{file} holds no rows", "at least one row of embedding and head", "leave the file out")
    check_tensors(file, found, dict.fromkeys(names, (count, model.d_model)), None)
    rows = {path: found[name].read() for name, path in names.items()}
    digests = {name: hashlib.sha256(rows[path].tobytes()).hexdigest() for name, path in names.items()}
    return PaddedRows(rows, {"from": "file", "file": file.name, "sha256": digests}), model.vocab_size + count


def draw_padded_rows(model: Model, seed: int, dtype: str) -> PaddedRows:
    """Draw the rows as the reference's initialiser does: normal, cut at `init_cut` deviations (OLMo-core's
    `InitMethod.normal`). They are not the reference's own rows, and the origin says so.
    """
    generator = np.random.Generator(np.random.PCG64(seed))
    shape = (model.rows - model.vocab_size, model.d_model)
    rows = {}
    for path in side_file_names(model).values():
        drawn = generator.standard_normal(shape)
        while (beyond := np.abs(drawn) > model.init_cut).any():
            drawn[beyond] = generator.standard_normal(int(beyond.sum()))
        rows[path] = (drawn * model.init_std).astype(DTYPES[name_of_dtype(dtype)])
    return PaddedRows(
        rows,
        {"from": "drawn", "seed": seed, "std": model.init_std, "cut_deviations": model.init_cut, "count": shape[0]},
    )
