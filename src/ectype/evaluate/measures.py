"""What two models say of each token: cross-entropy, KL divergence, and whether their first choices agree.

Shapes: B windows, L window length, C tokens of a chunk, D model, V vocabulary rows.
"""

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
    series = d * d * (0.5 + d * (1 / 6 + d * (1 / 24 + d * (1 / 120 + d * (1 / 720 + d / 5040)))))
    bounded = jnp.minimum(d, _DIRECT)
    excess = jnp.where(jnp.abs(d) < _SMALL, series, jnp.expm1(bounded) - bounded)
    centred = jnp.log1p(jnp.sum(p * excess, axis=-1))
    direct = mean_z - log_z_C[0] + log_z_C[1]
    return jnp.where(jnp.max(d, axis=-1) > _DIRECT, direct, centred)


def chunk_measures(
    ours_CV: jax.Array, reference_CV: jax.Array, targets_C: jax.Array, vocab_size: int
) -> dict[str, jax.Array]:
    """Measures of a chunk of tokens, each float32 [C]; losses are nats by a float32 log-softmax.

    Args:
        ours_CV: our logits, float32, over all trained rows.
        reference_CV: the reference's logits, float32; its number of rows may differ.
        targets_C: the ids that follow, int32.
        vocab_size: real rows. `loss`, `reference_loss`, `kl` and `agree` (1 or 0) see only these, which is what a
            Hugging Face export computes; the two `_all_rows` losses see every trained row, as training does.
    """
    sides = {"": ours_CV, "reference_": reference_CV}
    measures, log_z = {}, {}
    for side, logits_CV in sides.items():
        chosen = jnp.take_along_axis(logits_CV, targets_C[:, None], axis=-1)[:, 0]
        log_z[side] = log_z_all = jax.nn.logsumexp(logits_CV[:, :vocab_size], axis=-1)
        if logits_CV.shape[-1] > vocab_size:
            log_z_all = jnp.logaddexp(log_z[side], jax.nn.logsumexp(logits_CV[:, vocab_size:], axis=-1))
        measures |= {f"{side}loss": log_z[side] - chosen, f"{side}loss_all_rows": log_z_all - chosen}
    ours, reference = ours_CV[:, :vocab_size], reference_CV[:, :vocab_size]
    agree = jnp.argmax(ours, axis=-1) == jnp.argmax(reference, axis=-1)
    return measures | {
        "kl": token_kl(reference, ours, (log_z["reference_"], log_z[""])),
        "agree": agree.astype(jnp.float32),
    }


@partial(jax.jit, static_argnames=("models", "compute_dtype", "chunk_tokens"))
def window_measures(
    params: tuple[Tree, Tree],
    tokens_BL: jax.Array,
    *,
    models: tuple[Model, Model],
    compute_dtype: str,
    chunk_tokens: int,
) -> dict[str, jax.Array]:
    """Measures of every prediction of a batch of windows, each float32 [B, L - 1].

    Args:
        params: our parameters and the reference's.
        tokens_BL: windows, int32.
        models: our model section and the reference's; both have the same `vocab_size`.
        compute_dtype: element type of both forward passes; logits and all that follows are float32.
        chunk_tokens: how many tokens' logits exist at a time.
    """
    hidden = [
        forward(tree, tokens_BL, model, compute_dtype=compute_dtype)[:, :-1]
        for tree, model in zip(params, models, strict=True)
    ]
    batch, predictions, _ = hidden[0].shape
    count = batch * predictions
    n_chunks = -(-count // chunk_tokens)

    def chunked(x: jax.Array) -> jax.Array:
        flat = x.reshape(count, *x.shape[2:])
        padding = [(0, n_chunks * chunk_tokens - count)] + [(0, 0)] * (flat.ndim - 1)
        return jnp.pad(flat, padding).reshape(n_chunks, chunk_tokens, *x.shape[2:])

    def one(chunk: tuple[jax.Array, jax.Array, jax.Array]) -> dict[str, jax.Array]:
        ours_CD, reference_CD, targets_C = chunk
        ours_CV = head_logits(params[0], ours_CD, models[0])
        reference_CV = head_logits(params[1], reference_CD, models[1])
        return chunk_measures(ours_CV, reference_CV, targets_C, models[0].vocab_size)

    measures = jax.lax.map(one, (chunked(hidden[0]), chunked(hidden[1]), chunked(tokens_BL[:, 1:])))
    return {name: x.reshape(-1)[:count].reshape(batch, predictions) for name, x in measures.items()}
