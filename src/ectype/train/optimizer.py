"""AdamW with torch's clipping and OLMo-core's skip-step rule. Pure functions over parameter trees.

Formulas: Loshchilov & Hutter 2019 (arXiv:1711.05101) as in OLMo-core `optim/adamw.py`; the skip rule as in
`optim/skip_step_optimizer.py`. Scalars are float32.
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from ectype.recipe.spec import Optimizer, SkipStep

Tree = Any


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class History:
    """The recent past that the skip rule compares with: a ring of `window_steps` values each.

    losses, norms: float32 [window_steps]; count: int32, values ever entered.
    """

    losses: jax.Array
    norms: jax.Array
    count: jax.Array


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class OptimizerState:
    """Moments (trees like the parameters), Adam's count of updates taken (float32), and the skip rule's history."""

    first_moment: Tree
    second_moment: Tree
    count: jax.Array
    history: History


def history_length(optimizer: Optimizer) -> int:
    """Values that the skip rule remembers; one when there is no rule, so that the state's shape is defined."""
    return optimizer.skip_step.window_steps if optimizer.skip_step else 1


def init_optimizer(params: Tree, optimizer: Optimizer, moments_dtype: str) -> OptimizerState:
    """Zero moments in `moments_dtype`, an empty history, and the count that the recipe starts at."""
    zeros = jax.tree.map(lambda p: jnp.zeros(p.shape, moments_dtype), params)
    ring = jnp.zeros(history_length(optimizer), jnp.float32)
    count = jnp.asarray(optimizer.count_starts_at, jnp.float32)
    history = History(ring, ring, jnp.zeros((), jnp.int32))
    return OptimizerState(zeros, zeros, count, history)


def squared_norm(gradients: Tree) -> jax.Array:
    """Sum of squares over all leaves, float32."""
    squares = [jnp.sum(jnp.square(g.astype(jnp.float32))) for g in jax.tree.leaves(gradients)]
    return sum(squares, start=jnp.zeros((), jnp.float32))


def clip_scale(norm: jax.Array, clip_norm: float | None) -> jax.Array:
    """torch's `clip_grad_norm_`: min(1, clip / (norm + 1e-6))."""
    return jnp.ones_like(norm) if clip_norm is None else jnp.minimum(1.0, clip_norm / (norm + 1e-6))


def accepts(history: History, loss: jax.Array, norm: jax.Array, rule: SkipStep | None) -> jax.Array:
    """Whether the update is taken (bool): both values at most `sigma` deviations above the recent mean.

    Mean and unbiased deviation run over at most `window_steps` earlier values, the current one excluded, and the
    rule is on once half a window of values, the current one included, is there. A value that is not finite is
    never accepted, with or without a rule: the reference lets it poison the moments.
    """
    finite = jnp.isfinite(loss) & jnp.isfinite(norm)
    if rule is None:
        return finite
    known = jnp.minimum(history.count, rule.window_steps)
    inside = _is_typical(history.losses, known, loss, rule) & _is_typical(history.norms, known, norm, rule)
    rule_is_on = known + 1 >= max(2, rule.window_steps // 2)
    return finite & (inside | ~rule_is_on)


def _is_typical(ring: jax.Array, known: jax.Array, value: jax.Array, rule: SkipStep) -> jax.Array:
    there = jnp.arange(ring.shape[0]) < known
    mean = jnp.sum(jnp.where(there, ring, 0)) / known
    variance = jnp.sum(jnp.where(there, jnp.square(ring - mean), 0)) / (known - 1)
    return value - mean <= rule.sigma * jnp.sqrt(variance)


def remember(history: History, loss: jax.Array, norm: jax.Array) -> History:
    """The history with this step's values in it; values that are not finite never enter."""
    enters = jnp.isfinite(loss) & jnp.isfinite(norm)
    place = history.count % history.losses.shape[0]
    losses = history.losses.at[place].set(jnp.where(enters, loss, history.losses[place]))
    norms = history.norms.at[place].set(jnp.where(enters, norm, history.norms[place]))
    return History(losses, norms, history.count + enters.astype(jnp.int32))


def adamw(
    params: Tree,
    gradients: Tree,
    state: OptimizerState,
    optimizer: Optimizer,
    learning_rate: jax.Array,
    scale: jax.Array,
    accepted: jax.Array,
) -> tuple[Tree, OptimizerState]:
    """One AdamW update of `params` with `scale * gradients`, or none of it where `accepted` is False.

    Bias correction uses count + 1. The embedding is decayed only if the recipe says so; every other leaf is,
    norms included. Moments keep their dtype; arithmetic is float32.
    """
    count = state.count + 1
    correction1 = 1 - jnp.power(jnp.float32(optimizer.beta1), count)
    correction2 = jnp.sqrt(1 - jnp.power(jnp.float32(optimizer.beta2), count))
    step_size = learning_rate / correction1

    def update(path, param, gradient, first, second):
        decays = optimizer.decay_embedding or path[0].key != "embedding"
        keep = 1 - learning_rate * (optimizer.weight_decay if decays else 0.0)
        gradient = gradient.astype(jnp.float32) * scale
        new_first = _blend(first.astype(jnp.float32), gradient, 1 - optimizer.beta1)
        new_second = _blend(second.astype(jnp.float32), gradient * gradient, 1 - optimizer.beta2)
        direction = new_first / (jnp.sqrt(new_second) / correction2 + optimizer.epsilon)
        new_param = param.astype(jnp.float32) * keep - step_size * direction
        # A choice, not a product with 0: 0 * NaN is NaN.
        return tuple(
            jnp.where(accepted, new.astype(old.dtype), old)
            for new, old in ((new_param, param), (new_first, first), (new_second, second))
        )

    updated = jax.tree_util.tree_map_with_path(update, params, gradients, state.first_moment, state.second_moment)
    new_params, first, second = jax.tree.transpose(jax.tree.structure(params), None, updated)
    advances = accepted.astype(jnp.float32) if optimizer.step_increment_bugfix else 0.0
    return new_params, OptimizerState(first, second, state.count + advances, state.history)


def _blend(old: jax.Array, new: jax.Array, weight: float) -> jax.Array:
    return old * (1 - weight) + new * weight
