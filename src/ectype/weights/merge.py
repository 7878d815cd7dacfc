"""The mean of checkpoints of one model, streamed: memory holds a few chunks of each, and a killed merge resumes."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ectype.artifacts import sha256_of_file, sha256_of_json, write_json
from ectype.errors import EctypeError
from ectype.progress import Progress, silent
from ectype.recipe.spec import Model
from ectype.run.checkpoints import WEIGHTS_ITEM, description_file
from ectype.weights import store
from ectype.weights.checkpoint import (
    describe,
    expected_leaves,
    model_of,
    read_meta,
    refuse_incomplete,
    refuse_other_model,
)  # fmt: skip
from ectype.weights.journal import Journal
from ectype.weights.mapping import Place, hugging_face_tensors
from ectype.weights.mean import mean_of
from ectype.weights.transfer import copy_units, plan_units
from ectype.weights.tree import LeafPath

_CARRIED = ("sequence_length_tokens",)
"""What the checkpoints say beside their weights, and the mean says too where all of them agree."""


def merge_weights(checkpoints: Sequence[Path], output: Path, *, progress: Progress = silent) -> dict[str, Any]:
    """Write the mean of the checkpoints' weights as a checkpoint at `output`. It holds no optimiser state.

    All are checked against each other in full before anything is written. `output` appears by one rename at the end;
    after a kill the same call goes on where it stopped.

    Args:
        checkpoints: two or more of one model and element type, each once.
        output: a path that must not exist.

    Returns:
        What was done; `step` is the step of all of them, None where they differ.

    Raises:
        EctypeError: fewer than two, one twice, or any difference in model, layout, shapes or element type.
    """
    started = time.monotonic()
    metas = _read_metas(checkpoints)
    model, dtype = model_of(metas[0], checkpoints[0]), metas[0]["dtype"]
    leaves = expected_leaves(model, dtype)
    units = plan_units(WEIGHTS_ITEM, leaves, _parts(checkpoints, model, np.dtype(dtype)))
    with Journal(output, _identity(checkpoints)) as journal:
        taken_over = len(journal.done)
        digests = copy_units(units, journal, progress)
        store.describe_to_orbax(journal.folder / WEIGHTS_ITEM, leaves)
        meta = _describe(checkpoints, metas, model, digests)
        write_json(description_file(journal.folder), meta)
        journal.commit()
    return {
        "output": str(output), "checkpoints": [str(path) for path in checkpoints], "dtype": dtype,
        "step": meta["step"], "tensors": len(digests), "bytes": sum(leaf.size_bytes for leaf in leaves.values()),
        "parameters": sum(int(np.prod(leaf.shape, dtype=np.int64)) for leaf in leaves.values()),
        "resumed_units": taken_over, "seconds": time.monotonic() - started,
    }  # fmt: skip


def _read_metas(checkpoints: Sequence[Path]) -> list[dict[str, Any]]:
    """Descriptions of checkpoints that may be averaged, and whose weights are all there."""
    if len(checkpoints) < 2 or len({path.resolve() for path in checkpoints}) != len(checkpoints):
        raise EctypeError(
            f"checkpoints {', '.join(map(str, checkpoints)) or 'none'}", "two or more, each once",
            "name every checkpoint of the mean once; of a run, name RUN/checkpoints/STEP",
        )  # fmt: skip
    metas = [read_meta(path) for path in checkpoints]
    first = model_of(metas[0], checkpoints[0])
    for path, meta in zip(checkpoints, metas, strict=True):
        refuse_other_model(path, model_of(meta, path), first)
        if meta["dtype"] != metas[0]["dtype"]:
            raise EctypeError(
                f"{path} holds {meta['dtype']}, {checkpoints[0]} {metas[0]['dtype']}", "one element type",
                "import the others with the same --dtype",
            )  # fmt: skip
        refuse_incomplete(path, expected_leaves(first, meta["dtype"]))
    return metas


@dataclass(frozen=True)
class _Tensor:
    """One tensor of the mean under its Hugging Face name."""

    name: str
    size_bytes: int


@dataclass
class _MeanPart:
    """One named tensor of the mean, computed when read, in steps of whole chunks of the sources."""

    tensor: _Tensor
    checkpoints: Sequence[Path]
    path: LeafPath
    block: int | None
    rows: int
    named_rows: int
    """Rows that an export holds: those of real ids."""
    _held: tuple[int, np.ndarray] | None = field(default=None, repr=False)

    def read_rows(self, first: int, end: int) -> tuple[np.ndarray, np.ndarray]:
        """Rows [first, end) of the mean, and those of them that an export holds."""
        arrays = [store.open_array(path / WEIGHTS_ITEM, self.path) for path in self.checkpoints]
        step = max(store.read_chunk(array)[0 if self.block is None else 1] for array in arrays)
        pieces, place = [], first
        while place < end:
            start = place // step * step
            if self._held is None or self._held[0] != start:
                self._held = start, self._mean(arrays, start, min(start + step, self.rows))
            pieces.append(self._held[1][place - start : end - start])
            place = start + step
        if end == self.rows:
            self._held = None
        values = pieces[0] if len(pieces) == 1 else np.concatenate(pieces)
        return values, values[: max(0, self.named_rows - first)]

    def _mean(self, arrays: Sequence[Any], first: int, end: int) -> np.ndarray:
        regions = [(array if self.block is None else array[self.block])[first:end] for array in arrays]
        return mean_of([np.asarray(region.read().result()) for region in regions])


def _parts(checkpoints: Sequence[Path], model: Model, dtype: np.dtype) -> dict[LeafPath, list[_MeanPart]]:
    parts: dict[LeafPath, list[_MeanPart]] = {}
    shapes = {path: leaf.shape for path, leaf in expected_leaves(model, dtype).items()}
    for name, place in hugging_face_tensors(model).items():
        parts.setdefault(place.path, []).append(_part(checkpoints, name, place, shapes[place.path], dtype))
    return parts


def _part(
    checkpoints: Sequence[Path], name: str, place: Place, leaf_shape: tuple[int, ...], dtype: np.dtype
) -> _MeanPart:  # fmt: skip
    shape = leaf_shape if place.block is None else leaf_shape[1:]
    tensor = _Tensor(name, int(np.prod(shape, dtype=np.int64)) * dtype.itemsize)
    return _MeanPart(tensor, checkpoints, place.path, place.block, shape[0], place.shape[0])


def _identity(checkpoints: Sequence[Path]) -> str:
    """Hash of what decides the mean: each checkpoint's place, description, and when its weights were written."""
    return sha256_of_json([
        [str(path.absolute()), sha256_of_file(description_file(path)), (path / WEIGHTS_ITEM).stat().st_mtime_ns]
        for path in checkpoints
    ])  # fmt: skip


def _describe(
    checkpoints: Sequence[Path], metas: Sequence[dict[str, Any]], model: Model, digests: dict[str, str]
) -> dict[str, Any]:
    sources = [meta.get("source") or {} for meta in metas]
    steps = {meta.get("step") for meta in metas}
    carried = {
        name: metas[0][name]
        for name in _CARRIED
        if name in metas[0] and all(m.get(name) == metas[0][name] for m in metas)
    }
    return describe(
        model, metas[0]["dtype"], kind="weights", step=steps.pop() if len(steps) == 1 else None,
        source={
            "kind": "mean", "family": sources[0].get("family"), "config": sources[0].get("config"),
            "dtypes": [metas[0]["dtype"]], "tensors_sha256": digests,
            "of": [
                {"name": path.absolute().name, "step": meta.get("step"),
                 "description_sha256": sha256_of_file(description_file(path))}
                for path, meta in zip(checkpoints, metas, strict=True)
            ],
        },
        padded_rows=metas[0].get("padded_rows"), **carried,
    )  # fmt: skip
