"""Scores against the whole forward pass, and their independence of what they are computed with."""

import math
import random

import jax
import numpy as np
import pytest

from ectype.evaluate.devices import weight_shardings
from ectype.model.decoder import forward, head_logits
from ectype.model.parameters import init_parameters
from ectype.recipe.spec import Model
from ectype.tasks.batching import Settings
from ectype.tasks.generation import generate
from ectype.tasks.requests import ScoringRequest, rolling_requests
from ectype.tasks.scoring import hidden_states, score, target_scores

MODEL = Model(
    d_model=16, n_layers=2, n_heads=4, n_kv_heads=2, head_dim=8, d_ffn=24, vocab_size=50, trained_rows=64,
    window_pattern=(4, None), rope_theta=5e5, init_std=0.4,
)  # fmt: skip
PARAMS = init_parameters(MODEL, 3)
ONE = Settings(max_length=24, batch_rows=4, devices=1)


def _placed(split=False, devices=1):
    return jax.device_put(PARAMS, weight_shardings(MODEL, split, devices))


def _requests():
    draw = random.Random(5)
    rows = [draw.choices(range(50), k=draw.randint(2, 24)) for _ in range(18)]
    asked = []
    for row in rows:
        targets = draw.randint(1, len(row) - 1)
        asked += [ScoringRequest(tuple(row[:-1]), (*row[len(row) - targets : -1], last)) for last in (row[-1], 7, 8)]
    return asked


@jax.jit
def _logits(tokens):
    return head_logits(PARAMS, forward(PARAMS, tokens, MODEL), MODEL)


def _by_the_whole_pass(request):
    """Behind other filling than the engine's, and to another length, so that compilation is shared."""
    size = len(request.inputs)
    tokens = np.full((1, 29), 7, np.int32)
    tokens[0, :size] = request.inputs
    logits = np.asarray(_logits(tokens), np.float64)[0, size - len(request.targets) : size, :50]
    chosen = logits[np.arange(len(logits)), list(request.targets)]
    return float((chosen - np.log(np.exp(logits).sum(-1))).sum()), bool((logits.argmax(-1) == request.targets).all())


def test_scores_equal_the_whole_forward_pass():
    """In float64 from the logits of the real ids; rows that only trained take no part."""
    requests = _requests()
    wanted = [_by_the_whole_pass(request) for request in requests]
    found = score(_placed(), MODEL, requests, ONE)
    np.testing.assert_allclose([f for f, _ in found], [w for w, _ in wanted], rtol=0, atol=1e-4)
    assert [f for _, f in found] == [w for _, w in wanted]


def test_the_order_of_requests_changes_nothing_and_the_batch_size_only_rounding():
    requests = _requests()
    found = score(_placed(), MODEL, requests, ONE)
    order = random.Random(2).sample(range(len(requests)), len(requests))
    shuffled = score(_placed(), MODEL, [requests[place] for place in order], ONE)
    assert shuffled == [found[place] for place in order]
    alone = [score(_placed(), MODEL, [request], ONE)[0] for request in requests[:6]]
    assert alone == found[:6], "a row's score depends on no other row"
    for batch_rows in (1, 3, 8):
        other = score(_placed(), MODEL, requests, Settings(max_length=24, batch_rows=batch_rows, devices=1))
        np.testing.assert_allclose([o for o, _ in other], [f for f, _ in found], rtol=0, atol=2e-5)
        assert [o for _, o in other] == [f for _, f in found]


@pytest.mark.parametrize("split", [False, True])
def test_scores_on_eight_devices(split):
    requests = _requests()
    settings = Settings(max_length=24, batch_rows=3, devices=8)
    found, alone = score(_placed(split, 8), MODEL, requests, settings), score(_placed(), MODEL, requests, ONE)
    np.testing.assert_allclose([f for f, _ in found], [a for a, _ in alone], rtol=0, atol=2e-5)
    if not split:
        return
    query = _placed(True, 8)["blocks"]["0"]["attention"]["query"]
    assert {shard.data.shape for shard in query.addressable_shards} == {(1, 32, 2)}
    prompts = [request.inputs[:15] for request in requests[::3]]
    made = [
        generate(_placed(*place), MODEL, prompts, 9, lambda ids: False, own)
        for place, own in (((split, 8), settings), ((False, 1), ONE))
    ]
    assert made[0] == made[1]


def test_a_uniform_model_pays_the_logarithm_of_its_vocabulary():
    """C48: ten tokens in rolling windows of four, eight ids: ten times ln 8, no more and no less."""
    model = MODEL.model_copy(update={"vocab_size": 8, "trained_rows": None})
    params = init_parameters(model, 0)
    params["head"]["weight"] = params["head"]["weight"] * 0
    windows = rolling_requests([1, 2, 3, 4, 5, 6, 7, 1, 2, 3], 0, 4)
    settings = Settings(max_length=4, devices=1)
    params = jax.device_put(params, weight_shardings(model, False, 1))
    assert sum(total for total, _ in score(params, model, windows, settings)) == pytest.approx(-10 * math.log(8))


def test_programs_are_few():
    """One program for the layers and one for the targets of each length of the ladder at most."""
    before = hidden_states._cache_size(), target_scores._cache_size()
    settings = Settings(max_length=23, batch_rows=5, devices=1)
    for size in (1, 2, 11, 15, 16, 17, 20, 23):
        score(_placed(), MODEL, [ScoringRequest((size,) * size, (2,) * size)] * 3, settings)
    assert hidden_states._cache_size() - before[0] == 2
    assert target_scores._cache_size() - before[1] == 2
