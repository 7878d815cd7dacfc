"""Arrays of a checkpoint on disk: written and read in slices, described to Orbax so that it restores them as its own.

Imported weights are uncompressed Zarr arrays, one folder per leaf, one layer or less per chunk: any slice can be read
or written alone. Orbax's own checkpoints (OCDBT, compressed) are read through the same functions.
"""

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import orbax.checkpoint as ocp
import tensorstore
from etils import epath
from orbax.checkpoint import type_handlers

from ectype.artifacts import parse_json
from ectype.errors import DamagedCheckpointError, EctypeError
from ectype.weights import tree
from ectype.weights.pipeline import as_bytes
from ectype.weights.safetensors_files import write_at
from ectype.weights.tree import LeafPath

TARGET_CHUNK_BYTES = 32 << 20
SMALL_LEAF_BYTES = 4 << 20
"""Leaves up to this size are one chunk: a stack of norms would otherwise be one tiny file per layer."""
_METADATA_NAME = "_METADATA"


@dataclass(frozen=True)
class Leaf:
    """Shape and element type of one array of the tree."""

    shape: tuple[int, ...]
    dtype: np.dtype

    @property
    def size_bytes(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize


def chunk_shape(leaf: Leaf, stacked: bool) -> tuple[int, ...]:
    """Chunk of a leaf: all of a small one; of a large one, a power-of-two share of one layer's rows.

    Powers of two line up with the shares of a sharded restore, which then reads no chunk twice.
    """
    total = leaf.size_bytes
    if total <= SMALL_LEAF_BYTES:
        return leaf.shape
    lead, rows = ((1,), leaf.shape[1]) if stacked else ((), leaf.shape[0])
    layer_bytes = total // leaf.shape[0] if stacked else total
    pieces = 1 << max(0, -(-layer_bytes // TARGET_CHUNK_BYTES) - 1).bit_length()
    return (*lead, -(-rows // min(pieces, rows)), *leaf.shape[len(lead) + 1 :])


def create_array(folder: Path, path: LeafPath, leaf: Leaf, chunk: tuple[int, ...]) -> tensorstore.TensorStore:
    """A new array for the leaf at `path`, or the one that an interrupted run began; `write_chunk` fills it."""
    spec = {
        "driver": "zarr",
        "kvstore": {"driver": "file", "path": str(folder / tree.dotted(path))},
        "metadata": {"shape": leaf.shape, "chunks": chunk, "compressor": None},
        "dtype": leaf.dtype.name,
        # Zeros are stored too, so that a missing chunk file is an error on reading and never a zero weight.
        "store_data_equal_to_fill_value": True,
        "recheck_cached_metadata": False,
        "recheck_cached_data": False,
    }
    return tensorstore.open(spec, create=True, open=True).result()


def write_chunk(
    folder: Path, path: LeafPath, chunk: tuple[int, ...], index: tuple[int, ...], values: np.ndarray
) -> None:
    """Write one chunk of an array that `create_array` made, and wait until it is on disk.

    An uncompressed chunk is its bytes and nothing else, so they go to its file without TensorStore's copies.

    Args:
        folder: the item's folder.
        path: the leaf.
        chunk: shape of every chunk of the array.
        index: the chunk's place in the grid of chunks.
        values: contiguous, of the chunk's shape, or with fewer rows at the array's end; such a chunk is filled up.
    """
    missing_bytes = int(np.prod(chunk, dtype=np.int64)) * values.itemsize - values.nbytes
    name = folder / tree.dotted(path) / ".".join(map(str, index))
    handle = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
    try:
        write_at(handle, as_bytes(values), 0)
        write_at(handle, memoryview(bytes(missing_bytes)), values.nbytes)
        os.fdatasync(handle)
    finally:
        os.close(handle)


def write_array(folder: Path, path: LeafPath, values: np.ndarray) -> None:
    """Write one small array whole, over what an interrupted run left of it."""
    create_array(folder, path, Leaf(values.shape, values.dtype), values.shape).write(values).result()


def open_array(folder: Path, path: LeafPath) -> tensorstore.TensorStore:
    """The array of the leaf at `path` for reading in slices; a missing chunk is an error, not zeros."""
    description = _description(folder)
    name = tree.dotted(path)
    if description.get("use_ocdbt", True):
        kvstore: dict[str, Any] = {"driver": "ocdbt", "base": f"file://{folder.absolute()}/", "path": f"{name}/"}
    else:
        kvstore = {"driver": "file", "path": str(folder.absolute() / name)}
    driver = "zarr3" if description.get("use_zarr3") else "zarr"
    spec = {"driver": driver, "kvstore": kvstore, "fill_missing_data_reads": False}
    try:
        return tensorstore.open(spec, read=True).result()
    except ValueError as error:
        raise DamagedCheckpointError(
            f"{folder}: {name} cannot be opened ({_short(error)})", "a complete checkpoint", "write the checkpoint anew"
        ) from None


def read_region(folder: Path, region: tensorstore.TensorStore) -> np.ndarray:
    """The values of an array of `folder`, or of a slice of it.

    Raises:
        DamagedCheckpointError: a chunk is missing, cut short or unreadable.
    """
    try:
        return np.asarray(region.read().result())
    except ValueError as error:
        raise DamagedCheckpointError(
            f"{folder}: {_short(error)}", "every chunk of every array, in full",
            "the checkpoint is damaged: use another one",
        ) from None  # fmt: skip


def _short(error: ValueError) -> str:
    """TensorStore's message without the specification that it appends."""
    return str(error).split(" [", 1)[0]


def read_chunk(array: tensorstore.TensorStore) -> tuple[int, ...]:
    """Shape of what must be read together."""
    chunk = array.chunk_layout.read_chunk.shape or array.shape
    return tuple(length or whole for length, whole in zip(chunk, array.shape, strict=True))


def read_leaves(folder: Path) -> dict[LeafPath, Leaf]:
    """Shape and element type of every array in an Orbax tree folder, from the arrays' own metadata."""
    try:
        return _leaves(folder, _description(folder).get("tree_metadata", {}))
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise _unfinished(folder, error) from None


def _leaves(folder: Path, tree_metadata: dict[str, Any]) -> dict[LeafPath, Leaf]:
    leaves = {}
    for entry in tree_metadata.values():
        if entry["value_metadata"].get("skip_deserialize"):
            continue  # An empty dict.
        path = tuple(str(key["key"]) for key in entry["key_metadata"])
        array = open_array(folder, path)
        leaves[path] = Leaf(tuple(array.shape), np.dtype(array.dtype.numpy_dtype))
    return leaves


def damaged_chunks(folder: Path) -> list[str]:
    """Chunk files of an import that are absent or of another length than their chunk, by path within `folder`.

    Empty for Orbax's own checkpoints, which have no file per chunk.
    """
    if _description(folder).get("use_ocdbt", True):
        return []
    problems = []
    for path in read_leaves(folder):
        array = open_array(folder, path)
        chunk = read_chunk(array)
        expected = int(np.prod(chunk, dtype=np.int64)) * array.dtype.numpy_dtype.itemsize
        for index in np.ndindex(*(-(-length // part) for length, part in zip(array.shape, chunk, strict=True))):
            name = f"{tree.dotted(path)}/{'.'.join(map(str, index)) or '0'}"
            size = (folder / name).stat().st_size if (folder / name).is_file() else None
            if size != expected:
                problems.append(f"{name} is missing" if size is None else f"{name} has {size} bytes, not {expected}")
    return problems


def describe_to_orbax(folder: Path, leaves: Mapping[LeafPath, Leaf]) -> None:
    """Let Orbax write its tree metadata for arrays that already lie in `folder`."""
    absl = logging.getLogger("absl")
    level = absl.level
    absl.setLevel(logging.ERROR)  # Orbax warns that it finds no jax.Array, which is what we mean.
    try:
        registry = type_handlers.create_type_handler_registry((Leaf, _InPlace()))
        handler = ocp.PyTreeCheckpointHandler(use_ocdbt=False, type_handler_registry=registry)
        handler.save(epath.Path(folder), args=ocp.args.PyTreeSave(tree.unflatten(leaves)))
        handler.finalize(epath.Path(folder))
    finally:
        absl.setLevel(level)


class _InPlace(type_handlers.NumpyHandler):
    """Tells Orbax that a `Leaf` is an array which is already on disk where Orbax would put it."""

    async def serialize(self, values: Any, infos: Any, args: Any = None) -> list[Any]:
        for info in infos:
            if not (Path(info.path) / ".zarray").is_file():
                raise FileNotFoundError(f"no array at {info.path}")
        return []


def _description(folder: Path) -> dict[str, Any]:
    try:
        found = parse_json((folder / _METADATA_NAME).read_bytes())
        if not isinstance(found, dict):
            raise ValueError("its description holds no mapping")
    except (OSError, ValueError) as error:
        raise _unfinished(folder, error) from None
    return found


def _unfinished(folder: Path, error: Exception) -> EctypeError:
    return EctypeError(f"{folder}: {error}", "a finished Orbax tree", "the save was cut short: use another checkpoint")
