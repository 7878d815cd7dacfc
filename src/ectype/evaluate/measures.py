"""What two models say of each token: cross-entropy, KL divergence, and whether their first choices agree.

Shapes: B rows, L row length, C tokens of a chunk, D model, V vocabulary rows.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from ectype.model.decoder import forward, head_logits
from ectype.recipe.spec import Model

Tree = dict[str, Any]

_SMALL = 0.25
"""Below this the series for e^d - 1 - d is used: the subtraction would lose half the digits."""
_DIRECT = 30.0
"""Above this largest centred logit difference the textbook sum is used: e^d nears the end of float32."""


def token_kl(reference_CV: jax.Array, ours_CV: jax.Array, log_z_C: tuple[jax.Array, jax.Array]) -> jax.Array:
    """KL(reference || ours) per token in nats, float32 [C], never negative, from two models' logits.

    The textbook sum of p (log p - log q) drowns a divergence of 1e-9 in its own float32 rounding of 1e-7. With
    z = reference - ours and d = E_p[z] - z, the same divergence is log E_p[e^d], and as E_p[d] = 0 that is
    log(1 + E_p[e^d - 1 - d]): a sum of non-negative terms, each with full relative precision.

    Args:
        reference_CV: the reference's logits, float32.
        ours_CV: our logits, float32.
        log_z_C: logsumexp of the reference's logits, and of ours.
    """
    p = jnp.exp(reference_CV - log_z_C[0][:, None])
    z = reference_CV - ours_CV
    mean_z = jnp.sum(p * z, axis=-1)
    d = mean_z[:, None] - z
    centred = jnp.log1p(jnp.sum(p * excess_exponential(jnp.minimum(d, _DIRECT)), axis=-1))
    direct = mean_z - log_z_C[0] + log_z_C[1]
    return jnp.where(jnp.max(d, axis=-1) > _DIRECT, direct, centred)


def excess_exponential(d: jax.Array) -> jax.Array:
    """e^d - 1 - d to full relative precision, float32; its argument lies below the end of float32's exponents."""
    series = d * d * (0.5 + d * (1 / 6 + d * (1 / 24 + d * (1 / 120 + d * (1 / 720 + d / 5040)))))
    return jnp.where(jnp.abs(d) < _SMALL, series, jnp.expm1(d) - d)


def losses(logits_CV: jax.Array, targets_C: jax.Array, vocab_size: int) -> tuple[dict[str, jax.Array], jax.Array]:
    """Losses of one model in nats by a float32 log-softmax, each float32 [C], and logsumexp over the real rows.

    `loss` sees the real rows alone, which is what a Hugging Face export computes; `loss_all_rows` sees every trained
    row, as training does.
    """
    chosen = jnp.take_along_axis(logits_CV, targets_C[:, None], axis=-1)[:, 0]
    log_z = log_z_all = jax.nn.logsumexp(logits_CV[:, :vocab_size], axis=-1)
    if logits_CV.shape[-1] > vocab_size:
        log_z_all = jnp.logaddexp(log_z, jax.nn.logsumexp(logits_CV[:, vocab_size:], axis=-1))
    return {"loss": log_z - chosen, "loss_all_rows": log_z_all - chosen}, log_z


def chunk_measures(
    ours_CV: jax.Array, reference_CV: jax.Array | None, targets_C: jax.Array, vocab_size: int
) -> dict[str, jax.Array]:
    """Measures of a chunk of tokens, each float32 [C].

    Args:
        ours_CV: our logits, float32, over all trained rows.
        reference_CV: the reference's logits, float32; its number of rows may differ. None: there are losses alone.
        targets_C: the ids that follow, int32.
        vocab_size: real rows, which alone `kl` and `agree` (1 or 0) see.
    """
    found, log_z = losses(ours_CV, targets_C, vocab_size)
    if reference_CV is None:
        return found
    theirs, reference_log_z = losses(reference_CV, targets_C, vocab_size)
    ours, reference = ours_CV[:, :vocab_size], reference_CV[:, :vocab_size]
    agree = jnp.argmax(ours, axis=-1) == jnp.argmax(reference, axis=-1)
    return (
        found
        | {f"reference_{name}": values for name, values in theirs.items()}
        | {
            "kl": token_kl(reference, ours, (reference_log_z, log_z)),
            "agree": agree.astype(jnp.float32),
        }
    )


@partial(jax.jit, static_argnames=("models", "compute_dtype", "chunk_tokens"))
def row_measures(
    params: tuple[Tree, ...],
    inputs_BL: jax.Array,
    targets_BL: jax.Array,
    *,
    models: tuple[Model, ...],
    compute_dtype: str,
    chunk_tokens: int,
) -> dict[str, jax.Array]:
    """Measures of every prediction of a batch of rows, each float32 [B, L].

    Args:
        params: our parameters, and the reference's if there is one.
        inputs_BL: what the models see, int32.
        targets_BL: what follows each input, int32.
        models: our model section, and the reference's; both have the same `vocab_size`.
        compute_dtype: element type of all forward passes; logits and all that follows are float32.
        chunk_tokens: how many tokens' logits exist at a time, at least one of each row.
    """
    hidden = [
        forward(tree, inputs_BL, model, compute_dtype=compute_dtype) for tree, model in zip(params, models, strict=True)
    ]

    def one(chunk: Sequence[jax.Array]) -> dict[str, jax.Array]:
        *hidden_CD, targets_C = chunk
        logits = [head_logits(*side) for side in zip(params, hidden_CD, models, strict=True)]
        return chunk_measures(logits[0], logits[1] if len(logits) > 1 else None, targets_C, models[0].vocab_size)

    return by_chunks(one, (*hidden, targets_BL), chunk_tokens)


def by_chunks(one: Callable[[Sequence[jax.Array]], Tree], arrays: Sequence[jax.Array], chunk_tokens: int) -> Tree:
    """Apply `one` to [C, ...] parts of [B, L, ...] arrays, and put its [C, ...] results together as [B, L, ...].

    A chunk holds some positions of every row, so that rows which are spread over devices stay where they are.
    """
    rows, length = arrays[0].shape[:2]
    width = max(1, min(length, chunk_tokens // rows))
    count = -(-length // width)

    def cut(x: jax.Array) -> jax.Array:
        padded = jnp.pad(x, [(0, 0), (0, count * width - length)] + [(0, 0)] * (x.ndim - 2))
        return jnp.moveaxis(padded.reshape(rows, count, width, *x.shape[2:]), 1, 0)

    def apply(parts: Sequence[jax.Array]) -> Tree:
        found = one([part.reshape(rows * width, *part.shape[2:]) for part in parts])
        return {name: x.reshape(rows, width, *x.shape[1:]) for name, x in found.items()}

    results = jax.lax.map(apply, tuple(cut(x) for x in arrays))
    return {
        name: jnp.moveaxis(x, 0, 1).reshape(rows, count * width, *x.shape[3:])[:, :length]
        for name, x in results.items()
    }
