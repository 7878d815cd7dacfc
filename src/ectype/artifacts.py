"""Files that stages exchange: written atomically, read back strictly, named by content hash."""

import hashlib
import json
import os
import tempfile
from pathlib import Path
from typing import Any

from ectype.errors import EctypeError


def write_bytes_atomic(path: Path, data: bytes) -> None:
    """Write `data` so that `path` holds either its old content or all of the new, even across a crash."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(temporary, 0o666 & ~umask)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def write_json(path: Path, value: Any) -> None:
    """Write `value` as indented JSON, atomically. NaN is refused: a missing number is null."""
    write_bytes_atomic(path, (json.dumps(value, indent=1, allow_nan=False) + "\n").encode())


def read_json(path: Path, what: str) -> Any:
    """Read JSON from `path`; `what` names the file's role in the error."""
    try:
        return json.loads(path.read_bytes())
    except FileNotFoundError:
        raise EctypeError(f"{what}: no file {path}", "a JSON file", "check the path") from None
    except (OSError, ValueError) as error:
        raise EctypeError(f"{what}: {path}: {error}", "readable JSON", "write the file anew") from None


def sha256_of_json(value: Any) -> str:
    """SHA-256 (hex) of the canonical JSON of `value`: sorted keys, no spaces."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def package_path(name: str) -> Path:
    """Resolve `package:a/b` to a file inside the installed package, and any other text to a path."""
    if name.startswith("package:"):
        return Path(__file__).parent / name.removeprefix("package:")
    return Path(name)
