"""The copy that a save reads: equal to the state, and left alone by the updates that follow."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from ectype.train import snapshot


@pytest.fixture
def state():
    mesh = Mesh(np.array(jax.devices()[:2]), ("fsdp",))
    split, whole = (NamedSharding(mesh, spec) for spec in (PartitionSpec("fsdp"), PartitionSpec()))
    return {
        "split": jax.device_put(np.arange(64, dtype=np.float32), split),
        "whole": jax.device_put(np.arange(64, dtype=np.float32) - 7, whole),
        "count": jax.device_put(np.int32(3), whole),
    }


def test_a_copy_outlives_the_state_and_the_copy_after_it_takes_its_memory(state):
    expected = jax.tree.map(np.array, state)
    assert snapshot.can_copy(state)
    first = snapshot.take(state, None)
    changed = jax.jit(lambda tree: jax.tree.map(lambda leaf: leaf * 0 - 1, tree), donate_argnums=0)(state)
    jax.tree.map(np.testing.assert_array_equal, first, expected)
    second = snapshot.take(changed, first)
    jax.tree.map(np.testing.assert_array_equal, second, jax.tree.map(np.array, changed))
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(first))


def test_what_each_device_holds_whole_is_copied_once(state):
    copy = snapshot.take(state, None)
    assert {name: len(leaf.devices()) for name, leaf in copy.items()} == {"split": 2, "whole": 1, "count": 1}


def test_element_types_are_kept():
    halves = {"moment": jnp.arange(8, dtype=jnp.bfloat16)}
    assert snapshot.take(halves, None)["moment"].dtype == jnp.bfloat16
