"""The mean of checkpoints of one model, streamed: memory holds a few chunks of each, and a killed merge resumes."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ectype.artifacts import sha256_of_file, sha256_of_json, write_json
from ectype.errors import EctypeError, first_of
from ectype.progress import Progress, silent
from ectype.recipe.spec import Model
from ectype.run.checkpoints import OPTIMIZER_ITEM, WEIGHTS_ITEM, description_file
from ectype.weights import store
from ectype.weights.checkpoint import (
    describe,
    differences,
    expected_leaves,
    model_of,
    read_meta,
    refuse_incomplete,
    refuse_other_model,
)  # fmt: skip
from ectype.weights.journal import Journal
from ectype.weights.mapping import Place, hugging_face_tensors
from ectype.weights.mean import mean_of
from ectype.weights.store import Leaf
from ectype.weights.transfer import copy_units, plan_units
from ectype.weights.tree import LeafPath

_CARRIED = ("sequence_length_tokens",)
"""What the checkpoints say beside their weights, and the mean says too where all of them agree."""
_READ_BYTES = 1 << 24
_MOMENTS, _COUNT = ("first_moment", "second_moment"), ("count",)

Leaves = dict[str, dict[LeafPath, Leaf]]
"""Of each item of a checkpoint: the arrays that the mean holds."""


def merge_weights(
    checkpoints: Sequence[Path], output: Path, *, weights_only: bool = False, progress: Progress = silent
) -> dict[str, Any]:
    """Write the mean of the checkpoints as a checkpoint at `output`: of weights, and of Adam's moments and count.

    The moments and the count are averaged where all checkpoints hold them; the skip rule's history is not kept.
    All are checked against each other in full before anything is written. `output` appears by one rename at the end;
    after a kill the same call goes on where it stopped.

    Args:
        checkpoints: two or more of one model and element type, each once.
        output: a path that must not exist.
        weights_only: leave the optimisers' state out.

    Returns:
        What was done; `step` is the step of all of them, None where they differ; `adam_count` None without moments.

    Raises:
        EctypeError: fewer than two, one twice, or any difference in model, layout, shapes or element type, or in
            whether they hold an optimiser's state.
    """
    started = time.monotonic()
    metas = _read_metas(checkpoints)
    model, dtype = model_of(metas[0], checkpoints[0]), metas[0]["dtype"]
    leaves = {WEIGHTS_ITEM: expected_leaves(model, dtype)}
    if not weights_only and _all_hold_moments(checkpoints):
        leaves[OPTIMIZER_ITEM] = _optimizer_leaves(checkpoints, model)
    count = _mean_count(checkpoints) if OPTIMIZER_ITEM in leaves else None
    parts = _parts(checkpoints, model, leaves)
    units = [
        unit
        for item, prefix in ((WEIGHTS_ITEM, ""), (OPTIMIZER_ITEM, "optimizer."))
        for unit in plan_units(item, leaves.get(item, {}), parts.get(item, {}), prefix)
    ]
    with Journal(output, _identity(checkpoints, leaves)) as journal:
        taken_over = len(journal.done)
        digests = copy_units(units, journal, progress, "merge, bytes")
        if count is not None:
            store.write_array(journal.folder / OPTIMIZER_ITEM, _COUNT, count)
        for item, own in leaves.items():
            store.describe_to_orbax(journal.folder / item, own)
        meta = _describe(checkpoints, metas, model, digests)
        write_json(description_file(journal.folder), meta)
        journal.commit()
    return {
        "output": str(output), "checkpoints": [str(path) for path in checkpoints], "dtype": dtype,
        "step": meta["step"], "tensors": len(digests), "bytes": sum(unit.size_bytes for unit in units),
        "parameters": sum(int(np.prod(leaf.shape, dtype=np.int64)) for leaf in leaves[WEIGHTS_ITEM].values()),
        "adam_count": None if count is None else float(count),
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


def _all_hold_moments(checkpoints: Sequence[Path]) -> bool:
    """Whether all hold an optimiser's state, or none does; anything between is refused."""
    holding = [path for path in checkpoints if (path / OPTIMIZER_ITEM).is_dir()]
    if holding and len(holding) < len(checkpoints):
        bare = next(path for path in checkpoints if path not in holding)
        raise EctypeError(
            f"{holding[0]} holds an optimiser's state, {bare} none", "all of them, or none",
            "average the weights alone with --weights-only",
        )  # fmt: skip
    return bool(holding)


def _optimizer_leaves(checkpoints: Sequence[Path], model: Model) -> dict[LeafPath, Leaf]:
    """Moments and count that the mean holds, found whole and equal in form in every checkpoint."""
    stored = [store.read_leaves(path / OPTIMIZER_ITEM) for path in checkpoints]
    elements = {leaf.dtype for path, leaf in stored[0].items() if path[0] in _MOMENTS}
    like = expected_leaves(model, elements.pop() if len(elements) == 1 else np.float32)
    expected = {(name, *path): leaf for name in _MOMENTS for path, leaf in like.items()}
    expected[_COUNT] = Leaf((), np.dtype(np.float32))
    for path, found in zip(checkpoints, stored, strict=True):
        own = {key: leaf for key, leaf in found.items() if key[0] in (*_MOMENTS, *_COUNT)}
        if lines := differences(expected, own) or store.damaged_chunks(path / OPTIMIZER_ITEM):
            raise EctypeError(
                f"{path}: {first_of(lines)}", "moments and count of every tensor, as the first checkpoint holds them",
                "average the weights alone with --weights-only",
            )  # fmt: skip
    return expected


def _mean_count(checkpoints: Sequence[Path]) -> np.ndarray:
    items = [path / OPTIMIZER_ITEM for path in checkpoints]
    return mean_of([store.read_region(item, store.open_array(item, _COUNT)) for item in items])


@dataclass(frozen=True)
class _Tensor:
    """One tensor of the mean under its Hugging Face name, moments with their own before it."""

    name: str
    size_bytes: int


@dataclass
class _MeanPart:
    """One named tensor of the mean, computed when read, in steps of whole chunks of the sources, many of small ones."""

    tensor: _Tensor
    items: Sequence[Path]
    """The item's folder in each checkpoint."""
    path: LeafPath
    block: int | None
    rows: int
    named_rows: int
    """Rows that an export holds: those of real ids."""
    _held: tuple[int, np.ndarray] | None = field(default=None, repr=False)

    def read_rows(self, first: int, end: int) -> tuple[np.ndarray, np.ndarray]:
        """Rows [first, end) of the mean, and those of them that an export holds."""
        arrays = [store.open_array(item, self.path) for item in self.items]
        chunk = max(store.read_chunk(array)[0 if self.block is None else 1] for array in arrays)
        # Training may store a chunk for each row: as many at once as make a read worth its start.
        step = chunk * max(1, _READ_BYTES * self.rows // max(1, self.tensor.size_bytes * chunk))
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
        return mean_of([store.read_region(item, region) for item, region in zip(self.items, regions, strict=True)])


def _parts(checkpoints: Sequence[Path], model: Model, leaves: Leaves) -> dict[str, dict[LeafPath, list[_MeanPart]]]:
    parts: dict[str, dict[LeafPath, list[_MeanPart]]] = {}
    trees = [(WEIGHTS_ITEM, (), "")]
    if OPTIMIZER_ITEM in leaves:
        trees += [(OPTIMIZER_ITEM, (name,), f"{name}.") for name in _MOMENTS]
    for item, root, prefix in trees:
        items = [path / item for path in checkpoints]
        for name, place in hugging_face_tensors(model).items():
            path = root + place.path
            part = _part(items, prefix + name, path, place, leaves[item][path])
            parts.setdefault(item, {}).setdefault(path, []).append(part)
    return parts


def _part(items: Sequence[Path], name: str, path: LeafPath, place: Place, leaf: Leaf) -> _MeanPart:
    shape = leaf.shape if place.block is None else leaf.shape[1:]
    tensor = _Tensor(name, int(np.prod(shape, dtype=np.int64)) * leaf.dtype.itemsize)
    return _MeanPart(tensor, items, path, place.block, shape[0], place.shape[0])


def _identity(checkpoints: Sequence[Path], leaves: Leaves) -> str:
    """Hash of what decides the mean: each checkpoint's place, description, and when what is read was written."""
    return sha256_of_json([
        [str(path.absolute()), sha256_of_file(description_file(path)),
         {item: (path / item).stat().st_mtime_ns for item in leaves}]
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
            "dtypes": [metas[0]["dtype"]],
            "tensors_sha256": {name: digests[name] for name in hugging_face_tensors(model)},
            "of": [
                {"name": path.absolute().name, "step": meta.get("step"),
                 "description_sha256": sha256_of_file(description_file(path))}
                for path, meta in zip(checkpoints, metas, strict=True)
            ],
        },
        padded_rows=metas[0].get("padded_rows"), **carried,
    )  # fmt: skip
