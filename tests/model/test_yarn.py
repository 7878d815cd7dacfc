"""YaRN as stage 3 of OLMo 3 has it: which frequencies, which factor, and in which layers alone."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ectype.model.decoder import forward
from ectype.model.parameters import init_parameters
from ectype.model.rope import attention_factor, inverse_frequencies, rotary_tables
from ectype.recipe.load import load_recipe
from ectype.recipe.spec import Model, Yarn

STAGE_3 = load_recipe("olmo3-7b-stage3").model
TOY = Model(
    d_model=32, n_layers=4, n_heads=2, n_kv_heads=1, head_dim=16, d_ffn=48, vocab_size=64,
    window_pattern=(16, 16, 16, None), rope_theta=5e5, yarn=Yarn(factor=8, original_length_tokens=8192),
)  # fmt: skip


def turning_dimension(turns: float) -> float:
    return 128 * math.log(8192 / (turns * 2 * math.pi)) / (2 * math.log(5e5))


@pytest.mark.parametrize("truncate", [None, True, False])
def test_the_correction_range_is_rounded_unless_the_config_says_otherwise(truncate: bool | None) -> None:
    """C02: 18.0811 to 34.9841, rounded outwards to 18 to 35; an absent key means rounded."""
    assert turning_dimension(32) == pytest.approx(18.0811, abs=5e-5)
    assert turning_dimension(1) == pytest.approx(34.9841, abs=5e-5)
    assert STAGE_3.yarn is not None
    given = {} if truncate is None else {"truncate": truncate}
    yarn = Yarn(factor=8, original_length_tokens=8192, **given)
    found = inverse_frequencies(5e5, 128, yarn)
    assert found[25] == pytest.approx(0.003812986 if truncate is False else 0.003800320, rel=3e-7)
    if truncate is not False:
        np.testing.assert_array_equal(found, inverse_frequencies(5e5, 128, STAGE_3.yarn))


def test_frequencies_equal_a_float64_computation() -> None:
    """C02: 45 of 64 change, those below the range not at all, those above it by the whole factor."""
    plain = 5e5 ** (-np.arange(64) / 64)
    ramp = np.clip((np.arange(64) - 18) / (35 - 18), 0, 1)
    found = inverse_frequencies(5e5, 128, STAGE_3.yarn)
    np.testing.assert_allclose(found, plain / 8 * ramp + plain * (1 - ramp), rtol=3e-7)
    unscaled = inverse_frequencies(5e5, 128)
    assert unscaled[25] == pytest.approx(0.005940731, abs=5e-10)
    assert int((found != unscaled).sum()) == 45
    np.testing.assert_array_equal(found[:19], unscaled[:19])
    np.testing.assert_array_equal(found[35:], unscaled[35:] / 8)


def test_rounding_matters_most_at_dimension_19() -> None:
    """C02: by 0.41 %."""
    unrounded = inverse_frequencies(5e5, 128, Yarn(factor=8, original_length_tokens=8192, truncate=False))
    gap = np.abs(inverse_frequencies(5e5, 128, STAGE_3.yarn) / unrounded.astype(np.float64) - 1)
    assert gap.argmax() == 19
    assert gap.max() == pytest.approx(0.0041, abs=5e-5)


def test_the_attention_factor_is_replaced_and_never_applied_twice() -> None:
    """C03: absent, it is 0.1 ln 8 + 1; given, it is what is given; it multiplies cos and sin and nothing else."""
    absent, one = (Yarn(factor=8, original_length_tokens=8192, attention_factor=value) for value in (None, 1.0))
    assert (attention_factor(absent), attention_factor(one)) == (1.2079441541679836, 1.0)
    positions = jnp.arange(9000)
    for scaled, unscaled in zip(*(rotary_tables(positions, 5e5, 128, yarn) for yarn in (absent, one)), strict=True):
        np.testing.assert_array_equal(scaled, unscaled * np.float32(1.2079441541679836))
    np.testing.assert_array_equal(inverse_frequencies(5e5, 128, absent), inverse_frequencies(5e5, 128, one))


def test_the_attention_factor_shows_from_the_second_key_on() -> None:
    """C03: a query with a single key sees no factor; one with two does."""
    other = TOY.model_copy(update={"yarn": TOY.yarn and TOY.yarn.model_copy(update={"attention_factor": 1.0})})
    params, tokens = init_parameters(TOY, 0), jnp.array([[3, 5, 7]])
    left, right = (np.asarray(forward(params, tokens, model)) for model in (TOY, other))
    np.testing.assert_array_equal(left[:, 0], right[:, 0])
    assert np.abs(left[:, 1:] - right[:, 1:]).max() > 1e-6


def reference_tables(positions: np.ndarray, scaled: bool) -> tuple[np.ndarray, np.ndarray]:
    """cos and sin in float64, from the paper's formulas alone, of angles rounded to float32 as in every implementation.

    At position 9,000 the rounding turns a pair by 5e-4, whatever the library.
    """
    dims = np.arange(TOY.head_dim // 2)
    frequencies, factor = 5e5 ** (-2 * dims / TOY.head_dim), 1.0
    if scaled:
        low, high = (TOY.head_dim * math.log(8192 / (turns * 2 * math.pi)) / (2 * math.log(5e5)) for turns in (32, 1))
        ramp = np.clip((dims - math.floor(low)) / (math.ceil(high) - math.floor(low)), 0, 1)
        frequencies, factor = frequencies / 8 * ramp + frequencies * (1 - ramp), 0.1 * math.log(8) + 1
    angles = (positions[:, None].astype(np.float32) * frequencies.astype(np.float32)).astype(np.float64)
    return np.cos(angles) * factor, np.sin(angles) * factor


def reference_layer(layer: dict, x: np.ndarray, window: int | None, queries: np.ndarray) -> np.ndarray:
    """One layer of OLMo 3 in float64, for the rows `queries` of x [L, D]; scaled where the layer sees everything."""

    def norm(values: np.ndarray, weight: np.ndarray) -> np.ndarray:
        return values / np.sqrt((values**2).mean(-1, keepdims=True) + 1e-6) * weight

    def turn(values: np.ndarray, rows: np.ndarray) -> np.ndarray:
        cos, sin = reference_tables(rows, scaled=window is None)
        first, second = np.split(values, 2, axis=-1)
        return np.concatenate((first * cos - second * sin, second * cos + first * sin), -1)

    part, every = layer["attention"], np.arange(len(x))
    query = norm(x[queries] @ part["query"].T, part["query_norm"]).reshape(len(queries), 2, 16)
    key = turn(norm(x @ part["key"].T, part["key_norm"]), every)
    value = x @ part["value"].T
    rows = []
    for place, row in enumerate(queries):
        first = 0 if window is None else max(0, row - window + 1)
        heads = []
        for head in range(2):
            scores = key[first : row + 1] @ turn(query[place : place + 1, head], np.array([row]))[0] / 4
            weights = np.exp(scores - scores.max())
            heads.append(weights / weights.sum() @ value[first : row + 1])
        rows.append(np.concatenate(heads))
    h = x[queries] + norm(np.array(rows) @ part["output"].T, layer["attention_norm"])
    mlp = layer["mlp"]
    gate = h @ mlp["gate"].T
    return h + norm((gate / (1 + np.exp(-gate)) * (h @ mlp["up"].T)) @ mlp["down"].T, layer["mlp_norm"])


def test_a_prompt_beyond_the_original_length_equals_a_float64_computation() -> None:
    """C01: 9,000 tokens through four layers, of which the fourth alone is scaled."""
    params = jax.tree.map(lambda leaf: leaf * 8, init_parameters(TOY, 1))
    tokens = np.random.default_rng(0).integers(0, 64, 9000)
    found = np.asarray(forward(params, jnp.asarray(tokens)[None], TOY, block_tokens=1000))[0, -4:]
    wide = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)
    x = wide["embedding"]["weight"][tokens]
    for slot in range(4):
        layer = jax.tree.map(lambda leaf: leaf[0], wide["blocks"][str(slot)])
        queries = np.arange(8996 if slot == 3 else 0, 9000)
        x = reference_layer(layer, x, TOY.window_pattern[slot], queries)
    expected = x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6) * wide["norm"]["weight"]
    # One unit in the last place of a frequency turns position 9,000 by 5e-4.
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-3 * np.abs(expected).max())
    plain = TOY.model_copy(update={"yarn": None})
    unscaled = np.asarray(forward(params, jnp.asarray(tokens)[None], plain, block_tokens=1000))[0, -4:]
    assert np.abs(unscaled - expected).max() > 0.01 * np.abs(expected).max()


def test_only_the_full_attention_layer_is_scaled(monkeypatch: pytest.MonkeyPatch) -> None:
    """C01: what layers 0 to 2 rotate by is bit for bit the unscaled table; layer 3's is not."""
    from ectype.model import decoder

    used = []

    def spy(x, cos, sin):
        used.append((cos, sin))
        return rotate(x, cos, sin)

    rotate = decoder.rotate
    monkeypatch.setattr(decoder, "rotate", spy)
    # Layers left over after whole patterns run one by one and outside the scan, so their tables are plain arrays.
    model = TOY.model_copy(update={"window_pattern": (16, 16, 16, None, 16)})
    forward(init_parameters(model, 0), jnp.zeros((1, 40), jnp.int32), model)
    plain = rotary_tables(jnp.arange(40), 5e5, TOY.head_dim, None)
    assert len(used) == 8
    for call, (cos, sin) in enumerate(used):
        same = np.array_equal(cos, plain[0]) and np.array_equal(sin, plain[1])
        assert same == (call // 2 != 3)
