"""YAML from a user: whatever is wrong with it is a ValueError, a key that is named twice included."""

from collections.abc import Hashable, Iterator
from typing import Any

import yaml


def parse_yaml(text: str | bytes) -> Any:
    """The value of one YAML document.

    Of a key that stands twice in one mapping YAML libraries keep the last and say nothing; here it is an error.

    Raises:
        ValueError: no YAML, not UTF-8, a date or a number that is none, nested too deeply, or a key named twice.
    """
    try:
        root = yaml.compose(text, yaml.SafeLoader)
        for key in () if root is None else _repeated_keys(root):
            raise ValueError(f"key {key.value!r} stands twice in one mapping, again in line {key.start_mark.line + 1}")
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from None
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _repeated_keys(root: yaml.Node) -> Iterator[yaml.ScalarNode]:
    """Keys that their mapping named before, by tag and text."""
    nodes, seen = [root], {id(root)}
    while nodes:
        node = nodes.pop()
        children = []
        if isinstance(node, yaml.MappingNode):
            names: set[Hashable] = set()
            for key, value in node.value:
                children += [key, value]
                if isinstance(key, yaml.ScalarNode):
                    if (key.tag, key.value) in names:
                        yield key
                    names.add((key.tag, key.value))
        elif isinstance(node, yaml.SequenceNode):
            children += node.value
        # An alias leads to a node that was seen; a document may even hold itself.
        nodes += [child for child in children if id(child) not in seen]
        seen |= {id(child) for child in children}
