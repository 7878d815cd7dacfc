"""Orders on disk: built once per host, written atomically, memory-mapped by every process that reads."""

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np

from ectype.artifacts import build_once
from ectype.errors import EctypeError


def default_cache_dir() -> Path:
    """The user's cache folder for orders: below XDG_CACHE_HOME, else below ~/.cache.

    Raises:
        EctypeError: neither is known, as in a container whose user has no home.
    """
    chosen = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(chosen) if chosen else Path.home() / ".cache") / "ectype" / "orders"
    except RuntimeError as error:
        raise EctypeError(
            f"no folder for orders: {error}", "a home folder, or XDG_CACHE_HOME", "set XDG_CACHE_HOME to a local folder"
        ) from None


def open_or_build(path: Path, units: int, build: Callable[[], np.ndarray]) -> np.ndarray:
    """The stored order ([units] uint32, memory-mapped, read-only), built first when there is none.

    Processes of one host that ask at the same time wait for the first. A crash leaves no file that looks whole.

    Raises:
        EctypeError: the folder can't be written, or the file there has another size.
    """
    try:
        build_once(path, lambda temporary: _write(temporary, build()))
        found = path.stat().st_size
    except OSError as error:
        raise EctypeError(
            f"order {path}: {error}",
            "a folder with room for 4 bytes a window",
            "free space, or give another cache folder",
        ) from None
    if found != 4 * units:
        raise EctypeError(f"order {path}: {found} bytes", f"{4 * units} bytes", "delete the file; it is built again")
    return np.memmap(path, np.uint32, "r", shape=(units,))


def _write(path: Path, ids: np.ndarray) -> None:
    with open(path, "xb") as stream:
        stream.write(ids.astype("<u4", copy=False).data)  # not tofile, which loses what a full disk does not take
        stream.flush()
        os.fsync(stream.fileno())
