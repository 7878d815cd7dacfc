"""Token KL against a reference of which only the most probable ids are known. Arrays in, arrays out.

Let S be the reference's top ids of a token, T all others, p the reference and q our model. Stored are log p of S and
log p(T). Counting T as one event gives

    lower = sum over S of p log(p / q) + p(T) log(p(T) / q(T)),

and the full divergence is lower + p(T) KL(p within T || q within T) (the chain rule of Kullback and Leibler 1951). The
last part is never negative, so `lower` never exceeds the full KL. No id in T has a p above the least of S, m, and none
a q below the least of T, n; so the last part is at most p(T) (log(m / n) - log(p(T) / q(T))), which gives `upper`.

Shapes: B rows, L row length, C tokens of a chunk, D model, K top ids, V vocabulary rows.
"""

from collections.abc import Sequence
from functools import partial

import jax
import jax.numpy as jnp

from ectype.evaluate.measures import Tree, by_chunks, excess_exponential, losses
from ectype.model.decoder import forward, head_logits
from ectype.recipe.spec import Model


def top_of_reference(logits_CV: jax.Array, targets_C: jax.Array, top_ids: int, vocab_size: int) -> dict[str, jax.Array]:
    """What is stored of each token: `ids` int32 [C, K] by falling probability, `log_probabilities` float32 [C, K],
    `log_tail` float32 [C] (minus infinity without a tail), and the losses, float32 [C]."""
    found, log_z_C = losses(logits_CV, targets_C, vocab_size)
    real_CV = logits_CV[:, :vocab_size]
    values_CK, ids_CK = jax.lax.top_k(real_CV, top_ids)
    return found | {
        "ids": ids_CK,
        "log_probabilities": values_CK - log_z_C[:, None],
        "log_tail": jax.nn.logsumexp(_without(real_CV, ids_CK, -jnp.inf), axis=-1) - log_z_C,
    }


def truncated_measures(
    ours_CV: jax.Array,
    ids_CK: jax.Array,
    log_p_CK: jax.Array,
    log_tail_C: jax.Array,
    targets_C: jax.Array,
    vocab_size: int,
) -> dict[str, jax.Array]:
    """Our losses, `kl` (the lower bound), `kl_upper`, `tail_mass` and `agree` (1 or 0), each float32 [C].

    As both sides sum to one, each term p log(p / q) may stand as p log(p / q) - p + q, which is never negative: terms
    keep their digits, and a sum of p that is off by a rounding changes the result by that fraction of itself alone.

    Args:
        ours_CV: our logits, float32, over all trained rows.
        ids_CK, log_p_CK, log_tail_C: as `top_of_reference` gives them.
    """
    found, log_z_C = losses(ours_CV, targets_C, vocab_size)
    log_q_CV = ours_CV[:, :vocab_size] - log_z_C[:, None]
    log_q_CK = jnp.take_along_axis(log_q_CV, ids_CK, axis=-1)
    log_q_tail_C = jax.nn.logsumexp(_without(log_q_CV, ids_CK, -jnp.inf), axis=-1)
    lower = jnp.sum(_term(log_p_CK, log_q_CK), axis=-1) + _term(log_tail_C, log_q_tail_C)
    least_q_C = jnp.min(_without(log_q_CV, ids_CK, jnp.inf), axis=-1)
    tail = jnp.exp(log_tail_C)
    room = (log_p_CK[:, -1] - least_q_C) - (log_tail_C - log_q_tail_C)
    within = jnp.where(tail > 0, tail * jnp.maximum(room, 0), 0.0)
    return found | {
        "kl": lower,
        "kl_upper": lower + within,
        "tail_mass": tail,
        "agree": (jnp.argmax(log_q_CV, axis=-1) == ids_CK[:, 0]).astype(jnp.float32),
    }


def _term(log_p: jax.Array, log_q: jax.Array) -> jax.Array:
    """p log(p / q) - p + q, from logarithms; q where p is 0."""
    p, d = jnp.exp(log_p), log_q - log_p
    small = p * excess_exponential(d)
    plain = jnp.exp(log_q) - p - p * d
    return jnp.where(jnp.isneginf(log_p), jnp.exp(log_q), jnp.where(jnp.abs(d) < 1, small, plain))


def _without(values_CV: jax.Array, ids_CK: jax.Array, filling: float) -> jax.Array:
    """The values with `filling` at the given ids."""
    return values_CV.at[jnp.arange(len(values_CV))[:, None], ids_CK].set(filling)


@partial(jax.jit, static_argnames=("model", "compute_dtype", "chunk_tokens", "top_ids"))
def top_rows(
    params: Tree,
    inputs_BL: jax.Array,
    targets_BL: jax.Array,
    *,
    model: Model,
    compute_dtype: str,
    chunk_tokens: int,
    top_ids: int,
) -> dict[str, jax.Array]:
    """`top_of_reference` of every prediction of a batch of rows, [B, L, ...]. Arguments as for `row_measures`."""
    hidden_BLD = forward(params, inputs_BL, model, compute_dtype=compute_dtype)

    def one(chunk: Sequence[jax.Array]) -> Tree:
        return top_of_reference(head_logits(params, chunk[0], model), chunk[1], top_ids, model.vocab_size)

    return by_chunks(one, (hidden_BLD, targets_BL), chunk_tokens)


@partial(jax.jit, static_argnames=("model", "compute_dtype", "chunk_tokens"))
def truncated_rows(
    params: Tree,
    inputs_BL: jax.Array,
    targets_BL: jax.Array,
    stored: tuple[jax.Array, jax.Array, jax.Array],
    *,
    model: Model,
    compute_dtype: str,
    chunk_tokens: int,
) -> dict[str, jax.Array]:
    """`truncated_measures` of every prediction of a batch of rows, float32 [B, L].

    Args:
        stored: `ids` int32 [B, L, K], `log_probabilities` float32 [B, L, K] and `log_tail` float32 [B, L].
    """
    hidden_BLD = forward(params, inputs_BL, model, compute_dtype=compute_dtype)

    def one(chunk: Sequence[jax.Array]) -> Tree:
        hidden_CD, targets_C, ids_CK, log_p_CK, log_tail_C = chunk
        logits_CV = head_logits(params, hidden_CD, model)
        return truncated_measures(logits_CV, ids_CK, log_p_CK, log_tail_C, targets_C, model.vocab_size)

    return by_chunks(one, (hidden_BLD, targets_BL, *stored), chunk_tokens)
