"""Which device holds what: the mesh of a placement, and where each parameter is split."""

from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from ectype.errors import EctypeError
from ectype.recipe.placement import Placement
from ectype.recipe.spec import Data

Tree = Any
BATCH_AXES = ("data", "fsdp")
"""Mesh axes over which the rows of a batch are split; `fsdp` also splits parameters and moments."""


def prepare_devices(placement: Placement) -> None:
    """Ask JAX for the placement's devices. Call it before anything else touches a device.

    Raises:
        EctypeError: JAX already runs with other devices.
    """
    if placement.platform != "cpu":
        return
    wanted = placement.devices or 1
    if jax.config.jax_num_cpu_devices >= wanted:  # pyright: ignore[reportAttributeAccessIssue] - set at run time
        return  # More than enough were asked for already: the mesh takes the first ones.
    try:
        jax.config.update("jax_num_cpu_devices", wanted)
    except RuntimeError:
        if jax.local_device_count("cpu") < wanted:
            raise EctypeError(
                f"JAX already runs on {jax.local_device_count('cpu')} CPU devices",
                f"{wanted}, as placement {placement.name} says", "start the command in a process of its own",
            ) from None  # fmt: skip


def make_mesh(placement: Placement) -> Mesh:
    """The mesh over all devices of the job, axes in the order data, fsdp.

    Raises:
        EctypeError: the axes do not multiply to the devices at hand, or ask for an axis that is not there yet.
    """
    axes = placement.mesh
    if axes.tensor != 1 or axes.context != 1:
        raise EctypeError(
            f"placement {placement.name}: mesh.tensor {axes.tensor}, mesh.context {axes.context}",
            "1 for both: this version splits over data and fsdp only", "use mesh.fsdp to split parameters",
        )  # fmt: skip
    devices = (
        jax.devices()
        if placement.platform != "cpu"
        else jax.devices()[: (placement.devices or 1) * jax.process_count()]
    )
    sizes = {"data": axes.data, "fsdp": axes.fsdp}
    free = [name for name, size in sizes.items() if size == -1]
    known = int(np.prod([size for size in sizes.values() if size != -1]))
    if len(free) == 1 and len(devices) % known == 0:
        sizes[free[0]] = len(devices) // known
    if len(free) > 1 or np.prod(list(sizes.values())) != len(devices):
        raise EctypeError(
            f"placement {placement.name}: mesh {axes.model_dump()} on {len(devices)} devices",
            "axis sizes whose product is the count of devices; at most one may be -1",
            "change the mesh, for example --placement-set mesh.data=-1",
        )  # fmt: skip
    return Mesh(np.array(devices).reshape(tuple(sizes.values())), tuple(sizes))


def check_batch(data: Data, mesh: Mesh, placement: Placement) -> None:
    """Refuse device counts that the recipe's batch cannot be split over, naming the nearest that can."""
    devices, windows = mesh.size, data.global_batch_windows
    if windows % devices:
        workable = [count for count in range(1, windows + 1) if windows % count == 0]
        near = sorted(workable, key=lambda count: abs(count - devices))[:3]
        raise EctypeError(
            f"{windows} windows a batch on {devices} devices", "a count of devices that divides the batch",
            f"nearest workable counts: {', '.join(map(str, sorted(near)))}",
        )  # fmt: skip
    share = windows // devices
    micro = placement.micro_batch_windows
    if micro is not None and share % micro:
        fitting = [count for count in range(1, share + 1) if share % count == 0]
        raise EctypeError(
            f"micro_batch_windows {micro} with {share} windows a device", f"one of {fitting}",
            f"set micro_batch_windows={max(count for count in fitting if count <= micro)}",
        )  # fmt: skip


def parameter_specs(shapes: Tree, mesh: Mesh) -> Tree:
    """A `PartitionSpec` per leaf: its longest axis that `fsdp` divides, the stack axis of `blocks` left whole."""
    size = mesh.shape["fsdp"]

    def spec(path: tuple[Any, ...], shape: tuple[int, ...]) -> PartitionSpec:
        first = 1 if path[0].key == "blocks" else 0
        axes = [axis for axis in range(first, len(shape)) if shape[axis] % size == 0]
        if size == 1 or not axes:
            return PartitionSpec()
        longest = max(axes, key=lambda axis: shape[axis])
        return PartitionSpec(*(None,) * longest, "fsdp")

    return jax.tree_util.tree_map_with_path(spec, shapes, is_leaf=lambda leaf: isinstance(leaf, tuple))


def named(mesh: Mesh, specs: Tree) -> Tree:
    """`NamedSharding`s of a tree of specs."""
    return jax.tree.map(lambda s: NamedSharding(mesh, s), specs, is_leaf=lambda s: isinstance(s, PartitionSpec))


def split_axis(spec: PartitionSpec) -> int | None:
    """The axis that `fsdp` splits, or None for a replicated leaf."""
    return next((axis for axis, name in enumerate(spec) if name == "fsdp"), None)
