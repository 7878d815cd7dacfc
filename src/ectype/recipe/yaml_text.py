"""YAML from a user: whatever is wrong with it is an error, a key that is named twice included."""

from collections.abc import Hashable, Iterator
from pathlib import Path
from typing import Any

import yaml

from ectype.errors import EctypeError


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


def read_mapping(path: Path, what: str, mend: str) -> dict[str, Any]:
    """The mapping that a YAML file holds.

    Args:
        what: the file's role, for errors.
        mend: the action that gets the user past a file which holds something else.

    Raises:
        EctypeError: no such file, no YAML, or no mapping.
    """
    try:
        values = parse_yaml(path.read_bytes())
    except (OSError, ValueError) as error:
        raise EctypeError(f"{what} {path}: {error}", "a readable YAML file", "check the path and its syntax") from None
    if not isinstance(values, dict):
        raise EctypeError(f"{what} {path} holds no mapping", "keys and values", mend)
    return values


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
