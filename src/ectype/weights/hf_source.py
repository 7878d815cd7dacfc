"""A Hugging Face folder as a parameter tree: checked in full, nothing read until asked, any slice alone."""

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ectype.artifacts import sha256_of_json
from ectype.errors import EctypeError
from ectype.model.parameters import parameter_shapes
from ectype.recipe.spec import Model
from ectype.weights import tree
from ectype.weights.checkpoint import refuse_other_model
from ectype.weights.hf_config import HuggingFaceConfig, read_config
from ectype.weights.mapping import hugging_face_tensors
from ectype.weights.padded_rows import PaddedRows, draw_padded_rows, read_padded_rows
from ectype.weights.safetensors_files import DTYPES, StoredTensor, check_tensors, name_of_dtype, read_folder
from ectype.weights.store import Leaf
from ectype.weights.tree import LeafPath

MOST_DRAWN_ROWS = 65_536
"""Rows that an import draws at most: they are drawn in memory, and any known padding is far smaller."""


@dataclass(frozen=True)
class Part:
    """One named tensor: a whole leaf, or one layer of a stacked one, with padded rows after its own."""

    tensor: StoredTensor
    padding: np.ndarray | None = None

    @property
    def rows(self) -> int:
        return self.tensor.shape[0] + (0 if self.padding is None else len(self.padding))

    def read_rows(self, first: int, end: int) -> tuple[np.ndarray, np.ndarray]:
        """Rows [first, end), padding included, and those of them that the file holds."""
        own = self.tensor.shape[0]
        stored = self.tensor.read_rows(min(first, own), min(end, own))
        if self.padding is None or end <= own:
            return stored, stored
        padding = self.padding[max(first - own, 0) : end - own].astype(stored.dtype)
        return np.concatenate((stored, padding)), stored


@dataclass(frozen=True)
class HuggingFaceSource:
    """A checked folder. `parts` holds one entry per leaf: its layers in order, or itself."""

    folder: Path
    config: HuggingFaceConfig
    model: Model
    dtype: str
    leaves: dict[LeafPath, Leaf]
    parts: dict[LeafPath, tuple[Part, ...]]
    padded: PaddedRows | None

    def identity(self) -> str:
        """Hash of what decides an import: configuration, tensors, files, padded rows, layout, element type."""
        files = {part.tensor.file for parts in self.parts.values() for part in parts}
        stats = {file.name: [file.stat().st_size, file.stat().st_mtime_ns] for file in files}
        padding = {
            tree.dotted(path): hashlib.sha256(rows.tobytes()).hexdigest()
            for path, rows in (self.padded.rows if self.padded else {}).items()
        }
        return sha256_of_json(
            [dict(self.config.values), stats, padding, self.model.model_dump(mode="json"), self.dtype]
        )


def open_source(
    folder: Path,
    *,
    dtype: str | None = None,
    padded_rows: Path | None = None,
    trained_rows: int | None = None,
    seed: int = 0,
    model: Model | None = None,
) -> HuggingFaceSource:
    """Check a folder's configuration, index, shards and tensors against each other, and plan their places.

    Args:
        folder: config.json and safetensors weights.
        dtype: element type to convert to; None keeps the stored one, which must be the declared one throughout.
        padded_rows: side file with the vocabulary rows that the export dropped.
        trained_rows: rows of the reference's softmax; without `padded_rows` the missing ones are drawn from `seed`.
        model: lay the layers out as this model does; it must be the same model.

    Raises:
        EctypeError: for any disagreement; nothing has been written.
    """
    if seed < 0:
        raise EctypeError(f"seed {seed}", "a seed of at least 0", "give another --seed")
    config = read_config(folder)
    found = read_folder(folder)
    names = hugging_face_tensors(config.model)
    declared = next((name for name, element in DTYPES.items() if element.name == config.dtype), None)
    if config.dtype is not None and declared is None and dtype is None:
        raise EctypeError(
            f"{folder}: config.json declares dtype {config.dtype!r}", ", ".join(d.name for d in DTYPES.values()),
            "name the one to store with --dtype",
        )  # fmt: skip
    first_stored = next((found[name].dtype_name for name in names if name in found), None)
    shapes = {name: place.shape for name, place in names.items()}
    check_tensors(folder, found, shapes, (declared or first_stored) if dtype is None else None)
    stored_dtype = dtype or DTYPES[str(first_stored)].name
    base = config.model if model is None else _laid_out_as(folder, config.model, model)
    padded, base = _padding(base, stored_dtype, padded_rows, trained_rows, seed, cast=dtype is not None)
    if model is not None:
        refuse_other_model(folder, base, model)
    parts: dict[LeafPath, list[Part]] = {}
    for name, place in hugging_face_tensors(base).items():
        padding = padded.rows.get(place.path) if padded else None
        parts.setdefault(place.path, []).append(Part(found[name], padding))
    element = DTYPES[name_of_dtype(stored_dtype)]
    leaves = {path: Leaf(tuple(shape), element) for path, shape in tree.flatten(parameter_shapes(base)).items()}
    return HuggingFaceSource(
        folder, config, base, stored_dtype, leaves, {path: tuple(parts[path]) for path in leaves}, padded
    )


def load_source(source: HuggingFaceSource) -> tree.Tree:
    """The whole parameter tree in memory, NumPy arrays of the source's element type."""
    flat = {}
    for path, parts in source.parts.items():
        arrays = [part.read_rows(0, part.rows)[0].astype(source.leaves[path].dtype, copy=False) for part in parts]
        flat[path] = np.stack(arrays) if path[0] == "blocks" else arrays[0]
    return tree.unflatten(flat)


def _laid_out_as(folder: Path, read: Model, asked: Model) -> Model:
    """`read` with the window pattern of `asked`, when both give every layer the same window."""
    for layer in range(read.n_layers):
        if read.n_layers != asked.n_layers or read.layer_window(layer) != asked.layer_window(layer):
            raise EctypeError(
                f"{folder}: {read.n_layers} layers with windows {list(read.window_pattern)}",
                f"{asked.n_layers} layers with windows {list(asked.window_pattern)}",
                "use the recipe of this checkpoint, or another checkpoint",
            )  # fmt: skip
    return read.model_copy(update={"window_pattern": asked.window_pattern})


def _padding(
    model: Model, dtype: str, file: Path | None, trained_rows: int | None, seed: int, *, cast: bool
) -> tuple[PaddedRows | None, Model]:
    if file is not None:
        padded, rows = read_padded_rows(file, model)
        if trained_rows not in (None, rows):
            raise EctypeError(
                f"{file} brings the rows to {rows}", f"{trained_rows} trained rows", "give one of the two options"
            )
        stored = {array.dtype.name for array in padded.rows.values()}
        if stored != {dtype} and not cast:
            raise EctypeError(
                f"{file} holds {', '.join(sorted(stored))}", f"{dtype}, as the weights", "convert all with --dtype"
            )
    elif trained_rows is None or trained_rows == model.vocab_size:
        return None, model
    else:
        rows = trained_rows
    if rows < model.vocab_size:
        raise EctypeError(f"{rows} trained rows", f"at least vocab_size {model.vocab_size}", "give the larger count")
    if rows > model.vocab_size + MOST_DRAWN_ROWS and file is None:
        raise EctypeError(
            f"{rows:,} trained rows", f"at most {MOST_DRAWN_ROWS:,} beyond vocab_size {model.vocab_size:,}",
            "give the rows of the reference's softmax; models pad their vocabulary by some hundreds",
        )  # fmt: skip
    model = model.model_copy(update={"trained_rows": rows})
    return (padded if file is not None else draw_padded_rows(model, seed, dtype)), model
