"""Faulty functions that stand in for sound ones: of the loss, the model, the step, the optimiser and the restart.

Each is written on top of the sound one, so that it differs in the fault alone.

Shapes: B batch, L length, D model, H heads, K head dim.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ectype.faults.injection import in_place_of
from ectype.model import decoder
from ectype.model.rope import attention_factor, rotary_tables
from ectype.recipe.spec import Model, Recipe, Yarn
from ectype.train import checkpoint, loop, optimizer, step
from ectype.train.optimizer import init_optimizer

Tree = Any
Making = AbstractContextManager[None]


def labels_shifted() -> Making:
    """The target is the token after the next one."""

    def targets(tokens_BL: jax.Array, keep_B: jax.Array) -> tuple[jax.Array, jax.Array]:
        length = tokens_BL.shape[1]
        has_target_L = jnp.arange(length) < length - 2
        return jnp.roll(tokens_BL, -2, axis=1), (keep_B[:, None] & has_target_L).astype(jnp.float32)

    return in_place_of(step, "next_token_targets", targets)


def marked_yarn(model: Model) -> Yarn:
    """The model's own YaRN with its attention factor spelled out: the same numbers, and yet told apart.

    Raises:
        ValueError: the model has no YaRN.
    """
    if model.yarn is None:
        raise ValueError("the fault needs a recipe with YaRN")
    return model.yarn.model_copy(update={"attention_factor": attention_factor(model.yarn)})


def yarn_in_all_layers() -> Making:
    """YaRN scales the window layers as well, in models whose attention factor is spelled out.

    The mark keeps the reference sound, which runs in the same process when the two are compared.
    """
    sound = decoder.layer_rotary

    def rotary(model: Model, positions_L: jax.Array) -> Any:
        if model.yarn is None or model.yarn.attention_factor is None:
            return sound(model, positions_L)
        scaled = rotary_tables(positions_L, model.rope_theta, model.head_dim, model.yarn)
        return scaled, scaled

    return in_place_of(decoder, "layer_rotary", rotary)


def weights_of_whole_norm() -> Making:
    """A norm per head keeps the weights of one over the whole projection: [H * K], taken head by head."""
    sound = decoder.rms_norm

    def norm(x: jax.Array, weight: jax.Array, *rest: Any) -> jax.Array:
        if weight.shape[-1] == x.shape[-1]:
            return sound(x, weight, *rest)
        # The sound norm runs over as many axes as its weight has: one, for a norm per head.
        of_heads = weight.reshape(x.shape[-2:])
        return (sound(x, jnp.ones_like(of_heads[0]), *rest) * of_heads).astype(x.dtype)

    return in_place_of(decoder, "rms_norm", norm)


def shapes_of_whole_norm() -> Making:
    """Parameters as for a norm over the whole projection, whichever norm the model names."""
    sound = decoder.Attention.__init__

    def begin(self: Any, model: Model, *rest: Any) -> None:
        sound(self, model.model_copy(update={"qk_norm": "projection"}), *rest)

    return in_place_of(decoder.Attention, "__init__", begin)


def gate_and_up_swapped(slot: str, block: int) -> Making:
    """Step-0 weights whose gate and up projections have changed places in one layer."""
    sound = loop.initial_weights

    def weights(job: loop.Job) -> Tree:
        params = sound(job)
        mlp = params["blocks"][slot]["mlp"]
        gate, up = mlp["gate"], mlp["up"]
        swapped = {"gate": gate.at[block].set(up[block]), "up": up.at[block].set(gate[block])}
        slots = params["blocks"] | {slot: params["blocks"][slot] | {"mlp": mlp | swapped}}
        return params | {"blocks": slots}

    return in_place_of(loop, "initial_weights", weights)


def mean_of_means(parts: int) -> Making:
    """Each of `parts` micro-batches is divided by its own count of tokens, and the means are averaged."""
    sound = step.local_gradients

    def gradients(params: Tree, batch: step.DeviceBatch, *, specs: Tree, **options: Any) -> tuple[Tree, step.Metrics]:
        windows = batch.tokens.shape[0] // parts
        found = [
            sound(
                params, jax.tree.map(lambda array, first=part * windows: array[first : first + windows], batch),
                specs=specs, **options,
            )
            for part in range(parts)
        ]  # fmt: skip
        counts = [jnp.maximum(metrics.loss_tokens, 1) for _, metrics in found]
        whole = sum(metrics.loss_tokens for _, metrics in found)
        # The step divides by the whole count once more.
        summed = jax.tree.map(
            lambda *grads: sum(grad / count for grad, count in zip(grads, counts, strict=True)) * whole / parts,
            *[grads for grads, _ in found],
        )
        metrics = found[0][1]
        return summed, replace(
            metrics,
            loss=sum(each.loss for _, each in found) / parts,
            z_loss=sum(each.z_loss for _, each in found) / parts,
            grad_norm=step.gradient_norm(summed, specs) / jnp.maximum(whole, 1),
            loss_tokens=whole,
        )

    return in_place_of(step, "local_gradients", gradients)


def moments_in_bfloat16() -> Making:
    """Adam's moments go through bfloat16 after each update, whatever the recipe says."""
    sound = optimizer.adamw

    def narrowed(moment: jax.Array) -> jax.Array:
        return moment.astype(jnp.bfloat16).astype(moment.dtype)

    def adamw(*arguments: Any) -> tuple[Tree, optimizer.OptimizerState]:
        params, state = sound(*arguments)
        first, second = (jax.tree.map(narrowed, tree) for tree in (state.first_moment, state.second_moment))
        return params, replace(state, first_moment=first, second_moment=second)

    return in_place_of(optimizer, "adamw", adamw)


Restored = tuple[Any, dict[str, Any]]


def _restoring(change: Callable[[Restored, Recipe, Callable[[int], Restored]], Restored]) -> Making:
    """`change` gets what a restart restores, the recipe, and a function that restores another step."""
    sound = checkpoint.restore_newest

    def restore(
        run_dir: Path, steps: Sequence[int], recipe: Recipe, mesh: Any, warn: Callable[[str], None], *rest: Any
    ) -> Restored:
        found = sound(run_dir, steps, recipe, mesh, warn, *rest)
        return change(found, recipe, lambda other: checkpoint.restore(run_dir, other, recipe, mesh, *rest))

    return in_place_of(checkpoint, "restore_newest", restore)


def history_lost() -> Making:
    """A restart forgets the recent losses and norms that the skip rule compares with."""

    def forget(found: Restored, recipe: Recipe, _: Callable[[int], Restored]) -> Restored:
        state, meta = found
        empty = init_optimizer(state.params, recipe.optimizer, recipe.numerics.moments).history
        # Both rings begin as one array, and the step gives each buffer away once.
        empty = jax.tree.map(
            lambda new, old: jax.device_put(np.array(new), old.sharding), empty, state.optimizer.history
        )
        return replace(state, optimizer=replace(state.optimizer, history=empty)), meta

    return _restoring(forget)


def stale_restored(older: int, newer: int) -> Making:
    """A restart at `newer` updates takes the state of `older` updates, and goes on counting from `newer`."""

    def take(found: Restored, _: Recipe, restore: Callable[[int], Restored]) -> Restored:
        state, meta = found
        if int(state.step) != newer:
            return found
        return replace(restore(older)[0], step=state.step), meta

    return _restoring(take)
