"""All that training changes: parameters, optimiser state, and how many updates were taken."""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from ectype.errors import EctypeError
from ectype.model.parameters import leaf_key
from ectype.recipe.placement import MomentsMemory
from ectype.recipe.spec import Recipe
from ectype.run.manifest import Perturbation
from ectype.train.optimizer import History, OptimizerState, init_optimizer
from ectype.train.sharding import named, parameter_specs

Tree = Any


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class TrainState:
    """params: tree in the recipe's parameter dtype; optimizer: moments, count, history; step: int32 updates done."""

    params: Tree
    optimizer: OptimizerState
    step: jax.Array


def state_specs(recipe: Recipe, mesh: Mesh) -> TrainState:
    """A `PartitionSpec` for each leaf of the state: moments lie with their parameters, scalars everywhere."""
    params = parameter_specs(recipe.model, mesh)
    whole: Any = PartitionSpec()
    return TrainState(params, OptimizerState(params, params, whole, History(whole, whole, whole)), whole)


def state_shardings(recipe: Recipe, mesh: Mesh, moments_memory: MomentsMemory = "device") -> TrainState:
    """A `NamedSharding` for each leaf of the state; the moments may lie in the hosts' memory.

    Raises:
        EctypeError: the devices have no such memory.
    """
    specs = state_specs(recipe, mesh)
    shardings = named(mesh, specs)
    if moments_memory == "device":
        return shardings
    kinds = [memory.kind for memory in mesh.devices.flat[0].addressable_memories()]
    if moments_memory not in kinds:
        raise EctypeError(
            f"moments_memory {moments_memory} on devices with memory of kinds {', '.join(kinds)}", "one of these",
            "leave moments_memory=device",
        )  # fmt: skip
    moments = named(mesh, specs.params, moments_memory)
    return replace(shardings, optimizer=replace(shardings.optimizer, first_moment=moments, second_moment=moments))


def fresh_state(params: Tree, recipe: Recipe, mesh: Mesh, moments_memory: MomentsMemory = "device") -> TrainState:
    """The state before update 1, from step-0 weights [any dtype], laid out on `mesh`."""
    shardings: Tree = state_shardings(recipe, mesh, moments_memory)
    place = partial(_place, dtype=recipe.numerics.parameters)
    params = jax.tree.map(place, params, shardings.params)
    start = partial(init_optimizer, optimizer=recipe.optimizer, moments_dtype=recipe.numerics.moments)
    optimizer = jax.jit(start, out_shardings=shardings.optimizer)(params)
    return TrainState(params, optimizer, _place(np.zeros(()), shardings.step, "int32"))


def _place(leaf: Any, sharding: NamedSharding, dtype: str) -> jax.Array:
    """A host array as a global one: each process hands over the parts that its own devices hold."""
    host = np.asarray(leaf).astype(jnp.dtype(dtype))
    return jax.make_array_from_callback(host.shape, sharding, lambda index: host[index])


def perturbed(params: Tree, change: Perturbation) -> Tree:
    """Each weight times 1 + `change.scale` * normal: a twin's step-0 weights."""

    def move(path: tuple[Any, ...], leaf: jax.Array) -> jax.Array:
        noise = 1 + change.scale * jax.random.normal(leaf_key(change.seed, path), leaf.shape, jnp.float32)
        return (leaf * noise).astype(leaf.dtype)

    return jax.tree_util.tree_map_with_path(move, params)


def optimizer_tree(optimizer: OptimizerState, step: jax.Array) -> Tree:
    """The optimiser's state and the step as plain dicts, the form in which it is stored."""
    return {
        "first_moment": optimizer.first_moment,
        "second_moment": optimizer.second_moment,
        "count": optimizer.count,
        "history": {
            "losses": optimizer.history.losses,
            "norms": optimizer.history.norms,
            "count": optimizer.history.count,
        },
        "step": step,
    }


def from_optimizer_tree(tree: Tree) -> tuple[OptimizerState, jax.Array]:
    """Inverse of `optimizer_tree`."""
    state = OptimizerState(tree["first_moment"], tree["second_moment"], tree["count"], History(**tree["history"]))
    return state, tree["step"]
