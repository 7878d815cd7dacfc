"""Where the engine's arrays lie: rows of a batch over all devices, weights whole on each or split over them."""

from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from ectype.errors import EctypeError
from ectype.model.parameters import parameter_shapes
from ectype.recipe.spec import Model

Tree = Any
_AXIS = "data"


def row_sharding(devices: int | None = None) -> NamedSharding:
    """Rows of a batch, split over this process's devices, or over the first `devices` of them."""
    return NamedSharding(_mesh(devices), PartitionSpec(_AXIS))


def weight_shardings(model: Model, split: bool, devices: int | None = None) -> Tree:
    """A sharding for each parameter leaf: a copy on each device, or with `split` a part.

    A split leaf is cut along its last axis that the devices divide, where one does; the compiler gathers a layer's
    weights as they are needed, so that only one block of layers is whole at a time.
    """
    mesh = _mesh(devices)

    def one(shape: tuple[int, ...]) -> NamedSharding:
        axes = [axis for axis, size in enumerate(shape) if size % mesh.size == 0 and axis + 2 >= len(shape)]
        parts: list[str | None] = [None] * len(shape)
        if split and axes:
            parts[axes[-1]] = _AXIS
        return NamedSharding(mesh, PartitionSpec(*parts))

    return jax.tree.map(one, parameter_shapes(model), is_leaf=lambda leaf: isinstance(leaf, tuple))


def whole_rows(batch_rows: int, devices: int | None = None) -> int:
    """`batch_rows`, raised to a multiple of the devices."""
    count = _mesh(devices).size
    return -(-batch_rows // count) * count


def _mesh(devices: int | None) -> Mesh:
    found = jax.local_devices()
    if devices is not None and not 0 < devices <= len(found):
        raise EctypeError(f"{devices} devices", f"1 to {len(found)}, as this process has", "leave it out for all")
    return Mesh(np.array(found[:devices]), (_AXIS,))
