"""How fast this process's own devices are: a few matrix products on each, with no word to any other process.

An update ends on all devices at once, so its time never tells which of them the others waited for.
"""

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

_WIDTH_AND_PRODUCTS = {"cpu": (256, 4), "gpu": (4096, 16), "tpu": (4096, 16)}
"""Milliseconds each: 2 * width^3 * products operations."""


def open_probe(devices: Sequence[Any], dtype: str) -> Callable[[], float]:
    """Compile the probe for JAX `devices`, all of this process; calling it gives the slowest one's seconds.

    Args:
        dtype: of the products, best the one that the model computes in.
    """
    width, products = _WIDTH_AND_PRODUCTS[devices[0].platform]
    run = partial(_product, width=width, products=products, dtype=dtype)
    starts = [jax.device_put(jnp.float32(1 / width), device) for device in devices]
    jax.block_until_ready([run(start) for start in starts])

    def probe() -> float:
        seconds = []
        for start in starts:
            began = time.perf_counter()
            run(start).block_until_ready()
            seconds.append(time.perf_counter() - began)
        return max(seconds)

    return probe


@partial(jax.jit, static_argnames=("width", "products", "dtype"))
def _product(start: jax.Array, *, width: int, products: int, dtype: str) -> jax.Array:
    matrix = jnp.full((width, width), start, dtype)

    def multiply(_: int, left: jax.Array) -> jax.Array:
        return left @ matrix

    return jax.lax.fori_loop(0, products, multiply, matrix)[0, 0]
