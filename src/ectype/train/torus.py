"""How a mesh lies on the chips' torus: neighbours in the mesh are neighbours on it, and gathers go along its axes."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jax.experimental import mesh_utils
from jax.sharding import Mesh

_GATHERED_AXES = 2
"""Torus axes that one gather or scatter may span: over three, the TPU compiler sums whole arrays instead."""


def arrange(devices: Sequence[Any], sizes: tuple[int, ...]) -> np.ndarray:
    """The devices in the shape of a mesh: slices outermost, and the last mesh axes on neighbouring chips."""
    if not hasattr(devices[0], "coords"):
        return np.array(devices).reshape(sizes)
    slices = len({getattr(device, "slice_index", 0) for device in devices})
    if slices == 1:
        return mesh_utils.create_device_mesh(sizes, devices, allow_split_physical_axes=True)
    if sizes[0] % slices:
        return np.array(devices).reshape(sizes)
    within, across = (sizes[0] // slices, *sizes[1:]), (slices, *(1,) * (len(sizes) - 1))
    return mesh_utils.create_hybrid_device_mesh(within, across, devices, allow_split_physical_axes=True)


def coordinates(mesh: Mesh) -> list[tuple[int, ...]] | None:
    """Place of each device on the torus and within its chip, in the mesh's order; None where there is no torus."""
    devices = mesh.devices.ravel().tolist()
    if not hasattr(devices[0], "coords"):
        return None
    return [(*device.coords, device.core_on_chip) for device in devices]


def gather_stages(mesh: Mesh, axis: str) -> tuple[int, ...]:
    """Sizes of the steps in which one gather over a mesh axis is done, outermost first; their product is its size.

    One step where the axis spans at most two axes of the torus. Over three, the devices that share all but the last
    torus axis are one step and the rest another, if they follow each other in the mesh.
    """
    size, places = mesh.shape[axis], coordinates(mesh)
    if places is None or size == 1:
        return (size,)
    by_device = np.array(places).reshape(*mesh.devices.shape, -1)
    # Of the devices along the axis, those at the start of all other axes.
    along = np.moveaxis(by_device, mesh.axis_names.index(axis), 0).reshape(size, -1, by_device.shape[-1])[:, 0]
    spanned = [number for number in range(along.shape[1] - 1) if len(set(along[:, number].tolist())) > 1]
    if len(spanned) <= _GATHERED_AXES:
        return (size,)
    others: Any = along[:, spanned[:-1]]
    inner = int(np.sum(np.all(others == others[0], axis=1)))
    blocks = others.reshape(size // inner, inner, -1) if size % inner == 0 else None
    if blocks is None or not (blocks == blocks[:, :1]).all():
        return (size,)
    return size // inner, inner
