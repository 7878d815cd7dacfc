"""Greedy continuation of prompts with a cache of keys and values.

Shapes: B rows, L length, V vocabulary rows.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ectype.evaluate.devices import row_sharding, whole_rows
from ectype.model.cache import Cache, decode_step, prefill
from ectype.model.decoder import head_logits
from ectype.progress import Progress, silent
from ectype.recipe.spec import Model
from ectype.tasks.batching import Settings, batches, filled_up, length_ladder, padded_length

Tree = dict[str, Any]
_STEPS = 8
"""Tokens between two looks at the text; a generation runs on past its end by fewer."""


def _first_choice(params: Tree, hidden_BD: jax.Array, model: Model) -> jax.Array:
    return jnp.argmax(head_logits(params, hidden_BD, model)[:, : model.vocab_size], axis=-1).astype(jnp.int32)


@partial(jax.jit, static_argnames=("model", "cache_tokens", "compute_dtype"))
def start(
    params: Tree, tokens_BL: jax.Array, lengths_B: jax.Array, *, model: Model, cache_tokens: int, compute_dtype: str
) -> tuple[jax.Array, Cache]:
    """The first new token of each row, int32 [B], and the cache of the prompts."""
    hidden_BD, cache = prefill(
        params, tokens_BL, lengths_B, model, cache_tokens=cache_tokens, compute_dtype=compute_dtype
    )
    return _first_choice(params, hidden_BD, model), cache


@partial(jax.jit, static_argnames=("model", "compute_dtype"), donate_argnames=("cache",))
def more(
    params: Tree, cache: Cache, tokens_B: jax.Array, positions_B: jax.Array, *, model: Model, compute_dtype: str
) -> tuple[Cache, jax.Array]:
    """Read `tokens_B` at `positions_B` and choose the tokens after them: the cache, and int32 [_STEPS, B]."""

    def step(state: tuple[Cache, jax.Array, jax.Array], _: None) -> tuple[Any, jax.Array]:
        cache, tokens_B, positions_B = state
        hidden_BD, cache = decode_step(params, cache, tokens_B, positions_B, model, compute_dtype=compute_dtype)
        chosen_B = _first_choice(params, hidden_BD, model)
        return (cache, chosen_B, positions_B + 1), chosen_B

    (cache, _, _), chosen = jax.lax.scan(step, (cache, tokens_B, positions_B), length=_STEPS)
    return cache, chosen


def generate(
    params: Tree,
    model: Model,
    prompts: Sequence[Sequence[int]],
    new_tokens: int,
    ended: Callable[[list[int]], bool],
    settings: Settings,
    progress: Progress = silent,
) -> list[list[int]]:
    """Up to `new_tokens` ids behind each prompt, each the one with the highest logit; in the order of `prompts`.

    Args:
        params: as `evaluate.devices.weight_shardings` places them.
        prompts: at least one id each; with `new_tokens`, at most `settings.max_length`.
        ended: whether ids generated so far are enough. It is asked every few tokens, so more may follow.
    """
    ladder = length_ladder(settings.max_length)
    results: list[list[int]] = [[] for _ in prompts]
    done = 0
    for length, members in batches(prompts, ladder, whole_rows(settings.batch_rows, settings.devices)):
        rows = [prompts[member] for member in members]
        for member, ids in zip(
            members, _continued(params, model, rows, length, new_tokens, ended, settings), strict=True
        ):
            results[member] = ids
        done += len(members)
        progress("generate, prompts", done, len(prompts))
    return results


def _continued(
    params: Tree, model: Model, rows: list, length: int, new_tokens: int, ended: Callable, settings: Settings
) -> list[list[int]]:
    sharding, batch_rows = row_sharding(settings.devices), whole_rows(settings.batch_rows, settings.devices)
    # Room for the last look: rows that ended early run on with the others, at most `_STEPS` past the limit.
    cache_tokens = padded_length(length + new_tokens + _STEPS, length_ladder(2 * settings.max_length + _STEPS))
    lengths_B = np.array([len(row) for row in rows] + [1] * (batch_rows - len(rows)), np.int32)
    arguments = {"model": model, "compute_dtype": settings.compute_dtype}
    tokens_B, cache = start(
        params,
        jax.device_put(filled_up(rows, length, batch_rows), sharding),
        jax.device_put(lengths_B, sharding),
        cache_tokens=cache_tokens, **arguments,
    )  # fmt: skip
    new = [[token] for token in np.asarray(tokens_B).tolist()[: len(rows)]]
    while len(new[0]) < new_tokens and not all(map(ended, new)):
        positions_B = jax.device_put(lengths_B + np.int32(len(new[0]) - 1), sharding)
        cache, chosen = more(params, cache, tokens_B, positions_B, **arguments)
        tokens_B = chosen[-1]
        for ids, row in zip(new, np.asarray(chosen).T.tolist(), strict=False):
            ids += row
    return [ids[:new_tokens] for ids in new]
