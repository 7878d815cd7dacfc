"""Initial parameters, drawn as the reference's initialiser does. Shapes follow `decoder.parameter_shapes`."""

import jax
import jax.numpy as jnp
import numpy as np

from ectype.model.decoder import Tree, parameter_shapes
from ectype.recipe.spec import Model

__all__ = ["init_parameters", "parameter_count", "parameter_shapes"]


def parameter_count(model: Model) -> int:
    """Parameters of the whole tree, padded vocabulary rows included."""
    leaves = jax.tree.leaves(parameter_shapes(model), is_leaf=lambda leaf: isinstance(leaf, tuple))
    return sum(int(np.prod(shape)) for shape in leaves)


def init_parameters(model: Model, seed: int, dtype: str = "float32") -> Tree:
    """Truncated normal (mean 0, `init_std`, cut at `init_cut` deviations) for matrices, ones for norms, zero biases.

    The distribution is OLMo-core's `InitMethod.normal`; the stream is JAX's, keyed by each leaf's path, so values
    differ from torch's for the same seed but do not depend on the mesh or on the order of drawing.
    """
    leaves, structure = jax.tree.flatten_with_path(
        parameter_shapes(model), is_leaf=lambda leaf: isinstance(leaf, tuple)
    )
    drawn = []
    for number, (path, shape) in enumerate(leaves):
        name = path[-1].key
        if "norm" in name or path[0].key == "norm":
            drawn.append(jnp.ones(shape, dtype))
        elif name.endswith("_bias"):
            drawn.append(jnp.zeros(shape, dtype))
        else:
            key = jax.random.fold_in(jax.random.key(seed), number)
            unit = jax.random.truncated_normal(key, -model.init_cut, model.init_cut, shape, jnp.float32)
            drawn.append((unit * model.init_std).astype(dtype))
    return jax.tree.unflatten(structure, drawn)
