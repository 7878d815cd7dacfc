"""The kernel's cost by brute force over its blocks, and how far a head fills the matrix unit."""

import numpy as np
import pytest

from ectype.plan.attention_cost import AttentionShape, executed_pairs, kernel_flops, kernel_seconds, matrix_unit_fill
from ectype.plan.hardware import load_hardware


@pytest.mark.parametrize("window", [None, 1, 5, 16, 17, 40, 64, 100])
@pytest.mark.parametrize("block", [8, 16, 64])
def test_blocks_with_a_visible_pair_are_computed_whole(window, block):
    length = 64
    distance = np.arange(length)[:, None] - np.arange(length)[None]
    visible = (distance >= 0) & (distance < (window or length))
    blocks = visible.reshape(length // block, block, length // block, block).any((1, 3))
    assert executed_pairs(length, window, block) == blocks.sum() * block * block


def test_flops_and_seconds_of_a_layer():
    shape = AttentionShape(sequences=2, length=8192, window=None, heads=32, head_dim=128, block=2048)
    pairs = 10 * 2048 * 2048
    assert kernel_flops(shape, 2) == 2 * 2 * 128 * pairs * 32 * 2
    chip = load_hardware()["v5p"]
    assert kernel_seconds(shape, 2, chip, 0.5) == pytest.approx(kernel_flops(shape, 2) / 459e12 / 0.5)


def test_a_head_of_128_fills_half_of_a_unit_of_256():
    assert matrix_unit_fill(128, 128) == 1
    assert matrix_unit_fill(128, 256) == 0.5
    assert matrix_unit_fill(256, 256) == 1
    assert matrix_unit_fill(192, 128) == 0.75
