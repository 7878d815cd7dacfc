"""Orders on disk: built once per host, written atomically, memory-mapped by every process that reads."""

import fcntl
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np

from ectype.errors import EctypeError


def open_or_build(path: Path, units: int, build: Callable[[], np.ndarray]) -> np.ndarray:
    """The stored order ([units] uint32, memory-mapped, read-only), built first when there is none.

    Processes of one host that ask at the same time wait for the first. A crash leaves no file that looks whole.

    Raises:
        EctypeError: the folder can't be written, or the file there has another size.
    """
    try:
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            with open(path.with_suffix(".lock"), "w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                if not path.exists():
                    _write(path, build())
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
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(temporary, "wb") as stream:
            ids.astype("<u4", copy=False).tofile(stream)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
