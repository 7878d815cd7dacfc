"""Bytes of local and remote files. Local paths use the operating system; `scheme://` paths use fsspec, when met."""

import os
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ectype.errors import EctypeError


def is_remote(path: str) -> bool:
    """Whether `path` names its scheme (`gs://`, `s3://`, `https://`, ...)."""
    return "://" in path


def remap(path: str, prefixes: Mapping[str, str]) -> str:
    """Replace the longest matching prefix of whole path parts: `gs://b` matches `gs://b/x`, never `gs://b2/x`."""
    for prefix in sorted(prefixes, key=len, reverse=True):
        bare = prefix.rstrip("/")
        if path == bare or path.startswith(bare + "/"):
            return prefixes[prefix].rstrip("/") + path[len(bare) :]
    return path


def join(root: str, path: str) -> str:
    """`path` under `root`, unless it is absolute or remote already."""
    if is_remote(path) or os.path.isabs(path):
        return path
    return f"{root.rstrip('/')}/{path}" if root else path


def size_bytes(path: str) -> int | None:
    """Size of the file at `path`, or None when there is none. Raises EctypeError when it can't be asked.

    A folder, pipe or device is refused: its size says nothing of what can be read from it.
    """
    try:
        if not is_remote(path):
            found = os.stat(path)
            if not stat.S_ISREG(found.st_mode):
                raise EctypeError(f"{path} is no regular file", "a file of tokens", "list files only")
            return found.st_size
        system, bare = _remote(path)
        return int(system.size(bare))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except EctypeError:
        raise
    except Exception as error:
        raise _unreadable(path, error) from None


def read_ranges(path: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
    """The bytes [start, stop) for each range, in order; remote ranges are fetched together.

    Raises:
        EctypeError: the file is missing, unreadable, or ends before a range does.
    """
    try:
        if is_remote(path):
            system, bare = _remote(path)
            starts, stops = [start for start, _ in ranges], [stop for _, stop in ranges]
            found = [bytes(part) for part in system.cat_ranges([bare] * len(ranges), starts, stops, on_error="raise")]
        else:
            with open(path, "rb") as stream:
                found = [os.pread(stream.fileno(), stop - start, start) for start, stop in ranges]
    except EctypeError:
        raise
    except Exception as error:
        raise _unreadable(path, error) from None
    for (start, stop), part in zip(ranges, found, strict=True):
        if len(part) != stop - start:
            raise ends_early(path, start, stop)
    return found


def read_all(path: str) -> bytes:
    """The whole file. Raises EctypeError when missing or unreadable."""
    try:
        if is_remote(path):
            system, bare = _remote(path)
            return bytes(system.cat_file(bare))
        return Path(path).read_bytes()
    except EctypeError:
        raise
    except Exception as error:
        raise _unreadable(path, error) from None


def list_token_files(folder: str) -> list[str]:
    """Every `.npy` file below `folder`, sorted by its path relative to it."""
    try:
        if is_remote(folder):
            system, bare = _remote(folder)
            return sorted(system.unstrip_protocol(name) for name in system.find(bare) if name.endswith(".npy"))
        root = Path(folder)
        names = sorted(str(p.relative_to(root)) for p in root.rglob("*.npy") if not p.is_dir())
        return [str(root / name) for name in names]
    except EctypeError:
        raise
    except Exception as error:
        raise _unreadable(folder, error) from None


def ends_early(path: str, start: int, stop: int) -> EctypeError:
    """The error of a read that met the end of the file."""
    return EctypeError(
        f"{path} ends before byte {stop} (read from byte {start})", "a file as long as when it was indexed",
        "restore the file, or index anew and start another run",
    )  # fmt: skip


def _remote(path: str) -> tuple[Any, str]:
    try:
        from fsspec.core import url_to_fs

        return url_to_fs(path)
    except (ImportError, ValueError) as error:
        scheme = path.split("://", 1)[0]
        raise EctypeError(
            f"{path}: {error}", f"a file system that fsspec knows for {scheme}://",
            "install the fsspec package for that scheme (gcsfs, s3fs, aiohttp), or use --remap to a mounted copy",
        ) from None  # fmt: skip


def _unreadable(path: str, error: Exception) -> EctypeError:
    if isinstance(error, FileNotFoundError):
        return EctypeError(f"no file {path}", "an existing file", "check the path, its prefix (--remap) and the mount")
    detail = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return EctypeError(f"{path}: {detail}", "a readable file", "check the path, its access rights and the network")
