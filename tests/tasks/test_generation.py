"""Greedy generation with the cache against generation without one."""

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

MODEL = Model(
    d_model=16, n_layers=2, n_heads=4, n_kv_heads=2, head_dim=8, d_ffn=24, vocab_size=50, trained_rows=64,
    window_pattern=(4, None), rope_theta=5e5, init_std=0.4,
)  # fmt: skip
PARAMS = init_parameters(MODEL, 3)
LONGEST = 40


@jax.jit
def _next(tokens, length):
    hidden = forward(PARAMS, tokens, MODEL)[0, length - 1]
    return head_logits(PARAMS, hidden, MODEL)[: MODEL.vocab_size].argmax()


def _without_cache(prompt, new_tokens):
    ids = list(prompt)
    for _ in range(new_tokens):
        filled = np.zeros((1, LONGEST), np.int32)
        filled[0, : len(ids)] = ids
        ids.append(int(_next(filled, len(ids))))
    return ids[len(prompt) :]


@pytest.mark.parametrize("batch_rows", [1, 3])
def test_equals_generation_without_a_cache(batch_rows):
    draw = random.Random(7)
    prompts = [draw.choices(range(50), k=draw.randint(1, 20)) for _ in range(10)]
    settings = Settings(max_length=LONGEST, batch_rows=batch_rows, devices=1)
    params = jax.device_put(PARAMS, weight_shardings(MODEL, False, 1))
    made = generate(params, MODEL, prompts, 15, lambda ids: False, settings)
    assert made == [_without_cache(prompt, 15) for prompt in prompts]


def test_rows_end_when_all_have_ended():
    settings = Settings(max_length=LONGEST, batch_rows=2, devices=1)
    params = jax.device_put(PARAMS, weight_shardings(MODEL, False, 1))
    seen = []

    def ended(ids):
        seen.append(len(ids))
        return len(ids) > 1

    made = generate(params, MODEL, [[1, 2], [3]], 15, ended, settings)
    assert {len(ids) for ids in made} == {9}
    assert max(seen) == 9
