"""One update as one compiled program. Every device works on its rows; sums over devices are explicit.

Shapes: B rows of the global batch, L length, b rows of one device, m rows of one micro-batch, l the device's part of
the length.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import Mesh, PartitionSpec

from ectype.model.attention import KERNEL_OF_PLATFORM
from ectype.model.decoder import forward, head_weight
from ectype.model.loss import next_token_targets, summed_loss
from ectype.model.parallel import CONTEXT, Split
from ectype.recipe.placement import Placement
from ectype.recipe.spec import Recipe
from ectype.train import optimizer as optim
from ectype.train.gather import Stages, gather_leaf
from ectype.train.sharding import BATCH_AXES, MESH_AXES, fsdp_axis, split_of
from ectype.train.state import TrainState, state_shardings, state_specs
from ectype.train.torus import gather_stages

Tree = Any
WHOLE_WEIGHT = "whole_weight"
SUM_AXES = (*BATCH_AXES, CONTEXT)
"""Mesh axes whose devices see different tokens."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class DeviceBatch:
    """tokens int32 [B, L]; keep bool [B]; segment_ids int32 [B, L] or None; target_mask bool [B, L] or None.

    stop: bool [B], True in the rows of a process that was asked to stop; it lets all processes stop at one step.
    """

    tokens: jax.Array
    keep: jax.Array
    stop: jax.Array
    segment_ids: jax.Array | None = None
    target_mask: jax.Array | None = None


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Metrics:
    """Of one update: losses in nats per counted token, the norm before clipping, and what was counted."""

    loss: jax.Array
    z_loss: jax.Array
    grad_norm: jax.Array
    skipped: jax.Array
    loss_tokens: jax.Array
    stop: jax.Array


def build_train_step(recipe: Recipe, placement: Placement, mesh: Mesh) -> Callable[..., tuple[TrainState, Metrics]]:
    """`step(state, batch, learning_rate) -> (state, metrics)`, not yet jitted; rows split over the mesh.

    The loss is the sum over all counted tokens of all micro-batches and devices, divided once by their number. Where
    the recipe counts rejected windows, each adds its full length to that number, as OLMo-core does.
    """
    specs = state_specs(recipe, mesh)
    stages = placement.gather_stages or gather_stages(mesh, "fsdp")
    local = partial(
        local_gradients, recipe=recipe, placement=placement, specs=specs.params, split=split_of(mesh), stages=stages
    )
    fetch, put_back = _moments_mover(recipe, placement, mesh)

    def step(state: TrainState, batch: DeviceBatch, learning_rate: jax.Array) -> tuple[TrainState, Metrics]:
        rows = jax.tree.map(lambda _: PartitionSpec(BATCH_AXES), batch)
        gradients, metrics = jax.shard_map(
            local, mesh=mesh, in_specs=(specs.params, rows), out_specs=(specs.params, PartitionSpec()), check_vma=False
        )(state.params, batch)
        loss, norm, history = metrics.loss, metrics.grad_norm, state.optimizer.history
        accepted = optim.accepts(history, loss, norm, recipe.optimizer.skip_step)
        scale = optim.clip_scale(norm, recipe.optimizer.clip_norm) / jnp.maximum(metrics.loss_tokens, 1)
        params, optimizer = optim.adamw(
            state.params, gradients, fetch(state.optimizer), recipe.optimizer, learning_rate, scale, accepted
        )
        optimizer = put_back(replace(optimizer, history=optim.remember(history, loss, norm)))
        return TrainState(params, optimizer, state.step + 1), replace(metrics, skipped=~accepted)

    return step


def _moments_mover(recipe: Recipe, placement: Placement, mesh: Mesh) -> tuple[Callable[[Any], Any], ...]:
    """Functions that bring the optimiser's state to the devices, and back to where the placement keeps it."""
    if placement.moments_memory == "device":
        return (lambda optimizer: optimizer,) * 2
    there, here = (state_shardings(recipe, mesh, memory).optimizer for memory in (placement.moments_memory, "device"))
    return (lambda optimizer: jax.device_put(optimizer, here)), (lambda optimizer: jax.device_put(optimizer, there))


def local_gradients(
    params: Tree, batch: DeviceBatch, *, recipe: Recipe, placement: Placement, specs: Tree, split: Split,
    stages: Stages,
) -> tuple[Tree, Metrics]:  # fmt: skip
    """Gradients of the summed loss, summed over devices and split as the parameters are, and what was measured.

    Targets are taken from whole windows; each context device then goes on with its stretch of them.
    Nothing is divided by the count before the end, and no sum over devices is taken earlier: after a collective, XLA's
    CPU client goes on with all devices of the process in one thread.
    """
    targets, mask = next_token_targets(batch.tokens, batch.keep)
    if batch.target_mask is not None:
        mask = mask * jnp.roll(batch.target_mask, -1, axis=1)
    tokens, targets, mask = (split.own_sequence(array) for array in (batch.tokens, targets, mask))
    windows, length = tokens.shape
    counted = jnp.sum(mask)
    if recipe.loss.rejected_windows_count == "full":
        counted += jnp.sum(~batch.keep) * length
    objective = partial(_objective, recipe=recipe, placement=placement, specs=specs, split=split, stages=stages)
    gradient = jax.grad(objective, has_aux=True)
    rows = (tokens, targets, mask, batch.segment_ids)
    micro = placement.micro_batch_windows or windows
    if micro == windows:
        gradients, sums = gradient(params, rows)
    else:
        rows = jax.tree.map(lambda array: array.reshape(-1, micro, *array.shape[1:]), rows)
        start = jax.tree.map(jnp.zeros_like, params), (jnp.zeros(()), jnp.zeros(()))

        def accumulate(total: Tree, rows: Tree) -> tuple[Tree, None]:
            return jax.tree.map(jnp.add, total, gradient(params, rows)), None

        (gradients, sums), _ = jax.lax.scan(accumulate, start, rows)
    gradients = jax.tree.map(partial(_sum_over_devices, dtype=recipe.numerics.gradient_reduction), gradients, specs)
    # All float32, so that one collective takes them together with the gradients.
    (loss, z_loss), counted = jax.lax.psum((sums, counted), SUM_AXES)
    # Tensor devices hold the same rows, but a row may be marked in one process and not yet in another.
    stop = jax.lax.psum(jnp.any(batch.stop).astype(jnp.float32), MESH_AXES)
    divisor = jnp.maximum(counted, 1)
    norm = gradient_norm(gradients, specs) / divisor
    return gradients, Metrics(loss / divisor, z_loss / divisor, norm, jnp.zeros((), bool), counted, stop > 0)


def _objective(
    params: Tree, rows: Tree, *, recipe: Recipe, placement: Placement, specs: Tree, split: Split, stages: Stages
):
    """objective, (cross-entropy, z-loss): sums over the tokens of one micro-batch on one device, in nats.

    rows: tokens, targets and mask [m, l]; segment ids [m, L] or None.
    """
    tokens, targets, mask, segment_ids = rows
    gather = partial(_gather, specs=specs, recipe=recipe, stages=stages)
    hidden_mlD = forward(
        params, tokens, recipe.model,
        compute_dtype=recipe.numerics.compute, segment_ids_BL=segment_ids,
        block_tokens=placement.attention_block_tokens, remat=remat_of(placement), gather=gather,
        split=split, kernel=placement.attention_kernel or KERNEL_OF_PLATFORM[placement.platform],
    )  # fmt: skip
    head_VD = head_weight(
        {part: gather(part, params[part]) for part in ("embedding", "head") if part in params}, recipe.model
    )
    return summed_loss(
        hidden_mlD.reshape(-1, hidden_mlD.shape[-1]), head_VD, targets.reshape(-1), mask.reshape(-1),
        recipe.loss.z_loss, placement.loss_chunk_tokens, split,
    )  # fmt: skip


def remat_of(placement: Placement) -> Callable[..., Any]:
    """What the backward pass of a block recomputes. Gathered weights always are: keeping them would undo the split."""
    policies = jax.checkpoint_policies
    if placement.remat == "full":
        return partial(jax.checkpoint, policy=policies.nothing_saveable)
    if placement.remat != "none":
        return partial(jax.checkpoint, policy=policies.save_only_these_names(*placement.remat))
    if placement.mesh.fsdp == 1:
        return lambda function, *, prevent_cse: function
    return partial(jax.checkpoint, policy=policies.save_anything_except_these_names(WHOLE_WEIGHT))


def _gather(part: str, tree: Tree, *, specs: Tree, recipe: Recipe, stages: Stages) -> Tree:
    """Leaves of one part, whole over `fsdp`; their gradients come back split and summed over it.

    Only matrices are split; they travel in the compute dtype, in which alone they are used, unless it is the wider one.
    """
    stack_axes = 1 if part == "blocks" else 0
    numerics = recipe.numerics

    def whole(leaf: jax.Array, spec: PartitionSpec) -> jax.Array:
        axis = fsdp_axis(spec)
        if axis is None:
            return leaf
        narrows = jnp.dtype(numerics.compute).itemsize < leaf.dtype.itemsize
        wire = numerics.compute if narrows else str(leaf.dtype)
        gathered = gather_leaf(leaf, axis - stack_axes, wire, numerics.gradient_reduction, stages)
        return checkpoint_name(gathered, WHOLE_WEIGHT)

    return jax.tree.map(whole, tree, specs[part])


def _sum_over_devices(gradient: jax.Array, spec: PartitionSpec, dtype: str) -> jax.Array:
    """The sum over all tokens; leaves that `fsdp` splits were already summed over it by their gather's transpose.

    Never over `tensor`: its devices hold parts of a leaf, or the same gradient of a leaf that all of them hold.
    """
    axes = SUM_AXES if fsdp_axis(spec) is None else tuple(axis for axis in SUM_AXES if axis != "fsdp")
    return jax.lax.psum(gradient.astype(dtype), axes)


def gradient_norm(gradients: Tree, specs: Tree) -> jax.Array:
    """L2 norm over the whole tree, float32: each element counts once, whichever devices hold it."""
    parts: dict[tuple[str, ...], list[jax.Array]] = {(): []}
    for gradient, spec in zip(jax.tree.leaves(gradients), jax.tree.leaves(specs), strict=True):
        parts.setdefault(tuple(axis for axis in spec if axis is not None), []).append(gradient)
    squares = optim.squared_norm(parts.pop(()))
    for axes, leaves in sorted(parts.items()):
        squares += jax.lax.psum(optim.squared_norm(leaves), axes)
    return jnp.sqrt(squares)
