"""Safetensors files: headers and shard sets checked in full before use, ranged reads, planned writes.

A file is 8 bytes (header length, little-endian), a JSON header, then the tensors' bytes without holes.
"""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from ectype.artifacts import parse_json
from ectype.errors import EctypeError, first_of

DTYPES = {
    "F32": np.dtype(np.float32),
    "BF16": np.dtype(jnp.bfloat16),
    "F16": np.dtype(np.float16),
}
"""Element types that weights may have. Others parse, so that errors can name the tensor, but are refused on use."""
_ITEM_BYTES = {
    "F64": 8, "I64": 8, "U64": 8, "F32": 4, "I32": 4, "U32": 4, "F16": 2, "BF16": 2, "I16": 2, "U16": 2,
    "I8": 1, "U8": 1, "BOOL": 1, "F8_E4M3": 1, "F8_E5M2": 1,
}  # fmt: skip
_HEADER_LIMIT_BYTES = 100_000_000
INDEX_NAME = "model.safetensors.index.json"
SINGLE_NAME = "model.safetensors"


@dataclass(frozen=True)
class StoredTensor:
    """One tensor of a file, not yet read. `start` is its first byte within the file."""

    name: str
    file: Path
    dtype_name: str
    shape: tuple[int, ...]
    start: int
    size_bytes: int

    @property
    def dtype(self) -> np.dtype:
        return DTYPES[self.dtype_name]

    def read(self) -> np.ndarray:
        """The whole tensor, as its own array."""
        return self.read_rows(0, self.shape[0])

    def read_rows(self, first: int, end: int) -> np.ndarray:
        """Rows [first, end) of the leading axis, as their own array."""
        row_bytes = self.size_bytes // self.shape[0]
        buffer = np.empty((end - first) * row_bytes, np.uint8)
        view = buffer.data
        with self.file.open("rb", buffering=0) as stream:
            stream.seek(self.start + first * row_bytes)
            filled = 0
            while filled < len(view):
                count = stream.readinto(view[filled:])
                if not count:
                    raise EctypeError(
                        f"{self.file} ended while {self.name} was being read", "the bytes that its header lists",
                        "the file was cut short after it was checked: fetch it again",
                    )  # fmt: skip
                filled += count
        return buffer.view(self.dtype).reshape(end - first, *self.shape[1:])


def name_of_dtype(dtype: Any) -> str:
    """The name in `DTYPES` of an element type, which is given as a dtype or by its NumPy name.

    Raises:
        EctypeError: weights may not have it.
    """
    for name, element in DTYPES.items():
        if element.name == str(dtype):
            return name
    raise EctypeError(
        f"dtype {str(dtype)!r}", f"one of {', '.join(d.name for d in DTYPES.values())}", "name one of these"
    )


def read_header(file: Path) -> dict[str, StoredTensor]:
    """Tensors of one file by name; any fault of the header or of the file's length is an `EctypeError`."""
    try:
        return _parse_header(file)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise EctypeError(
            f"{file}: {error}", "a complete safetensors file", "fetch the file again and compare its checksum"
        ) from None


def _parse_header(file: Path) -> dict[str, StoredTensor]:
    size = file.stat().st_size
    with file.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        if size < 8 or length > min(size - 8, _HEADER_LIMIT_BYTES):
            raise ValueError(f"its {size} bytes cannot hold the header it announces ({length} bytes)")
        header = parse_json(stream.read(length), _unique)
    if not isinstance(header, dict):
        raise ValueError("its header is no JSON object")
    tensors = {name: _entry(file, name, entry, 8 + length) for name, entry in header.items() if name != "__metadata__"}
    end = 8 + length
    for tensor in sorted(tensors.values(), key=lambda tensor: (tensor.start, tensor.size_bytes)):
        if tensor.start != end:
            raise ValueError(f"a hole or an overlap before tensor {tensor.name}")
        end += tensor.size_bytes
    if end != size:
        raise ValueError(f"the file holds {size} bytes, its header describes {end} ({size - end:+d})")
    return tensors


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"its header names {next(n for n in names if names.count(n) > 1)!r} twice")
    return found


def _entry(file: Path, name: str, entry: Any, data_start: int) -> StoredTensor:
    dtype_name, shape, (first, end) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]
    if dtype_name not in _ITEM_BYTES:
        raise ValueError(f"tensor {name} has the unknown dtype {dtype_name!r}")
    if not all(isinstance(n, int) and n >= 0 for n in (*shape, first, end)):
        raise ValueError(f"tensor {name} has a shape or offsets that are no counts")
    expected = int(np.prod(shape, dtype=np.int64)) * _ITEM_BYTES[dtype_name]
    if end - first != expected:
        raise ValueError(f"tensor {name} {dtype_name}{list(shape)} needs {expected} bytes, its range has {end - first}")
    return StoredTensor(name, file, dtype_name, shape, data_start + first, expected)


def read_folder(folder: Path) -> dict[str, StoredTensor]:
    """Every tensor of a checkpoint folder by name, with shards and index checked against each other four ways.

    Refused: a listed shard that is absent, a listed tensor that its shard lacks, a tensor that a shard holds but the
    index does not list, and a safetensors file that belongs to nothing.
    """
    present = {path.name for path in folder.glob("*.safetensors")}
    index = folder / INDEX_NAME
    if index.is_file():
        return _read_shards(folder, present, _read_index(index))
    if SINGLE_NAME not in present:
        raise EctypeError(
            f"{folder} holds neither {SINGLE_NAME} nor {INDEX_NAME}", "a Hugging Face folder with safetensors weights",
            "check the path; convert .bin weights with transformers' save_pretrained first",
        )  # fmt: skip
    _refuse(folder, [f"{name} belongs to no checkpoint here" for name in sorted(present - {SINGLE_NAME})])
    return read_header(folder / SINGLE_NAME)


def _read_index(index: Path) -> dict[str, str]:
    try:
        weight_map = parse_json(index.read_bytes(), _unique)["weight_map"]
        if not isinstance(weight_map, dict) or not weight_map:
            raise ValueError("weight_map is empty or no mapping")
        for name, shard in weight_map.items():
            if not isinstance(shard, str) or Path(shard).name != shard:
                raise ValueError(f"{name} is said to lie in {shard!r}, which is no file name")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise EctypeError(f"{index}: {error!r}", "an index with a weight_map", "fetch the index again") from None
    return weight_map


def _read_shards(folder: Path, present: set[str], weight_map: Mapping[str, str]) -> dict[str, StoredTensor]:
    listed = set(weight_map.values())
    problems = [f"shard {name} is listed but absent" for name in sorted(listed - present)]
    problems += [f"{name} is present but the index lists nothing in it" for name in sorted(present - listed)]
    found: dict[str, StoredTensor] = {}
    for shard in sorted(listed & present):
        try:
            tensors = read_header(folder / shard)
        except EctypeError as error:
            problems.append(error.found)
            continue
        wanted = {name for name, place in weight_map.items() if place == shard}
        problems += [f"tensor {name} is listed in {shard}, which lacks it" for name in sorted(wanted - tensors.keys())]
        problems += [f"tensor {name} is in {shard} but not listed there" for name in sorted(tensors.keys() - wanted)]
        found |= {name: tensors[name] for name in wanted & tensors.keys()}
    _refuse(folder, problems)
    return found


def check_tensors(
    source: Path, found: Mapping[str, StoredTensor], shapes: Mapping[str, tuple[int, ...]], dtype_name: str | None
) -> None:
    """Refuse tensors that are missing, unexpected, or of another shape or element type than expected.

    `dtype_name` None accepts any of `DTYPES` for each tensor.
    """
    problems = [f"tensor {name} {list(shapes[name])} is missing" for name in shapes if name not in found]
    problems += [f"tensor {name} {list(found[name].shape)} is extra" for name in found if name not in shapes]
    for name in sorted(shapes.keys() & found.keys()):
        tensor = found[name]
        if tensor.shape != tuple(shapes[name]):
            problems.append(f"tensor {name} has shape {list(tensor.shape)}, not {list(shapes[name])}")
        if tensor.dtype_name not in DTYPES or dtype_name not in (None, tensor.dtype_name):
            problems.append(f"tensor {name} has dtype {tensor.dtype_name}, not {dtype_name or ' or '.join(DTYPES)}")
    _refuse(source, problems)


def _refuse(source: Path, problems: Sequence[str]) -> None:
    if not problems:
        return
    raise EctypeError(
        f"{source}: {first_of(problems)}", "shards, index and config.json that agree tensor by tensor",
        "fetch the named files again, or move strangers out of the folder; nothing was written",
    )  # fmt: skip


@dataclass(frozen=True)
class PlannedTensor:
    """Where one tensor's bytes will lie in a file to be written."""

    file_name: str
    start: int
    size_bytes: int


def plan_file(
    file_name: str, tensors: Mapping[str, tuple[str, tuple[int, ...]]]
) -> tuple[bytes, dict[str, PlannedTensor]]:
    """Header bytes of a file that holds `tensors` (name -> dtype name, shape) in order, and each one's place."""
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, (dtype_name, shape) in tensors.items():
        size = int(np.prod(shape, dtype=np.int64)) * _ITEM_BYTES[dtype_name]
        entries[name] = {"dtype": dtype_name, "shape": list(shape), "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    header = len(text).to_bytes(8, "little") + text
    places = {}
    for name in tensors:
        first, end = entries[name]["data_offsets"]
        places[name] = PlannedTensor(file_name, len(header) + first, end - first)
    return header, places


def write_at(handle: int, data: memoryview, offset: int) -> None:
    """Write all of `data` at byte `offset` of an open file."""
    while data:
        count = os.pwrite(handle, data, offset)
        data, offset = data[count:], offset + count
