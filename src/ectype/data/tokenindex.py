"""The index: which token files a run reads, in which order, and which window lies where.

A window is `sequence_length_tokens` consecutive tokens of one file; windows do not overlap and never cross files; what
is left at the end of a file is dropped (OLMo-core's NumpyFSLDataset). The last position of a window has no target.
"""

import hashlib
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from ectype.artifacts import sha256_of_json
from ectype.data.manifest import Entry, first_few
from ectype.data.storage import is_remote, remap
from ectype.data.tokenfile import Probe, probe
from ectype.data.width import WIDTHS, dtype_of_id_space
from ectype.errors import EctypeError
from ectype.progress import Progress, silent

_PROBING_THREADS = 32


@dataclass(frozen=True)
class TokenFile:
    """One token file of an index."""

    path: str
    label: str
    header_bytes: int
    tokens: int
    windows: int
    first_window: int
    """Physical number of its first window: windows are numbered through all files in index order."""
    sample_sha256: str | None
    """None when the files were not opened (an index of another tool, planned with but not run)."""


@dataclass(frozen=True)
class Phase:
    """From global batch `first_batch` on, batches are drawn from the `windows` ids that start at `first_window`."""

    first_batch: int
    first_window: int
    windows: int


@dataclass(frozen=True, eq=False)
class TokenIndex:
    """Token files in order, and what window ids mean.

    Without `segments`, id w is physical window w. With them ([s, 2] int64: first physical window, count), ids number
    the windows of the segments one after another: a mixture takes prefixes, repeats files, or skips used windows.
    """

    files: tuple[TokenFile, ...]
    dtype: str
    vocab_size: int
    sequence_length_tokens: int
    max_target_length_tokens: int | None = None
    segments: np.ndarray | None = None
    phases: tuple[Phase, ...] = ()
    previous_fingerprint: str | None = None
    """Fingerprint of the index that the last phase continues; a run that used it may go on with this one."""
    skipped: tuple[str, ...] = ()

    @cached_property
    def physical_windows(self) -> int:
        """Windows that the files hold."""
        return sum(file.windows for file in self.files)

    @cached_property
    def windows(self) -> int:
        """Window ids: 0 to `windows` - 1."""
        return self.physical_windows if self.segments is None else int(self.segments[:, 1].sum())

    @cached_property
    def fingerprint(self) -> str:
        """Identity by content: samples, sizes, order, dtype and length. Paths and labels take no part."""
        unopened = any(file.sample_sha256 is None for file in self.files)
        identity = {
            "version": 1,
            "dtype": self.dtype,
            "sequence_length_tokens": self.sequence_length_tokens,
            "max_target_length_tokens": self.max_target_length_tokens,
            "files": [[file.tokens, file.sample_sha256] for file in self.files],
            "segments": None if self.segments is None else segments_sha256(self.segments),
            "phases": [[phase.first_batch, phase.first_window, phase.windows] for phase in self.order_phases],
        }
        return ("unopened-" if unopened else "") + sha256_of_json(identity)

    @property
    def order_phases(self) -> tuple[Phase, ...]:
        """The phases of the order; one for all windows unless the mix changes."""
        return self.phases or (Phase(0, 0, self.windows),)

    def physical(self, window_ids: np.ndarray) -> np.ndarray:
        """Physical window numbers ([n] int64) of window ids ([n])."""
        ids = np.asarray(window_ids, np.int64)
        if self.segments is None:
            return ids
        segment = np.searchsorted(self._segment_starts, ids, side="right") - 1
        return self.segments[segment, 0] + ids - self._segment_starts[segment]

    def locate(self, window_ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """File number and offset in tokens ([n] int64 each) of each window id ([n])."""
        physical = self.physical(window_ids)
        file_numbers = np.searchsorted(self._file_starts, physical, side="right") - 1
        return file_numbers, (physical - self._file_starts[file_numbers]) * self.sequence_length_tokens

    def continues(self, fingerprint: str, step: int) -> bool:
        """Whether a checkpoint of `step` updates, made with the index `fingerprint`, may go on with this index."""
        return fingerprint == self.fingerprint or (
            fingerprint == self.previous_fingerprint and step == self.order_phases[-1].first_batch
        )

    @cached_property
    def _file_starts(self) -> np.ndarray:
        return np.array([file.first_window for file in self.files], np.int64)

    @cached_property
    def _segment_starts(self) -> np.ndarray:
        assert self.segments is not None
        return np.concatenate([[0], np.cumsum(self.segments[:-1, 1])])


def segments_sha256(segments: np.ndarray) -> str:
    """SHA-256 of segments ([s, 2]) as little-endian int64."""
    return hashlib.sha256(np.ascontiguousarray(segments, "<i8").tobytes()).hexdigest()


def build_index(
    entries: Sequence[Entry],
    *,
    sequence_length_tokens: int,
    vocab_size: int,
    dtype: str | None = None,
    max_target_length_tokens: int | None = None,
    prefixes: Mapping[str, str] = {},
    allow_missing: bool = False,
    allow_duplicates: bool = False,
    skipped: Sequence[str] = (),
    progress: Progress = silent,
) -> TokenIndex:
    """Open every file of `entries` and number its windows.

    `dtype` None means the narrowest type that holds the id space. Paths are mapped through `prefixes` first.

    Raises:
        EctypeError: a bad length or dtype; missing or duplicate files (listed) unless allowed; a file that is cut, of
            another width, or out of the id space; no window at all.
    """
    dtype = check_dtype(dtype, vocab_size)
    check_lengths(sequence_length_tokens, max_target_length_tokens)
    entries = [replace(entry, path=remap(entry.path, prefixes)) for entry in entries]
    notes = list(skipped)
    if not allow_duplicates:
        _refuse_duplicates(entries)
    probes = probe_all([entry.path for entry in entries], dtype, vocab_size, progress)
    missing = [f"{entry.path} ({entry.where})" for entry, found in zip(entries, probes, strict=True) if found is None]
    if missing and not allow_missing:
        raise EctypeError(
            f"{len(missing)} of {len(entries)} files are missing: {first_few(missing)}", "every listed file",
            "restore them, map their prefix (--remap FROM=TO, --root), or pass --allow-missing",
        )  # fmt: skip
    notes += [f"missing: {item}" for item in missing]
    present = [(entry, found) for entry, found in zip(entries, probes, strict=True) if found is not None]
    files = number_windows(present, sequence_length_tokens, max_target_length_tokens)
    return checked(
        TokenIndex(
            files, dtype, vocab_size, sequence_length_tokens, max_target_length_tokens, skipped=tuple(notes)
        )
    )  # fmt: skip


def windows_of(tokens: int, sequence_length_tokens: int, max_target_length_tokens: int | None) -> int:
    """Windows of a file of `tokens` tokens (OLMo-core): whole lengths, or whole chunks of the target length."""
    chunk = max_target_length_tokens or sequence_length_tokens
    return tokens // chunk * (chunk // sequence_length_tokens)


def number_windows(
    found: Sequence[tuple[Entry, Probe]], sequence_length_tokens: int, max_target_length_tokens: int | None
) -> tuple[TokenFile, ...]:
    """Token files in order, each with its count and its first window's number."""
    files, first = [], 0
    for entry, facts in found:
        windows = windows_of(facts.tokens, sequence_length_tokens, max_target_length_tokens)
        files.append(
            TokenFile(entry.path, entry.label, facts.header_bytes, facts.tokens, windows, first, facts.sample_sha256)
        )
        first += windows
    return tuple(files)


def checked(index: TokenIndex) -> TokenIndex:
    """`index`, or an error when it holds no window or more than 32-bit ids can name."""
    if index.windows == 0:
        raise EctypeError(
            f"{len(index.files)} files hold no window of {index.sequence_length_tokens} tokens", "at least one window",
            "check the sequence length and the files",
        )  # fmt: skip
    if index.windows >= 2**32 - 1:
        raise EctypeError(f"{index.windows} windows", "fewer than 2**32 - 1", "use a longer sequence or fewer files")
    return index


def check_dtype(dtype: str | None, vocab_size: int) -> str:
    """The dtype to read: the given one if it is known and holds the id space, else the narrowest that does."""
    if vocab_size < 1 or vocab_size > 2**63:
        raise EctypeError(f"vocab_size {vocab_size}", "a positive number of ids", "give the tokenizer's id space")
    narrowest = dtype_of_id_space(vocab_size)
    if dtype is None:
        return narrowest
    if dtype not in WIDTHS:
        raise EctypeError(
            f"unknown dtype {dtype!r}", f"one of {', '.join(WIDTHS)}", "name the width of the token files"
        )
    if WIDTHS.index(dtype) < WIDTHS.index(narrowest):
        raise EctypeError(f"dtype {dtype} for {vocab_size} ids", f"{narrowest} or wider", "correct dtype or id space")
    return dtype


def check_lengths(sequence_length_tokens: int, max_target_length_tokens: int | None) -> None:
    """Refuse lengths that are not positive, or a target length that is not a multiple of the sequence length."""
    if sequence_length_tokens < 2:
        raise EctypeError(f"sequence length {sequence_length_tokens}", "at least 2 tokens", "correct the length")
    target = max_target_length_tokens
    if target is not None and (target < sequence_length_tokens or target % sequence_length_tokens):
        raise EctypeError(
            f"max target length {target} for windows of {sequence_length_tokens}", "a multiple of the sequence length",
            "correct order.max_target_length_tokens",
        )  # fmt: skip


def probe_all(paths: Sequence[str], dtype: str, vocab_size: int, progress: Progress = silent) -> list[Probe | None]:
    """Look at all files, many at a time when remote; the first fault in order is raised."""
    threads = _PROBING_THREADS if any(is_remote(path) for path in paths) else 4
    found: list[Probe | None] = []
    with ThreadPoolExecutor(min(threads, max(1, len(paths)))) as pool:
        try:
            for result in pool.map(lambda path: probe(path, dtype, vocab_size), paths):
                found.append(result)
                progress("look at token files", len(found), len(paths))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return found


def verify(index: TokenIndex, progress: Progress = silent) -> None:
    """Compare every file with what was indexed; call it on every host before step 0.

    Raises:
        EctypeError: names each file that is missing, cut, grown or replaced since.
    """
    probes = probe_all([file.path for file in index.files], index.dtype, index.vocab_size, progress)
    changes = [
        change for file, found in zip(index.files, probes, strict=True) if (change := _change(file, found)) is not None
    ]
    if changes:
        raise EctypeError(
            f"{len(changes)} of {len(index.files)} token files changed since they were indexed: {first_few(changes)}",
            "the files that the index describes", "restore them, or index anew and start another run",
        )  # fmt: skip


def report(index: TokenIndex) -> dict[str, Any]:
    """What the index holds and what it leaves out, for people and `--json`."""
    length = index.sequence_length_tokens
    tokens, kept = sum(file.tokens for file in index.files), index.physical_windows * length
    return {
        "files": len(index.files),
        "dtype": index.dtype,
        "sequence_length_tokens": length,
        "tokens": tokens,
        "windows": index.windows,
        "physical_windows": index.physical_windows,
        "window_rule": "windows do not overlap or cross files; the last position has no target",
        "tokens_a_pass": index.windows * length,
        "loss_tokens_a_pass": index.windows * (length - 1),
        "dropped_tokens": tokens - kept,
        "empty_files": [file.path for file in index.files if file.tokens == 0],
        "short_files": [file.path for file in index.files if file.tokens and not file.windows],
        "skipped": list(index.skipped),
        "fingerprint": index.fingerprint,
    }


def _refuse_duplicates(entries: Sequence[Entry]) -> None:
    first: dict[str, Entry] = {}
    twice = []
    for entry in entries:
        path = entry.path if is_remote(entry.path) else os.path.abspath(entry.path)
        if path in first:
            twice.append(f"{entry.path} ({first[path].where} and {entry.where})")
        first.setdefault(path, entry)
    if twice:
        raise EctypeError(
            f"{len(twice)} files are listed twice: {first_few(twice)}", "each file once",
            "remove the second line, or pass --allow-duplicates to read it twice",
        )  # fmt: skip


def _change(file: TokenFile, found: Probe | None) -> str | None:
    if found is None:
        return f"{file.path} is missing"
    if found.tokens != file.tokens:
        verb = "was cut" if found.tokens < file.tokens else "has grown"
        return f"{file.path} {verb} from {file.tokens} to {found.tokens} tokens"
    if found.header_bytes != file.header_bytes or (
        file.sample_sha256 is not None and found.sample_sha256 != file.sample_sha256
    ):
        return f"{file.path} was replaced (its content differs)"
    return None
