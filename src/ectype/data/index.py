"""Index files: Ectype's own JSON, and MaxText's OLMo index JSON. `load_index` reads those, a manifest or a folder."""

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from ectype.artifacts import package_path, write_bytes_atomic, write_json
from ectype.data.manifest import OLMO3_TOKENIZER, Entry, parse_manifest
from ectype.data.storage import is_remote, join, list_token_files, read_all, remap
from ectype.data.tokenindex import (
    Phase,
    TokenFile,
    TokenIndex,
    build_index,
    check_dtype,
    check_lengths,
    checked,
    probe_all,
    segments_sha256,
    verify,
    windows_of,
)
from ectype.errors import EctypeError
from ectype.progress import Progress, silent
from ectype.recipe.spec import Data

_FORMAT = "ectype-index-1"
_NEW_INDEX = "write it anew with `ectype data index`"


def load_index(
    path: str | Path,
    data: Data,
    vocab_size: int,
    *,
    prefixes: Mapping[str, str] = {},
    open_files: bool = True,
    progress: Progress = silent,
) -> TokenIndex:
    """Read an index of any form for `data`: index JSON (ours or MaxText's), a manifest, or a folder of `.npy` files.

    Every file is compared with what the index says of it, unless `open_files` is False (planning without the data).

    Raises:
        EctypeError: unreadable or malformed input, another length or id space than the recipe's, or files that are
            missing, cut, grown, replaced, of another width or out of the id space, each by name.
    """
    return make_index(
        str(path), sequence_length_tokens=data.sequence_length_tokens, vocab_size=vocab_size,
        max_target_length_tokens=data.order.max_target_length_tokens, prefixes=prefixes, open_files=open_files,
        progress=progress,
    )  # fmt: skip


def make_index(
    name: str,
    *,
    sequence_length_tokens: int,
    vocab_size: int,
    max_target_length_tokens: int | None = None,
    dtype: str | None = None,
    root: str | None = None,
    tokenizer: str = OLMO3_TOKENIZER,
    prefixes: Mapping[str, str] = {},
    skip_malformed: bool = False,
    allow_missing: bool = False,
    allow_duplicates: bool = False,
    open_files: bool = True,
    progress: Progress = silent,
) -> TokenIndex:
    """`load_index` for lengths that are given, with what only a manifest leaves open: root, tokenizer, what is allowed.

    Raises:
        EctypeError: as `load_index`.
    """
    if not name:
        raise EctypeError("an empty path for the index", "an index, manifest or folder", "name one")
    named = remap(name, prefixes)
    source = named if is_remote(named) else str(package_path(named))
    content = b"" if _is_folder(source) else read_all(source)
    if content.lstrip()[:1] == b"{":
        index = read_index_json(content, source, vocab_size, prefixes=prefixes, open_files=open_files)
        _require(index, source, sequence_length_tokens, max_target_length_tokens, dtype)
        if open_files:
            verify(index, progress)
        return index
    entries, faults = entries_of(source, content, root=root, tokenizer=tokenizer, skip_malformed=skip_malformed)
    return build_index(
        entries, sequence_length_tokens=sequence_length_tokens, vocab_size=vocab_size, dtype=dtype,
        max_target_length_tokens=max_target_length_tokens, prefixes=prefixes, allow_missing=allow_missing,
        allow_duplicates=allow_duplicates, skipped=[f"malformed {fault}" for fault in faults], progress=progress,
    )  # fmt: skip


def entries_of(
    source: str,
    content: bytes | None = None,
    *,
    root: str | None = None,
    tokenizer: str = OLMO3_TOKENIZER,
    skip_malformed: bool = False,
) -> tuple[list[Entry], list[str]]:
    """Entries of a manifest or folder; a manifest's relative paths lie below `root`, by default its own folder."""
    if _is_folder(source):
        found = list_token_files(source)
        if not found:
            raise EctypeError(f"folder {source} holds no .npy file", "token files", "check the path")
        prefix = len(source.rstrip("/")) + 1
        labels = [name[prefix:].rpartition("/")[0] for name in found]
        return [Entry(name, label, name) for name, label in zip(found, labels, strict=True)], []
    content = read_all(source) if content is None else content
    entries, faults = parse_manifest(content, source, tokenizer=tokenizer, skip_malformed=skip_malformed)
    base = _folder_of(source) if root is None else root
    return [replace(entry, path=join(base, entry.path)) for entry in entries], faults


def write_index(index: TokenIndex, path: Path) -> None:
    """Write Ectype's index JSON, and its segments beside it when it has any. Paths below its folder become relative."""
    folder = str(path.absolute().parent)

    def portable(name: str) -> str:
        return os.path.relpath(os.path.abspath(name), folder) if _below(name, folder) else _absolute(name)

    value: dict[str, Any] = {
        "format": _FORMAT,
        "fingerprint": index.fingerprint,
        "dtype": index.dtype,
        "vocab_size": index.vocab_size,
        "sequence_length_tokens": index.sequence_length_tokens,
        "max_target_length_tokens": index.max_target_length_tokens,
        "windows": index.windows,
        "files": [asdict(file) | {"path": portable(file.path)} for file in index.files],
        "skipped": list(index.skipped),
    }
    if index.segments is not None:
        digest = segments_sha256(index.segments)
        side = path.with_name(f"{path.stem}.segments-{digest[:12]}.i64")
        write_bytes_atomic(side, np.ascontiguousarray(index.segments, "<i8").tobytes())
        value["segments"] = {"path": side.name, "sha256": digest}
    if index.phases:
        value["phases"] = [asdict(phase) for phase in index.phases]
        value["previous_fingerprint"] = index.previous_fingerprint
    write_json(path, value)


def read_index_json(
    content: bytes, name: str, vocab_size: int, *, prefixes: Mapping[str, str] = {}, open_files: bool = True
) -> TokenIndex:
    """Parse index JSON of either format. MaxText's says nothing of content: its files are opened unless told not to.

    Raises:
        EctypeError: no JSON, an unknown format, or fields that are missing, of wrong type or inconsistent.
    """
    try:
        value = json.loads(content)
        if not isinstance(value, dict):
            raise ValueError("no JSON object")
        if value.get("format") == _FORMAT:
            return _own_index(value, name, vocab_size, prefixes)
        if str(value.get("format_version")) == "1":
            return _maxtext_index(value, name, vocab_size, prefixes, open_files)
    except KeyError as error:
        raise EctypeError(f"index {name} lacks the field {error}", "all fields of its format", _NEW_INDEX) from None
    except (ValueError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise EctypeError(f"index {name}: {error}", "index JSON of a known format", _NEW_INDEX) from None
    found = value.get("format", value.get("format_version"))
    raise EctypeError(
        f"index {name}: format {found!r}", f"{_FORMAT!r}, or MaxText's format_version '1'", _NEW_INDEX
    ) from None


def _own_index(value: dict[str, Any], name: str, vocab_size: int, prefixes: Mapping[str, str]) -> TokenIndex:
    if _count(value, "vocab_size") != vocab_size:
        raise EctypeError(
            f"index {name}: an id space of {value['vocab_size']}", f"{vocab_size}, the recipe's", _NEW_INDEX
        )
    folder = _folder_of(name)
    files = tuple(
        TokenFile(
            path=remap(join(folder, _text(item, "path")), prefixes),
            label=_text(item, "label"),
            sample_sha256=_text(item, "sample_sha256"),
            **{key: _count(item, key) for key in ("header_bytes", "tokens", "windows", "first_window")},
        )
        for item in value["files"]
    )
    phases = tuple(Phase(**{key: _count(p, key) for key in Phase.__annotations__}) for p in value.get("phases", ()))
    target = value["max_target_length_tokens"]
    index = TokenIndex(
        files=files, dtype=check_dtype(_text(value, "dtype"), vocab_size), vocab_size=vocab_size,
        sequence_length_tokens=_count(value, "sequence_length_tokens"),
        max_target_length_tokens=None if target is None else _count(value, "max_target_length_tokens"),
        segments=_segments(value["segments"], folder) if "segments" in value else None,
        phases=phases, previous_fingerprint=value.get("previous_fingerprint"),
        skipped=tuple(str(item) for item in value.get("skipped", ())),
    )  # fmt: skip
    _check_numbers(index, name)
    if index.fingerprint != value["fingerprint"]:
        raise EctypeError(
            f"index {name} was edited: its content hashes to {index.fingerprint[:16]}, it says "
            f"{str(value['fingerprint'])[:16]}", "an index as `ectype data index` wrote it", _NEW_INDEX,
        )  # fmt: skip
    return index


def _maxtext_index(
    value: dict[str, Any], name: str, vocab_size: int, prefixes: Mapping[str, str], open_files: bool
) -> TokenIndex:
    dtype, folder = check_dtype(_text(value, "dtype"), vocab_size), _folder_of(name)
    length = _count(value, "sequence_length")
    check_lengths(length, None)
    listed = [
        TokenFile(
            path=remap(join(folder, _text(item, "path")), prefixes), label=_text(item, "label"), header_bytes=0,
            tokens=_count(item, "n_tokens"), windows=_count(item, "n_instances"),
            first_window=_count(item, "instance_offset"), sample_sha256=None,
        )
        for item in value["files"]
    ]  # fmt: skip
    if _count(value, "total_instances") != sum(file.windows for file in listed):
        raise ValueError(f"total_instances {value['total_instances']} is not the sum over its files")
    if open_files:
        found = probe_all([file.path for file in listed], dtype, vocab_size)
        for number, (file, facts) in enumerate(zip(listed, found, strict=True)):
            if facts is None:
                raise EctypeError(f"{file.path} is missing", "the file that the index lists", "restore or --remap it")
            item = np.dtype(dtype).itemsize
            if facts.tokens + facts.header_bytes // item != file.tokens or facts.tokens // length != file.windows:
                raise EctypeError(
                    f"{file.path} holds {facts.tokens} tokens ({facts.header_bytes} header bytes); the index says "
                    f"{file.tokens} tokens and {file.windows} windows", "the file that was indexed",
                    "restore the file, or " + _NEW_INDEX,
                )  # fmt: skip
            listed[number] = replace(
                file, tokens=facts.tokens, header_bytes=facts.header_bytes, sample_sha256=facts.sample_sha256
            )
    index = TokenIndex(tuple(listed), dtype, vocab_size, length)
    _check_numbers(index, name)
    return index


def _require(
    index: TokenIndex, name: str, sequence_length: int, max_target_length: int | None, dtype: str | None
) -> None:  # fmt: skip
    found = (index.sequence_length_tokens, index.max_target_length_tokens, index.dtype)
    if found != (sequence_length, max_target_length, dtype or index.dtype):
        raise EctypeError(
            f"index {name}: windows of {found[0]} tokens, target length {found[1]}, {found[2]}",
            f"{sequence_length}, {max_target_length} and {dtype or index.dtype}, as asked",
            "index the manifest or folder anew with these lengths",
        )  # fmt: skip


def _check_numbers(index: TokenIndex, name: str) -> None:
    check_lengths(index.sequence_length_tokens, index.max_target_length_tokens)
    first = 0
    for file in index.files:
        windows = windows_of(file.tokens, index.sequence_length_tokens, index.max_target_length_tokens)
        if file.windows != windows or file.first_window != first:
            raise ValueError(
                f"{file.path}: windows {file.windows} from {file.first_window}, its sizes give {windows} from {first}"
            )
        first += windows
    if index.segments is not None:
        ends = index.segments.sum(axis=1)
        if (index.segments[:, 0] < 0).any() or (index.segments[:, 1] < 1).any() or (ends > first).any():
            raise ValueError("its segments reach outside its files")
    end = 0
    for number, phase in enumerate(index.order_phases):
        if phase.first_window != end or (number == 0) != (phase.first_batch == 0):
            raise ValueError("its phases do not follow one another")
        end += phase.windows
    if end != index.windows:
        raise ValueError("its phases do not cover its windows")
    checked(index)


def _segments(value: Any, folder: str) -> np.ndarray:
    content = read_all(join(folder, _text(value, "path")))
    segments = np.frombuffer(content, "<i8").reshape(-1, 2)
    if segments_sha256(segments) != value["sha256"]:
        raise ValueError(f"{value['path']} was changed since the index was written")
    return segments


def _count(value: Mapping[str, Any], key: str) -> int:
    found = value[key]
    if not isinstance(found, int) or isinstance(found, bool) or not 0 <= found < 2**63:
        raise ValueError(f"{key} is {found!r}, not a count")
    return found


def _text(value: Mapping[str, Any], key: str) -> str:
    if not isinstance(value[key], str):
        raise ValueError(f"{key} is {value[key]!r}, not text")
    return value[key]


def _is_folder(source: str) -> bool:
    return os.path.isdir(source) or source.endswith("/")


def _folder_of(name: str) -> str:
    return name.rpartition("/")[0] if is_remote(name) else (os.path.dirname(name) or ".")


def _absolute(name: str) -> str:
    return name if is_remote(name) else os.path.abspath(name)


def _below(name: str, folder: str) -> bool:
    return not is_remote(name) and os.path.abspath(name).startswith(folder.rstrip("/") + "/")
