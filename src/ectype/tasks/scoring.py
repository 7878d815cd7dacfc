"""Log-likelihoods of given tokens behind given inputs.

Shapes: B rows, L length, D model, C targets of a chunk, V vocabulary rows.

Rows are filled up behind their ends, where causality keeps the filling from changing any score. Requests whose inputs
are the same, such as the choices of a question that differ in one token, are computed once.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ectype.evaluate.devices import row_sharding, whole_rows
from ectype.model.decoder import forward, head_logits
from ectype.progress import Progress, silent
from ectype.recipe.spec import Model
from ectype.tasks.batching import Settings, batches, filled_up, length_ladder
from ectype.tasks.requests import ScoringRequest

Tree = dict[str, Any]
Score = tuple[float, bool]
"""Sum of the targets' log-probabilities in nats, and whether each target is the model's first choice."""

_CHUNK_TARGETS = 128


@partial(jax.jit, static_argnames=("model", "compute_dtype"))
def hidden_states(params: Tree, tokens_BL: jax.Array, *, model: Model, compute_dtype: str) -> jax.Array:
    """Hidden states after the final norm, [B, L, D]."""
    return forward(params, tokens_BL, model, compute_dtype=compute_dtype)


@partial(jax.jit, static_argnames=("model",))
def target_scores(
    params: Tree, hidden_BLD: jax.Array, places_3C: jax.Array, *, model: Model
) -> tuple[jax.Array, jax.Array]:
    """Log-probability of each target in nats, float32 [C], and whether no other real id has a higher logit, bool [C].

    Args:
        places_3C: the targets' rows, the positions that predict them, and their ids, int32.
    """
    rows_C, positions_C, targets_C = places_3C
    logits_CV = head_logits(params, hidden_BLD[rows_C, positions_C], model)[:, : model.vocab_size]
    chosen_C = jnp.take_along_axis(logits_CV, targets_C[:, None], axis=-1)[:, 0]
    return chosen_C - jax.nn.logsumexp(logits_CV, axis=-1), jnp.argmax(logits_CV, axis=-1) == targets_C


def score(
    params: Tree, model: Model, requests: Sequence[ScoringRequest], settings: Settings, progress: Progress = silent
) -> list[Score]:
    """Score every request; results stand in the order of `requests` and do not depend on it.

    Args:
        params: as `evaluate.devices.weight_shardings` places them.
        requests: inputs of at most `settings.max_length` tokens, and at least one target each.
    """
    rows, asking = _distinct_rows(requests)
    scores: list[Score] = [(0.0, True)] * len(requests)
    done = 0
    for members, found in _scored(params, model, rows, asking, requests, settings):
        for row in members:
            for request in asking[row]:
                own = [found[place] for place in _places(row, requests[request])]
                scores[request] = (sum(log_probability for log_probability, _ in own), all(first for _, first in own))
                done += 1
        progress("score, requests", done, len(requests))
    return scores


Place = tuple[int, int, int]
"""A row's number, a position in it, and the id that should follow there."""


def _distinct_rows(requests: Sequence[ScoringRequest]) -> tuple[list[tuple[int, ...]], list[list[int]]]:
    """Inputs without repeats, and for each the requests that ask for it."""
    asking: dict[tuple[int, ...], list[int]] = {}
    for number, request in enumerate(requests):
        asking.setdefault(request.inputs, []).append(number)
    return list(asking), list(asking.values())


def _places(row: int, request: ScoringRequest) -> list[Place]:
    first = len(request.inputs) - len(request.targets)
    return [(row, first + step, target) for step, target in enumerate(request.targets)]


def _scored(
    params: Tree, model: Model, rows: list, asking: list, requests: Sequence[ScoringRequest], settings: Settings
) -> Iterator[tuple[list[int], dict[Place, Score]]]:
    """Row numbers of each batch with what was computed at each place. The next batch starts before one is fetched."""
    batch_rows, pending = whole_rows(settings.batch_rows, settings.devices), None
    for length, members in batches(rows, length_ladder(settings.max_length), batch_rows):
        filled_BL = filled_up([rows[row] for row in members], length, batch_rows)
        tokens_BL = jax.device_put(filled_BL, row_sharding(settings.devices))
        hidden_BLD = hidden_states(params, tokens_BL, model=model, compute_dtype=settings.compute_dtype)
        places = sorted({place for row in members for asked in asking[row] for place in _places(row, requests[asked])})
        in_batch = {row: index for index, row in enumerate(members)}
        started = [
            target_scores(params, hidden_BLD, _as_chunk(places[start : start + _CHUNK_TARGETS], in_batch), model=model)
            for start in range(0, len(places), _CHUNK_TARGETS)
        ]
        if pending is not None:
            yield _fetched(*pending)
        pending = (members, places, started)
    if pending is not None:
        yield _fetched(*pending)


def _as_chunk(places: list[Place], in_batch: dict[int, int]) -> np.ndarray:
    """int32 [3, C]; what lies behind the places repeats place 0 of the batch and is never read."""
    chunk = np.zeros((3, _CHUNK_TARGETS), np.int32)
    chunk[:, : len(places)] = np.array([(in_batch[row], position, target) for row, position, target in places]).T
    return chunk


def _fetched(members: list[int], places: list[Place], started: list) -> tuple[list[int], dict[Place, Score]]:
    columns = [np.concatenate([np.asarray(part) for part in parts]).tolist() for parts in zip(*started, strict=True)]
    return members, dict(zip(places, zip(*columns, strict=True), strict=False))
