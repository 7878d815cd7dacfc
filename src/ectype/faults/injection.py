"""Put a faulty function in the place of a sound one, in a process of its own that does nothing else.

The sound code knows nothing of this: a fault takes the name under which its callers look a function up. A name that is
no longer there is an error; one that is there and no longer called leaves the weights as they were, which the matrix
counts as a fault that was not made.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def in_place_of(owner: Any, name: str, faulty: Any) -> Iterator[None]:
    """Within the block, `owner.name` is `faulty`.

    Args:
        owner: a module or a class.

    Raises:
        AttributeError: `owner` has no such name.
    """
    sound = getattr(owner, name)
    setattr(owner, name, faulty)
    try:
        yield
    finally:
        setattr(owner, name, sound)
