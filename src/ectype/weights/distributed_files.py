"""torch's distributed checkpoint folders, read without a process group: any rows of any tensor. Needs `reference`.

A folder holds `.metadata`, a pickle that says in which piece of which file each part of each tensor lies, and
`*.distcp` files of pieces. Both are opened with allow-lists: nothing in a checkpoint is ever run.
"""

import io
import pickle
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ectype.errors import EctypeError
from ectype.weights.safetensors_files import DTYPES

METADATA_NAME, SUBFOLDER = ".metadata", "model_and_optim"
"""The file that makes a folder a distributed checkpoint, and where OLMo-core puts one within `stepN`."""
_ALLOWED = {
    "torch.distributed.checkpoint.metadata": {
        "BytesStorageMetadata", "ChunkStorageMetadata", "Metadata", "MetadataIndex", "StorageMeta",
        "TensorProperties", "TensorStorageMetadata", "_MEM_FORMAT_ENCODING",
    },
    "torch.distributed.checkpoint.filesystem": {"_StorageInfo"},
    "torch": {"Size", "bfloat16", "bool", "float16", "float32", "float64", "int32", "int64", "uint8"},
    "torch.serialization": {"_get_layout"},
    "collections": {"OrderedDict", "defaultdict"},
}  # fmt: skip
_MOVED = {("olmo_core.distributed.checkpoint.filesystem", "_StorageInfo"): "torch.distributed.checkpoint.filesystem"}
"""OLMo-core's own class with the fields of torch's: read as torch's, so that OLMo-core need not be installed."""


@dataclass(frozen=True)
class Piece:
    """One stored part of a tensor: where it lies in the tensor, and in which bytes of which file."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    file: Path
    start: int
    size_bytes: int

    def read(self) -> np.ndarray:
        """Its values."""
        import torch

        with self.file.open("rb") as stream:
            stream.seek(self.start)
            data = io.BytesIO(stream.read(self.size_bytes))
        tensor = torch.load(data, map_location="cpu", weights_only=True)
        if not isinstance(tensor, torch.Tensor) or tuple(tensor.shape) != self.sizes:
            raise ValueError(f"a piece at byte {self.start} is not of shape {list(self.sizes)}")
        # NumPy has no bfloat16 for torch: the bits pass as integers.
        dtype = DTYPES[_safetensors_name(tensor.dtype)]
        return tensor.reshape(-1).view(torch.uint8).numpy().view(dtype).reshape(self.sizes)


@dataclass(frozen=True)
class DistributedTensor:
    """One tensor of a folder, not yet read."""

    name: str
    dtype_name: str
    shape: tuple[int, ...]
    pieces: tuple[Piece, ...]
    _open: dict[Piece, np.ndarray] = field(default_factory=dict, compare=False, repr=False)
    """Pieces that the last rows shared with the next ones, so that each is read once by an ascending reader."""

    @property
    def dtype(self) -> np.dtype:
        return DTYPES[self.dtype_name]

    @property
    def size_bytes(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize

    def read(self) -> np.ndarray:
        """The whole tensor."""
        return self.read_rows(0, self.shape[0]) if self.shape else self._piece(self.pieces[0])

    def read_rows(self, first: int, end: int) -> np.ndarray:
        """Rows [first, end) of the leading axis, as their own array."""
        values = np.empty((end - first, *self.shape[1:]), self.dtype)
        filled = 0
        for piece in self.pieces:
            low, high = max(first, piece.offsets[0]), min(end, piece.offsets[0] + piece.sizes[0])
            if low >= high:
                self._open.pop(piece, None)
                continue
            rows = self._piece(piece)[low - piece.offsets[0] : high - piece.offsets[0]]
            rest = zip(piece.offsets[1:], piece.sizes[1:], strict=True)
            place = (slice(low - first, high - first), *(slice(offset, offset + size) for offset, size in rest))
            values[place] = rows
            filled += rows.size
            if high == piece.offsets[0] + piece.sizes[0]:
                self._open.pop(piece, None)
        if filled != values.size:
            raise EctypeError(
                f"{self.name}: {filled:,} of {values.size:,} values of rows {first} to {end - 1} are stored",
                "pieces that cover the tensor once", "the folder is incomplete: fetch it again",
            )  # fmt: skip
        return values

    def _piece(self, piece: Piece) -> np.ndarray:
        if piece not in self._open:
            try:
                self._open[piece] = piece.read()
            except Exception as error:
                # torch.load reports a damaged archive by exceptions of many kinds.
                raise EctypeError(
                    f"{piece.file}: {self.name} cannot be read ({str(error).strip().splitlines()[0]})",
                    "a plain tensor as the checkpoint's metadata describes it", "fetch the file again",
                ) from None  # fmt: skip
        return self._open[piece]


def distributed_folder(folder: Path) -> Path | None:
    """`folder` or its `model_and_optim`, whichever is a distributed checkpoint; None for a folder of another kind."""
    return next((path for path in (folder / SUBFOLDER, folder) if (path / METADATA_NAME).is_file()), None)


def read_distributed(folder: Path) -> dict[str, DistributedTensor]:
    """Every tensor of a folder by name; entries that are no tensors are left out, nothing is read yet.

    Raises:
        EctypeError: no such folder, metadata that would run code, or a file that is absent or too short.
    """
    try:
        metadata = _Unpickler(io.BytesIO((folder / METADATA_NAME).read_bytes())).load()
        tensors = _tensors(folder, metadata)
    except (OSError, ValueError, LookupError, TypeError, AttributeError, EOFError, pickle.PickleError) as error:
        raise EctypeError(
            f"{folder / METADATA_NAME}: {error}", "the metadata of a distributed checkpoint of torch",
            "check the path, or fetch the folder again",
        ) from None  # fmt: skip
    _refuse_short_files(folder, tensors)
    return tensors


def _tensors(folder: Path, metadata: Any) -> dict[str, DistributedTensor]:
    pieces: dict[str, list[Piece]] = {}
    for index, info in metadata.storage_data.items():
        if index.offset is None:
            continue  # No tensor: settings of the optimiser's groups.
        if Path(info.relative_path).name != info.relative_path:
            raise ValueError(f"{index.fqn} is said to lie in {info.relative_path!r}, which is no file name")
        described = metadata.state_dict_metadata[index.fqn].chunks
        sizes = {chunk.offsets: tuple(chunk.sizes) for chunk in described}[index.offset]
        piece = Piece(tuple(index.offset), sizes, folder / info.relative_path, info.offset, info.length)
        pieces.setdefault(index.fqn, []).append(piece)
    return {
        name: DistributedTensor(
            name, _safetensors_name(entry.properties.dtype), tuple(entry.size),
            tuple(sorted(pieces[name], key=lambda piece: piece.offsets)),
        )
        for name, entry in metadata.state_dict_metadata.items()
        if hasattr(entry, "chunks")
    }  # fmt: skip


def _safetensors_name(dtype: Any) -> str:
    name = str(dtype).removeprefix("torch.")
    return next((key for key, element in DTYPES.items() if element.name == name), name)


def _refuse_short_files(folder: Path, tensors: Mapping[str, DistributedTensor]) -> None:
    needed: dict[Path, int] = {}
    for piece in (piece for tensor in tensors.values() for piece in tensor.pieces):
        needed[piece.file] = max(needed.get(piece.file, 0), piece.start + piece.size_bytes)
    problems = []
    for file, size in needed.items():
        found = file.stat().st_size if file.is_file() else None
        if found is None or found < size:
            problems.append(f"{file.name} " + ("is absent" if found is None else f"has {found} bytes, not {size}"))
    if problems:
        raise EctypeError(
            f"{folder}: " + "; ".join(sorted(problems)[:12]), "every file that its metadata lists, in full",
            "fetch these files again",
        )  # fmt: skip


class _Unpickler(pickle.Unpickler):
    """Builds the metadata's own classes and nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        module = _MOVED.get((module, name), module)
        if name not in _ALLOWED.get(module, ()):
            raise pickle.UnpicklingError(f"it names {module}.{name}, which no such metadata does")
        return super().find_class(module, name)
