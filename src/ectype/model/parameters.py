"""Initial parameters, drawn as the reference's initialiser does. Shapes follow `decoder.parameter_shapes`."""

import math
import zlib
from typing import Any

import jax
import jax.numpy as jnp

from ectype.model.decoder import Tree, parameter_shapes
from ectype.recipe.spec import Model


def parameter_count(model: Model) -> int:
    """Parameters of the whole tree, padded vocabulary rows included."""
    leaves = jax.tree.leaves(parameter_shapes(model), is_leaf=lambda leaf: isinstance(leaf, tuple))
    return sum(math.prod(shape) for shape in leaves)


def leaf_key(seed: int, path: tuple[Any, ...]) -> jax.Array:
    """The random key of the leaf at `path`, from `jax.tree_util`; the same in every tree that has such a leaf."""
    return jax.random.fold_in(jax.random.key(seed), zlib.crc32(".".join(part.key for part in path).encode()))


def init_parameters(model: Model, seed: int, dtype: str = "float32") -> Tree:
    """Truncated normal (mean 0, `init_std`, cut at `init_cut` deviations) for matrices, ones for norms, zero biases.

    The distribution is OLMo-core's `InitMethod.normal`. The stream is JAX's, keyed by each leaf's path: values differ
    from torch's for the same seed, but depend neither on the mesh nor on which other leaves the model has.
    """
    leaves, structure = jax.tree.flatten_with_path(
        parameter_shapes(model), is_leaf=lambda leaf: isinstance(leaf, tuple)
    )
    drawn = []
    for path, shape in leaves:
        name = path[-1].key
        if "norm" in name or path[0].key == "norm":
            drawn.append(jnp.ones(shape, dtype))
        elif name.endswith("_bias"):
            drawn.append(jnp.zeros(shape, dtype))
        else:
            key = leaf_key(seed, path)
            unit = jax.random.truncated_normal(key, -model.init_cut, model.init_cut, shape, jnp.float32)
            drawn.append((unit * model.init_std).astype(dtype))
    return jax.tree.unflatten(structure, drawn)
