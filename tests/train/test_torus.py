"""How meshes lie on the chips: the steps of a gather follow the axes of the torus."""

from itertools import product
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from ectype.train.torus import arrange, coordinates, gather_stages


def mesh(order, sizes, names):
    """A mesh of made-up devices at the places of `order`: coordinates, then the core."""
    devices = np.empty(len(order), object)
    devices[:] = [SimpleNamespace(coords=place[:-1], core_on_chip=place[-1]) for place in order]
    return SimpleNamespace(devices=devices.reshape(sizes), axis_names=names, shape=dict(zip(names, sizes, strict=True)))


def torus(*sides, cores=1):
    return list(product(*(range(side) for side in sides), range(cores)))


@pytest.mark.parametrize(
    ("places", "stages"),
    [
        (torus(4, 4, 8), (16, 8)),
        (torus(4, 8, 8, cores=2), (32, 16)),
        (torus(4, 4, 1), (16,)),
        (torus(8, 8), (64,)),
        (torus(1, 2, 4, cores=2), (16,)),
        (torus(2, 2, 2), (4, 2)),
        # Devices whose line along the last axis is broken up: no steps that follow it.
        (sorted(torus(2, 2, 2), key=lambda place: place[2]), (8,)),
    ],
)
def test_a_gather_over_three_axes_goes_in_two_steps(places, stages):
    assert gather_stages(mesh(places, (len(places),), ("fsdp",)), "fsdp") == stages


def test_only_the_axis_of_the_mesh_counts():
    placed = mesh(torus(4, 4, 8), (4, 32), ("data", "fsdp"))
    assert gather_stages(placed, "fsdp") == (32,)
    assert gather_stages(placed, "data") == (4,)
    assert gather_stages(mesh(torus(4, 4, 8), (128, 1), ("fsdp", "tensor")), "tensor") == (1,)


def test_devices_without_a_torus_keep_their_order():
    devices = jax.devices()
    placed = arrange(devices, (1, len(devices)))
    assert placed.ravel().tolist() == devices
    cpu = jax.sharding.Mesh(placed, ("data", "fsdp"))
    assert coordinates(cpu) is None
    assert gather_stages(cpu, "fsdp") == (len(devices),)
