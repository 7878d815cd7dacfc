"""AI2's mix manifests: text lines `label,path` or `path`. Parsing only; nothing is opened."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from ectype.errors import EctypeError

OLMO3_TOKENIZER = "allenai/dolma3-tokenizer"
"""What AI2's official OLMo 3 mixes put for `{TOKENIZER}`."""
OLMO3_VOCAB_SIZE = 100_278
"""Ids of that tokenizer: the id space of files that no recipe describes."""


@dataclass(frozen=True)
class Entry:
    """One token file that a manifest, folder or index lists."""

    path: str
    label: str
    where: str
    """`line 12`, for errors."""


def parse_manifest(
    data: bytes, name: str, *, tokenizer: str = OLMO3_TOKENIZER, skip_malformed: bool = False
) -> tuple[list[Entry], list[str]]:
    """Entries of a manifest, and the malformed lines that were skipped.

    UTF-8 with or without a byte order mark, any line ends; blank lines and lines that begin with `#` are nothing.

    Raises:
        EctypeError: not UTF-8, no entry at all, or malformed lines (listed) unless `skip_malformed`.
    """
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise EctypeError(
            f"manifest {name}: {error}",
            "UTF-8 text with one `label,path` per line",
            "name the manifest, not a data file",
        ) from None
    entries, faults = [], []
    for number, line in enumerate(text.splitlines(), start=1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        fault, entry = _parse_line(line, f"line {number}", tokenizer)
        if entry is not None:
            entries.append(entry)
        else:
            faults.append(f"line {number}: {fault}: {line[:80]!r}")
    if faults and not skip_malformed:
        raise EctypeError(
            f"manifest {name}: {len(faults)} malformed lines: {first_few(faults)}",
            "`label,path` or `path` on each line", "correct them, or pass --skip-malformed",
        )  # fmt: skip
    if not entries:
        raise EctypeError(f"manifest {name} lists no file", "at least one `label,path` line", "check the manifest")
    return entries, faults


def first_few(items: Sequence[str], limit: int = 8) -> str:
    """The first items joined by `; `, with a count of the rest."""
    rest = len(items) - limit
    return "; ".join(items[:limit]) + (f"; and {rest} more" if rest > 0 else "")


def _parse_line(line: str, where: str, tokenizer: str) -> tuple[str, Entry | None]:
    label, comma, path = line.partition(",")
    label, path = (label.strip(), path.strip()) if comma else ("", line)
    path = path.replace("{TOKENIZER}", tokenizer)
    if any(ord(character) < 32 for character in line):
        return "control characters", None
    if "," in path:
        return "more than one comma", None
    if comma and not label:
        return "no label", None
    if not path or path.endswith("/"):
        return "no file path", None
    if unknown := re.search(r"\{[^}]*\}?", path):
        return f"unknown placeholder {unknown.group()}", None
    return "", Entry(path, label, where)
