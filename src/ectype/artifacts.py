"""Files that stages exchange: locked, built once, written atomically, read back strictly, named by content hash."""

import fcntl
import glob
import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

from ectype.errors import EctypeError

_LARGE_BYTES = 1 << 26


@contextmanager
def lock(path: Path, busy: EctypeError | None = None) -> Iterator[None]:
    """Hold the lock on `path`, a folder or a file that is made when it is not there; a crash releases it.

    Args:
        busy: raised when another process holds it; None waits for that process.
    """
    handle = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR | os.O_CREAT, 0o666)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX if busy is None else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise busy or AssertionError from None
        yield
    finally:
        os.close(handle)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A free path beside `path`; the file or new folder written there becomes `path` at the end, by one rename.

    When the body fails, what it wrote is deleted and `path` is as it was.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    try:
        yield temporary
        os.replace(temporary, path)
    finally:
        _delete(temporary)


def build_once(path: Path, build: Callable[[Path], None]) -> None:
    """Make the file or folder `path` unless it is there: one process of a host builds it, the others wait.

    Args:
        build: writes what is to be `path` at the path that it is given.
    """
    if path.exists():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with lock(path.with_suffix(".lock")):
        if not path.exists():
            for left in path.parent.glob(f".{glob.escape(path.name)}.*"):
                _delete(left)  # of a process that was killed while it built
            with replacing(path) as temporary:
                build(temporary)


def write_bytes_atomic(path: Path, data: bytes) -> None:
    """Write `data` so that `path` holds either its old content or all of the new, even across a crash.

    Raises:
        EctypeError: `path` can't be written, or its disk is full; what was there is as it was.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as temporary, open(temporary, "xb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
    except (OSError, ValueError) as error:  # ValueError: a path without a name
        raise _unwritable(path, error) from None


def _delete(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)


def _unwritable(path: Path, error: Exception) -> EctypeError:
    return EctypeError(
        f"can't write {path}: {error}", "a path to a file in a writable folder, and room on its disk",
        "check the path, its access rights and the free space",
    )  # fmt: skip


def write_json(path: Path, value: Any) -> None:
    """Write `value` as indented JSON, atomically. NaN is refused: a missing number is null."""
    write_bytes_atomic(path, (json.dumps(value, indent=1, allow_nan=False) + "\n").encode())


def read_json(path: Path, what: str) -> Any:
    """Read JSON from `path`; `what` names the file's role in the error."""
    try:
        return parse_json(path.read_bytes())
    except FileNotFoundError:
        raise EctypeError(f"{what}: no file {path}", "a JSON file", "check the path") from None
    except (OSError, ValueError) as error:
        raise EctypeError(f"{what}: {path}: {error}", "readable JSON", "write the file anew") from None


def parse_json(text: str | bytes, unique: Callable[[list[tuple[str, Any]]], Any] | None = None) -> Any:
    """The value of JSON `text`; `unique` makes an object from its pairs.

    Raises:
        ValueError: no JSON, no UTF-8, or nested too deeply.
    """
    try:
        return json.loads(text, object_pairs_hook=unique)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def sha256_of_file(path: Path) -> str:
    """SHA-256 (hex) of the bytes of the file at `path`; a large one is read once in a process while it stays."""
    stat = path.stat()
    if stat.st_size >= _LARGE_BYTES:
        return _sha256_of_large(path.absolute(), stat.st_size, stat.st_mtime_ns)
    return _sha256(path)


@lru_cache(maxsize=4096)
def _sha256_of_large(path: Path, size: int, modified_ns: int) -> str:
    return _sha256(path)


def _sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def sha256_of_json(value: Any) -> str:
    """SHA-256 (hex) of the canonical JSON of `value`: sorted keys, no spaces."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def package_path(name: str) -> Path:
    """Resolve `package:a/b` to a file inside the installed package, and any other text to a path."""
    if name.startswith("package:"):
        return Path(__file__).parent / name.removeprefix("package:")
    return Path(name)
