"""Model FLOPs per token, forward and backward: what the mathematics needs, whatever an implementation recomputes.

Each weight of a matrix product costs 2 FLOPs forward and 4 backward; each visible pair of query and key costs 4 times
the heads' width forward (scores and mixing) and 8 backward. The input embedding and norms are left out.
"""

from ectype.recipe.spec import Model


def product_weights(model: Model, rows: int | None = None) -> int:
    """Weights in matrix products, the head's `rows` (None: all trained rows) included, the input embedding not."""
    query, key = model.n_heads * model.head_dim, model.n_kv_heads * model.head_dim
    layer = model.d_model * (2 * query + 2 * key + 3 * model.d_ffn)
    return model.n_layers * layer + model.d_model * (model.rows if rows is None else rows)


def visible_pairs(length: int, window: int | None) -> int:
    """Pairs (query, key) that causal attention with this window computes in one sequence."""
    window = length if window is None else min(window, length)
    return window * (window + 1) // 2 + (length - window) * window


def flops_per_token(model: Model, length: int, *, full_causal: bool = False, rows: int | None = None) -> float:
    """FLOPs of one trained token in sequences of `length`.

    Args:
        full_causal: count every layer as full causal attention, as published figures often do, for comparison.
        rows: rows of the head to count; None counts all that train.
    """
    windows = [None if full_causal else model.layer_window(layer) for layer in range(model.n_layers)]
    pairs = sum(visible_pairs(length, window) for window in windows)
    return 6 * product_weights(model, rows) + 12 * model.n_heads * model.head_dim * pairs / length
