"""C46: the published figures of OLMo 3 7B, and the wrong variants that inflate utilisation."""

import pytest

from ectype.model.flops import flops_per_token, product_weights, visible_pairs
from ectype.recipe.spec import Model

OLMO3_7B = Model(
    d_model=4096, n_layers=32, n_heads=32, n_kv_heads=32, head_dim=128, d_ffn=11008, vocab_size=100278,
    window_pattern=(4096, 4096, 4096, None), rope_theta=5e5,
)  # fmt: skip


def test_olmo3_7b_at_8k():
    assert 6 * product_weights(OLMO3_7B) == 41_320_464_384
    assert flops_per_token(OLMO3_7B, 8192) - 41_320_464_384 == 5_234_982_912
    assert flops_per_token(OLMO3_7B, 8192) == 46_555_447_296
    assert flops_per_token(OLMO3_7B, 8192, full_causal=True) / flops_per_token(OLMO3_7B, 8192) == pytest.approx(
        1.026, abs=5e-4
    )


@pytest.mark.parametrize("length", [8, 100, 8192])
@pytest.mark.parametrize("window", [1, 5, 4096, None])
def test_pairs_equal_a_count(length, window):
    counted = sum(min(i + 1, window or length) for i in range(length))
    assert visible_pairs(length, window) == counted


def test_pairs_at_8k_and_the_causal_share():
    assert visible_pairs(8192, None) == 33_558_528
    assert visible_pairs(8192, 4096) == 25_167_872
    for length, share in ((8192, 0.81248), (65536, 0.34082)):
        mixed = 3 * visible_pairs(length, 4096) + visible_pairs(length, None)
        assert mixed / (4 * visible_pairs(length, None)) == pytest.approx(share, abs=5e-6)


def test_padded_rows_count_only_where_they_train():
    padded = OLMO3_7B.model_copy(update={"trained_rows": 100352})
    assert product_weights(padded) - product_weights(OLMO3_7B) == 74 * 4096
    assert product_weights(padded, rows=100278) == product_weights(OLMO3_7B)
