"""OLMo-core's own checkpoint folder to a checkpoint: weights, and Adam's moments and count where it holds them.

Needs the extra `reference`. OLMo-core does not store the skip rule's history, so neither does the result.
"""

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ectype.artifacts import sha256_of_file, sha256_of_json, write_json
from ectype.errors import EctypeError, first_of
from ectype.model.parameters import parameter_shapes
from ectype.progress import Progress, silent
from ectype.recipe.spec import Model
from ectype.run.checkpoints import OPTIMIZER_ITEM, WEIGHTS_ITEM, description_file
from ectype.weights import store, tree
from ectype.weights.checkpoint import describe
from ectype.weights.distributed_files import (
    METADATA_NAME,
    SUBFOLDER,
    DistributedTensor,
    distributed_folder,
    read_distributed,
)
from ectype.weights.journal import Journal
from ectype.weights.mapping import VOCABULARY_PATHS, olmo_core_tensors
from ectype.weights.reference_model import versions
from ectype.weights.safetensors_files import DTYPES
from ectype.weights.store import Leaf
from ectype.weights.transfer import copy_units, plan_units
from ectype.weights.tree import LeafPath

_STEP_FOLDER = re.compile(r"step(\d+)")
_STATE, _GROUPS = "optim.state.", "optim.param_groups"
_COUNT, _COUNT_PATH = _STATE + "{}.step", ("count",)
_TREES: tuple[tuple[str, LeafPath, str], ...] = (
    (WEIGHTS_ITEM, (), "model.{}"),
    (OPTIMIZER_ITEM, ("first_moment",), _STATE + "{}.exp_avg"),
    (OPTIMIZER_ITEM, ("second_moment",), _STATE + "{}.exp_avg_sq"),
)
"""Trees of a checkpoint: item, prefix of its leaves, and OLMo-core's name of what stands at a parameter's place."""
_SHOWN_PROBLEMS = 12


@dataclass(frozen=True)
class _Part:
    """One tensor of the folder, as a whole leaf or one layer of a stacked one."""

    tensor: DistributedTensor

    @property
    def rows(self) -> int:
        return self.tensor.shape[0]

    def read_rows(self, first: int, end: int) -> tuple[np.ndarray, np.ndarray]:
        """Rows [first, end), twice: all of them are the folder's own."""
        values = self.tensor.read_rows(first, end)
        return values, values


@dataclass(frozen=True)
class _Source:
    """A checked folder: leaves and their tensors of each item, and Adam's count (None without optimiser state)."""

    leaves: dict[str, dict[LeafPath, Leaf]]
    parts: dict[str, dict[LeafPath, list[_Part]]]
    dtype: str
    count: np.ndarray | None


def import_olmo_core(
    folder: Path, output: Path, model: Model, *, sequence_length_tokens: int | None = None, progress: Progress = silent
) -> dict[str, Any]:
    """Convert a checkpoint folder of OLMo-core (`stepN`, or its `model_and_optim`) into a checkpoint at `output`.

    The folder is checked against `model` before anything is written. `output` appears by one rename at the end; after
    a kill the same call goes on where it stopped. Element types stay as stored.

    Args:
        model: what the folder holds; every shape must be the model's, vocabulary rows beyond the real ids included.
        sequence_length_tokens: what the model was trained with, for a later export.

    Returns:
        What was done, with `adam_count` None where the folder holds no optimiser state.
    """
    started = time.monotonic()
    versions()
    place = distributed_folder(folder)
    if place is None:
        raise EctypeError(f"{folder} holds no {METADATA_NAME}", "a folder stepN of OLMo-core", "check the path")
    source = _open(place, model)
    units = [
        unit
        for item, prefix in ((WEIGHTS_ITEM, ""), (OPTIMIZER_ITEM, "optimizer."))
        for unit in plan_units(item, source.leaves.get(item, {}), source.parts.get(item, {}), prefix)
    ]
    step = _step_of(place)
    with Journal(output, _identity(place, model)) as journal:
        taken_over = len(journal.done)
        digests = copy_units(units, journal, progress, "import, bytes")
        if source.count is not None:
            store.write_array(journal.folder / OPTIMIZER_ITEM, _COUNT_PATH, source.count)
        for item, leaves in source.leaves.items():
            store.describe_to_orbax(journal.folder / item, leaves)
        origin = {"kind": "olmo-core", "folder": folder.absolute().name, "olmo_core_sha256": digests}
        more = {"sequence_length_tokens": sequence_length_tokens} if sequence_length_tokens else {}
        meta = describe(model, source.dtype, kind="weights", step=step, source=origin, padded_rows=None, **more)
        write_json(description_file(journal.folder), meta)
        journal.commit()
    return {
        "output": str(output), "family": "olmo-core", "dtype": source.dtype, "tensors": len(digests), "step": step,
        "parameters": sum(int(np.prod(leaf.shape, dtype=np.int64)) for leaf in source.leaves[WEIGHTS_ITEM].values()),
        "vocab_size": model.vocab_size, "rows": model.rows, "padded_rows": None,
        "adam_count": None if source.count is None else float(source.count),
        "bytes": sum(unit.size_bytes for unit in units), "resumed_units": taken_over,
        "seconds": time.monotonic() - started,
    }  # fmt: skip


def _open(folder: Path, model: Model) -> _Source:
    """Check every tensor of the folder against the model and give it its place."""
    found = read_distributed(folder)
    places = olmo_core_tensors(model)
    shapes = {
        name: (model.rows, *place.shape[1:]) if place.path in VOCABULARY_PATHS else place.shape
        for name, place in places.items()
    }
    expected_leaves = tree.flatten(parameter_shapes(model))
    if foreign := sorted(tree.dotted(path) for path in expected_leaves.keys() - {p.path for p in places.values()}):
        raise EctypeError(
            f"a model with {', '.join(foreign[:_SHOWN_PROBLEMS])}", "a model of a form that OLMo-core trains",
            "name the recipe that the folder belongs to",
        )  # fmt: skip
    with_optimizer = any(name.startswith(_STATE) for name in found)
    trees = _TREES if with_optimizer else _TREES[:1]
    wanted = {pattern.format(name): shape for _, _, pattern in trees for name, shape in shapes.items()}
    wanted |= {_COUNT.format(name): () for name in shapes} if with_optimizer else {}
    tensors = {name: tensor for name, tensor in found.items() if not name.startswith(_GROUPS)}
    _refuse_differences(folder, tensors, wanted)
    leaves: dict[str, dict[LeafPath, Leaf]] = {}
    parts: dict[str, dict[LeafPath, list[_Part]]] = {}
    for item, root, pattern in trees:
        own = {name: found[pattern.format(name)] for name in places}
        element = _one_dtype(folder, pattern.format("*"), own)
        leaves.setdefault(item, {}).update(
            {root + path: Leaf(tuple(shape), element) for path, shape in expected_leaves.items()}
        )
        for name, place in places.items():
            parts.setdefault(item, {}).setdefault(root + place.path, []).append(_Part(own[name]))
    count = _count(folder, [found[_COUNT.format(name)] for name in places]) if with_optimizer else None
    if count is not None:
        leaves[OPTIMIZER_ITEM][_COUNT_PATH] = Leaf((), count.dtype)
    dtype = next(iter(leaves[WEIGHTS_ITEM].values())).dtype.name
    return _Source(leaves, parts, dtype, count)


def _refuse_differences(
    folder: Path, found: Mapping[str, DistributedTensor], wanted: Mapping[str, tuple[int, ...]]
) -> None:
    problems = [f"{name} {list(wanted[name])} is missing" for name in wanted.keys() - found.keys()]
    problems += [f"{name} {list(found[name].shape)} is extra" for name in found.keys() - wanted.keys()]
    for name in wanted.keys() & found.keys():
        if found[name].shape != tuple(wanted[name]):
            problems.append(f"{name} has shape {list(found[name].shape)}, not {list(wanted[name])}")
        if found[name].dtype_name not in DTYPES:
            problems.append(f"{name} has dtype {found[name].dtype_name}, not {' or '.join(DTYPES)}")
    if problems:
        raise EctypeError(
            f"{folder}: {first_of(sorted(problems))}",
            "the very tensors of the recipe's model, with Adam's state of all of them or of none",
            "name the recipe that the folder belongs to; nothing was written",
        )  # fmt: skip


def _one_dtype(folder: Path, what: str, tensors: Mapping[str, DistributedTensor]) -> np.dtype:
    names = {tensor.dtype_name for tensor in tensors.values()}
    if len(names) != 1:
        raise EctypeError(f"{folder}: {what} has the dtypes {', '.join(sorted(names))}", "one", "use another folder")
    return DTYPES[names.pop()]


def _count(folder: Path, steps: Sequence[DistributedTensor]) -> np.ndarray:
    """Adam's count of updates, float32: OLMo-core keeps one for each tensor, Ectype one for all."""
    values = {float(step.read()) for step in steps}
    if len(values) != 1:
        raise EctypeError(
            f"{folder}: Adam's counts range from {min(values):g} to {max(values):g}", "one count for all tensors",
            "import weights alone, from a folder without optimiser state",
        )  # fmt: skip
    return np.asarray(values.pop(), np.float32)


def _step_of(place: Path) -> int | None:
    """Updates taken, from the folder's name; OLMo-core calls it `step<N>`."""
    folder = place.parent if place.name == SUBFOLDER else place
    match = _STEP_FOLDER.fullmatch(folder.absolute().name)
    return int(match[1]) if match else None


def _identity(place: Path, model: Model) -> str:
    """Hash of what decides the result."""
    files = {file.name: [file.stat().st_size, file.stat().st_mtime_ns] for file in sorted(place.glob("*.distcp"))}
    metadata = sha256_of_file(place / METADATA_NAME)
    return sha256_of_json([metadata, files, model.model_dump(mode="json")])
