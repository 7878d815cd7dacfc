"""A copy of the state that a save reads while the next updates replace the state itself."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

Tree = Any


def can_copy(tree: Tree) -> bool:
    """Whether a copy is cheap: all in this process, and in the host's own memory.

    Elsewhere the save itself brings the state to the host, and a second copy on the devices might not fit.
    """
    leaves = jax.tree.leaves(tree)
    return all(leaf.is_fully_addressable and {d.platform for d in leaf.devices()} == {"cpu"} for leaf in leaves)


def take(tree: Tree, spare: Tree | None) -> Tree:
    """A copy of all leaves, complete on return; of a leaf that every device holds whole, one device's copy.

    Args:
        spare: an earlier copy of a tree alike, whose memory this one takes over; None for the first. To touch fresh
            memory costs more than to copy.
    """
    leaves, structure = jax.tree.flatten(tree)
    sources = [leaf.addressable_data(0) if leaf.is_fully_replicated else leaf for leaf in leaves]
    spares = [None] * len(sources) if spare is None else jax.tree.leaves(spare)
    groups: dict[tuple[int, ...], list[int]] = {}  # One program copies all leaves that lie on the same devices.
    for place, source in enumerate(sources):
        groups.setdefault(tuple(sorted(device.id for device in source.devices())), []).append(place)
    for places in groups.values():
        copies = _copy([spares[place] for place in places], [sources[place] for place in places])
        for place, copy in zip(places, copies, strict=True):
            spares[place] = copy
    return jax.block_until_ready(structure.unflatten(spares))


# The spare is not read: donated, it only lends its memory to the output of its shape, which `keep_unused` needs it for.
@partial(jax.jit, donate_argnums=0, keep_unused=True)
def _copy(spares: list[jax.Array | None], sources: list[jax.Array]) -> list[jax.Array]:
    return [jnp.copy(source) for source in sources]
