"""What the fused attention kernel costs: the compiler sees none of it, so it is counted from its blocks.

The kernel computes every block of scores that holds a visible pair, whole. Its products are FLOP-bound on the matrix
unit, which a head narrower than the unit fills only in part: a contraction, or a result, of width K uses K of its
columns.
"""

import math
from dataclasses import dataclass

from ectype.plan.hardware import Hardware

FORWARD_PRODUCTS = 2
"""Scores, and their mix of the values."""
QUERY_GRADIENT_PRODUCTS = 3
"""Scores again, gradients of the weights, gradients of the queries."""
KEY_VALUE_GRADIENT_PRODUCTS = 4
"""Scores again, gradients of the weights, of the values and of the keys."""


@dataclass(frozen=True)
class AttentionShape:
    """Of one layer on one device."""

    sequences: int
    length: int
    window: int | None
    heads: int
    head_dim: int
    block: int


def executed_pairs(length: int, window: int | None, block: int) -> int:
    """Pairs of query and key in blocks [block, block] that hold at least one visible pair, of one sequence and head."""
    window = length if window is None else min(window, length)
    blocks = 0
    for row in range(length // block):
        first_visible = max(0, row * block - window + 1)
        blocks += row - first_visible // block + 1
    return blocks * block * block


def kernel_flops(shape: AttentionShape, products: int) -> float:
    """FLOPs of a kernel with so many products, hidden pairs inside computed blocks included."""
    pairs = executed_pairs(shape.length, shape.window, shape.block)
    return 2.0 * products * shape.head_dim * pairs * shape.heads * shape.sequences


def matrix_unit_fill(head_dim: int, unit_width: int) -> float:
    """Share of the matrix unit's columns that a product of this width uses."""
    return head_dim / (math.ceil(head_dim / unit_width) * unit_width)


def kernel_seconds(shape: AttentionShape, products: int, hardware: Hardware, efficiency: float) -> float:
    """Seconds of one call; `efficiency` is the share of them that the matrix units multiply."""
    fill = matrix_unit_fill(shape.head_dim, hardware.matrix_unit_width)
    return kernel_flops(shape, products) / (hardware.chip.peak_flops_per_device * fill * efficiency)
