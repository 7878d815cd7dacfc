"""Which device holds what: the mesh of a placement, and where each parameter is split."""

import math
import os
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from ectype.errors import EctypeError
from ectype.model.decoder import parameter_shapes
from ectype.model.parallel import CONTEXT, TENSOR, Split
from ectype.model.parameters import parameter_count
from ectype.recipe.compiler_flags import LIBTPU_VARIABLE, libtpu_arguments
from ectype.recipe.placement import Placement
from ectype.recipe.spec import Model, Recipe
from ectype.train.torus import arrange

Tree = Any
MESH_AXES = ("data", "fsdp", CONTEXT, TENSOR)
"""Outermost first: neighbouring devices share a copy's tensors, then its sequences, then its parameters."""

LOGICAL_AXES: dict[str, tuple[str, ...]] = {
    "batch": ("data", "fsdp"), "sequence": (CONTEXT,), "embed": ("fsdp",), "blocks": (), "head_dim": (),
    "width": (), "vocabulary": (TENSOR,), "heads": (TENSOR,), "kv_heads": (TENSOR,), "ffn": (TENSOR,),
}  # fmt: skip
"""The mesh axes that split each logical axis of a parameter or of a batch.

Vectors over the model's channels are not worth a gather: every device holds them whole.
"""

LEAF_AXES: dict[str, tuple[str, ...]] = {
    "embedding.weight": ("vocabulary", "embed"), "head.weight": ("vocabulary", "embed"), "norm.weight": ("width",),
    "query": ("heads", "embed"), "key": ("kv_heads", "embed"), "value": ("kv_heads", "embed"),
    "output": ("embed", "heads"), "query_norm": ("heads",), "key_norm": ("kv_heads",),
    "query_bias": ("heads",), "key_bias": ("kv_heads",), "value_bias": ("kv_heads",),
    "gate": ("ffn", "embed"), "up": ("ffn", "embed"), "down": ("embed", "ffn"),
    "attention_norm": ("width",), "mlp_norm": ("width",),
}  # fmt: skip
"""The logical axes of each parameter leaf by its last one or two names, the stack axis of `blocks` left out."""

BATCH_AXES = LOGICAL_AXES["batch"]
"""Mesh axes over which the rows of a batch are split."""


def prepare_devices(placement: Placement) -> None:
    """Ask JAX for the placement's devices. Call it before anything else touches a device.

    Raises:
        EctypeError: JAX already runs with other devices.
    """
    if placement.platform != "cpu":
        # libtpu reads its flags when the first device is asked for.
        if arguments := libtpu_arguments(placement, os.environ):
            os.environ[LIBTPU_VARIABLE] = arguments
        return
    # Also where the machine has an accelerator: a CPU placement means its cores.
    jax.config.update("jax_platforms", "cpu")
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
    """The mesh over all devices of the job, axes in the order of `MESH_AXES`.

    Raises:
        EctypeError: the axes do not multiply to the devices at hand.
    """
    devices = (
        jax.devices()
        if placement.platform != "cpu"
        else jax.devices()[: (placement.devices or 1) * jax.process_count()]
    )
    sizes = mesh_sizes(placement, len(devices))
    return Mesh(arrange(devices, tuple(sizes.values())), tuple(sizes))


def mesh_sizes(placement: Placement, devices: int) -> dict[str, int]:
    """The size of each of `MESH_AXES` when the placement's mesh spans `devices`.

    Raises:
        EctypeError: the axes do not multiply to the devices.
    """
    sizes = {name: getattr(placement.mesh, name) for name in MESH_AXES}
    free = [name for name, size in sizes.items() if size == -1]
    known = math.prod(size for size in sizes.values() if size != -1)
    if len(free) == 1 and devices % known == 0:
        sizes[free[0]] = devices // known
    if len(free) > 1 or math.prod(sizes.values()) != devices:
        raise EctypeError(
            f"placement {placement.name}: mesh {placement.mesh.model_dump()} on {devices} devices",
            "axis sizes whose product is the count of devices; at most one may be -1",
            "change the mesh, for example --placement-set mesh.data=-1",
        )  # fmt: skip
    return sizes


def check_fit(recipe: Recipe, mesh: Mesh | AbstractMesh, placement: Placement) -> None:
    """Refuse a mesh over which the recipe's model, windows or batch cannot be split, and name what can be.

    Raises:
        EctypeError: a size that its mesh axes do not divide.
    """
    _check_model(recipe, mesh)
    stages = placement.gather_stages
    if stages is not None and math.prod(stages) != mesh.shape["fsdp"]:
        raise EctypeError(
            f"gather_stages {list(stages)} with mesh.fsdp {mesh.shape['fsdp']}", "stages whose product is that size",
            "leave gather_stages out, or set it to fit",
        )  # fmt: skip
    rows, windows = math.prod(mesh.shape[axis] for axis in BATCH_AXES), recipe.data.global_batch_windows
    if windows % rows:
        copy_devices = mesh.size // rows
        near = sorted(_divisors(windows), key=lambda count: abs(count - rows))[:3]
        raise EctypeError(
            f"{windows} windows a batch over mesh.data x mesh.fsdp = {rows}, on {mesh.size} devices",
            "a count that divides the batch",
            f"nearest workable counts of devices: {', '.join(str(count * copy_devices) for count in sorted(near))}",
        )  # fmt: skip
    share, micro = device_windows(recipe, mesh.shape), placement.micro_batch_windows
    if micro is not None and share % micro:
        fitting = _divisors(share)
        raise EctypeError(
            f"micro_batch_windows {micro} with {share} windows a device", f"one of {fitting}",
            f"set micro_batch_windows={max(count for count in fitting if count <= micro)}",
        )  # fmt: skip


def device_windows(recipe: Recipe, sizes: Mapping[str, int]) -> int:
    """Windows of a batch that one device takes, on a mesh of these axis sizes that `check_fit` lets by."""
    return recipe.data.global_batch_windows // math.prod(sizes[axis] for axis in BATCH_AXES)


def check_memory(recipe: Recipe, placement: Placement) -> None:
    """Refuse a state and a batch that this machine cannot hold; elsewhere the device's own allocator says so.

    Raises:
        EctypeError: parameters, moments, gradients and one batch of tokens take more than the machine's memory.
    """
    if placement.platform != "cpu":
        return
    numerics, weights = recipe.numerics, parameter_count(recipe.model)
    a_weight = 2 * jnp.dtype(numerics.parameters).itemsize + 2 * jnp.dtype(numerics.moments).itemsize
    needed = weights * a_weight + recipe.data.global_batch_tokens * np.dtype(np.int32).itemsize
    held = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > held:
        raise EctypeError(
            f"a state and a batch of {needed / 1e9:.1f} GB ({weights:,} parameters) on a machine with "
            f"{held / 1e9:.1f} GB", "what the machine can hold",
            "take a smaller model or batch, or a placement on accelerators",
        )  # fmt: skip


def _check_model(recipe: Recipe, mesh: Mesh | AbstractMesh) -> None:
    model, tensor = recipe.model, mesh.shape[TENSOR]
    split_by = {
        TENSOR: {"heads": model.n_heads, "ffn channels": model.d_ffn, "vocabulary rows": model.rows},
        "fsdp": {"model channels": model.d_model},
        CONTEXT: {
            "tokens a window": recipe.data.sequence_length_tokens, "heads of a tensor device": model.n_heads // tensor
        },
    }  # fmt: skip
    for axis, counts in split_by.items():
        parts = mesh.shape[axis]
        undivided = [f"{count} {what}" for what, count in counts.items() if count % parts]
        if undivided:
            workable = _divisors(math.gcd(*counts.values()))
            raise EctypeError(
                f"mesh.{axis} {parts} does not divide {' and '.join(undivided)}", f"one of {workable}",
                f"for example --placement-set mesh.{axis}={max(count for count in workable if count <= parts)}",
            )  # fmt: skip


def _divisors(number: int) -> list[int]:
    return [count for count in range(1, number + 1) if number % count == 0]


def parameter_specs(model: Model, mesh: Mesh) -> Tree:
    """A `PartitionSpec` per leaf, by `LEAF_AXES` and `LOGICAL_AXES`; mesh axes of size 1 are left out.

    Key-value heads that do not divide among the tensor devices are held whole by each of them.
    """

    def spec(path: tuple[Any, ...], _: tuple[int, ...]) -> PartitionSpec:
        names = [part.key for part in path]
        axes = [_mesh_axis(axis, model, mesh) for axis in _logical_axes(names, model)]
        while axes and axes[-1] is None:
            axes.pop()
        return PartitionSpec(*axes)

    return jax.tree_util.tree_map_with_path(spec, parameter_shapes(model), is_leaf=lambda leaf: isinstance(leaf, tuple))


def _logical_axes(names: list[str], model: Model) -> tuple[str, ...]:
    axes = LEAF_AXES.get(".".join(names[-2:])) or LEAF_AXES[names[-1]]
    if model.qk_norm == "head" and names[-1] in ("query_norm", "key_norm"):
        axes = ("head_dim",)
    return ("blocks", *axes) if names[0] == "blocks" else axes


def _mesh_axis(logical: str, model: Model, mesh: Mesh) -> str | None:
    """The one mesh axis that splits a parameter's logical axis on this mesh, if any."""
    if logical == "kv_heads" and split_of(mesh).shares_keys(model.n_kv_heads):
        return None
    return next((axis for axis in LOGICAL_AXES[logical] if mesh.shape[axis] > 1), None)


def split_of(mesh: Mesh) -> Split:
    """How one copy of the model is split on `mesh`."""
    return Split(mesh.shape[TENSOR], mesh.shape[CONTEXT])


def named(mesh: Mesh, specs: Tree, memory: str | None = None) -> Tree:
    """`NamedSharding`s of a tree of specs, in the devices' own memory or in another kind."""
    return jax.tree.map(
        lambda s: NamedSharding(mesh, s, memory_kind=memory), specs, is_leaf=lambda s: isinstance(s, PartitionSpec)
    )


def fsdp_axis(spec: PartitionSpec) -> int | None:
    """The array's axis that `fsdp` splits, or None."""
    return next((axis for axis, name in enumerate(spec) if name == "fsdp"), None)
