"""A working folder beside the output, with a record of finished units, so that a killed transfer resumes.

The output appears by one rename at the end; until then everything lies in a hidden sibling of it.
"""

import json
import os
import shutil
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from ectype.artifacts import lock, write_bytes_atomic
from ectype.errors import EctypeError

_NAME = "journal.jsonl"


class Journal:
    """Finished units of one transfer into `output`. Use as a context; `commit` renames the working folder.

    Attributes:
        folder: where to write until the rename.
        done: unit name -> what was recorded for it, from an earlier, interrupted run with the same identity.
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
        self.folder = self.output.with_name(f".{output.name}.ectype-partial")
        self.done: dict[str, Any] = {}
        self._identity = identity
        self._lock = ExitStack()

    def __enter__(self) -> "Journal":
        self.folder.mkdir(parents=True, exist_ok=True)
        self._lock.enter_context(
            lock(
                self.folder,
                EctypeError(
                    f"another process is writing {self.output}", "one writer per output", "wait for it, or stop it"
                ),
            )
        )
        self.done = self._read()
        if not self.done:
            for child in self.folder.iterdir():
                shutil.rmtree(child) if child.is_dir() else child.unlink()
        # Written anew, so that a last line which the kill cut short does not spoil the next one.
        entries = [{"identity": self._identity}, *({"unit": u, "value": v} for u, v in self.done.items())]
        write_bytes_atomic(self.folder / _NAME, "".join(json.dumps(entry) + "\n" for entry in entries).encode())
        self._stream = (self.folder / _NAME).open("a", encoding="utf-8")
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.close()
        self._lock.close()

    def record(self, unit: str, value: Any) -> None:
        """Note that `unit` is on disk in full."""
        self.done[unit] = value
        self._stream.write(json.dumps({"unit": unit, "value": value}) + "\n")
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
        for line in path.read_text(encoding="utf-8").splitlines() if path.is_file() else []:
            try:
                entries.append(json.loads(line))
            except ValueError:
                break
        if not entries or entries[0].get("identity") != self._identity:
            return {}
        return {entry["unit"]: entry["value"] for entry in entries[1:]}
