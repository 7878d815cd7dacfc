"""Nested dicts of arrays as flat dicts keyed by path, and back."""

from collections.abc import Mapping
from typing import Any

LeafPath = tuple[str, ...]
Tree = dict[str, Any]


def flatten(tree: Mapping[str, Any], prefix: LeafPath = ()) -> dict[LeafPath, Any]:
    """Leaves of a nested dict by path, in the dict's order; empty dicts vanish."""
    flat: dict[LeafPath, Any] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, (*prefix, key))
        else:
            flat[(*prefix, key)] = value
    return flat


def unflatten(flat: Mapping[LeafPath, Any]) -> Tree:
    """The nested dict that `flatten` turns into `flat`."""
    tree: Tree = {}
    for path, value in flat.items():
        node = tree
        for key in path[:-1]:
            node = node.setdefault(key, {})
        node[path[-1]] = value
    return tree


def dotted(path: LeafPath) -> str:
    """`blocks.0.mlp.gate`: the name that Orbax gives the leaf at `path`."""
    return ".".join(path)
