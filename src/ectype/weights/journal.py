"""A working folder beside the output, with a record of finished units, so that a killed transfer resumes.

The output appears by one rename at the end; until then everything lies in a hidden sibling of it.
"""

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from ectype.artifacts import lock, parse_json, write_bytes_atomic
from ectype.errors import EctypeError
from ectype.run.checkpoints import description_file

_NAME = "journal.jsonl"


class Journal:
    """Finished units of one transfer into `output`. Use as a context; `commit` renames the working folder.

    Attributes:
        folder: where to write until the rename.
        done: unit name -> SHA-256 of its tensors by name, from an earlier, interrupted run with the same identity.
    """

    def __init__(self, output: Path, identity: str) -> None:
        """Open or start the working folder of `output`.

        Args:
            output: the path that must not exist yet.
            identity: content hash of everything that decides the output; another identity discards old work.
        """
        if output.exists() or output.is_symlink():
            raise EctypeError(f"{output} exists", "a path that is free", "name another one, or remove it first")
        self.output = output.absolute()
        for parent in self.output.parents:
            # Not by the folder of that name alone: a checkout of this project is called so too.
            if description_file(parent).is_file():
                raise EctypeError(f"{output} lies within the checkpoint {parent}", "a path outside", "name another one")
        self.folder = self.output.with_name(f".{output.name}.ectype-partial")
        self.done: dict[str, dict[str, str]] = {}
        self._identity = identity
        self._lock = ExitStack()

    def __enter__(self) -> "Journal":
        with self._named_failures():
            self.folder.mkdir(parents=True, exist_ok=True)
        self._lock.enter_context(
            lock(
                self.folder,
                EctypeError(
                    f"another process is writing {self.output}", "one writer per output", "wait for it, or stop it"
                ),
            )
        )
        with self._named_failures():
            self.done = self._read()
            for child in self.folder.iterdir() if not self.done else ():
                shutil.rmtree(child) if child.is_dir() else child.unlink()
        # Written anew, so that a last line which the kill cut short does not spoil the next one.
        entries = [{"identity": self._identity}, *({"unit": u, "value": v} for u, v in self.done.items())]
        write_bytes_atomic(self.folder / _NAME, "".join(json.dumps(entry) + "\n" for entry in entries).encode())
        with self._named_failures():
            self._stream = (self.folder / _NAME).open("a", encoding="utf-8")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        """Close; what the system refused meanwhile, a write above all, becomes an error in words."""
        try:
            with suppress(OSError):  # A last line that a full disk does not take; that unit is copied again.
                self._stream.close()
        finally:
            self._lock.close()
        # TensorStore reports what the system refused as a ValueError.
        if isinstance(error, OSError) or (isinstance(error, ValueError) and "os_error_code" in str(error)):
            raise self._failed(error) from error

    @contextmanager
    def _named_failures(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self._lock.close()
            raise self._failed(error) from None

    def _failed(self, error: Exception) -> EctypeError:
        return EctypeError(
            f"can't write {self.output}: {error}", "a path in a writable folder, and room on its disk",
            "check the path, its access rights and the free space, then run the same command: it goes on from there",
        )  # fmt: skip

    def require_space(self, total_bytes: int) -> None:
        """Refuse a disk without room for what is still to be written of `total_bytes`."""
        written = sum(path.stat().st_size for path in self.folder.rglob("*") if path.is_file())
        free = shutil.disk_usage(self.folder).free
        if free < total_bytes - written:
            raise EctypeError(
                f"{self.output.parent} has {free:,} bytes free",
                f"{total_bytes - written:,} bytes for {self.output.name}", "make room",
            )  # fmt: skip

    def record(self, unit: str, hashes: Mapping[str, Any]) -> None:
        """Note that `unit` is on disk in full, and what its tensors hash to: by name, as `hashlib` objects."""
        self.done[unit] = {name: digest.hexdigest() for name, digest in hashes.items()}
        self._stream.write(json.dumps({"unit": unit, "value": self.done[unit]}) + "\n")
        self._stream.flush()
        os.fsync(self._stream.fileno())

    def commit(self) -> None:
        """Make the working folder the output."""
        (self.folder / _NAME).unlink()
        os.rename(self.folder, self.output)
        handle = os.open(self.output.parent, os.O_RDONLY)
        os.fsync(handle)
        os.close(handle)

    def _read(self) -> dict[str, Any]:
        path = self.folder / _NAME
        entries = []
        for line in path.read_bytes().splitlines() if path.is_file() else []:
            try:
                entries.append(parse_json(line))
            except ValueError:
                break
        if not entries or entries[0] != {"identity": self._identity}:
            return {}
        return {entry["unit"]: entry["value"] for entry in entries[1:]}
