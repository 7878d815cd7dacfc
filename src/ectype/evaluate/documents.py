"""Documents from files of JSON lines, plain or compressed, one at a time, with the domain that each belongs to."""

import gzip
import io
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from ectype.errors import EctypeError

_SUFFIXES = (".jsonl", ".json", ".jsonl.gz", ".json.gz", ".jsonl.zst", ".json.zst")
_BATCH_DOCUMENTS = 64


@dataclass(frozen=True)
class Document:
    """Tokens of one document without any prefix, the bytes of its text in UTF-8, and its domain."""

    domain: str
    tokens: np.ndarray
    text_bytes: int


def document_files(place: Path, split: str | None) -> list[Path]:
    """The files of JSON lines at or below `place`, sorted by path; with `split` those in a folder of that name alone.

    Raises:
        EctypeError: there is none.
    """
    below = [place] if place.is_file() else sorted(place.rglob("*"))
    found = [
        path
        for path in below
        if path.is_file()
        and path.name.endswith(_SUFFIXES)
        and (split is None or place.is_file() or split in path.relative_to(place).parts[:-1] or place.name == split)
    ]
    if not found:
        where = f"{place}" + (f" has no folder {split} with one" if split else "")
        raise EctypeError(f"no documents at {where}", f"files ending in {', '.join(_SUFFIXES)}", "check the path")
    return found


def documents_by_domain(place: Path, split: str | None) -> dict[str, list[Path]]:
    """Domain -> files below `place`: a folder directly in it is a domain, and a file there by its name up to a dot."""
    domains: dict[str, list[Path]] = {}
    for path in document_files(place, split):
        folder = ("" if place.is_file() else path.relative_to(place).parent.as_posix()).split("/")[0]
        named = folder if folder not in ("", ".") else path.name.split(".")[0]
        domains.setdefault(named, []).append(path)
    return domains


def read_documents(files: list[Path], domain: str, subdomains: bool, encode: Any) -> Iterator[Document]:
    """All documents of `files`, a few held at a time. One without text is left out.

    Args:
        subdomains: put each document's field `subdomain` behind the domain.
        encode: a list of texts to a list of token ids each.

    Raises:
        EctypeError: a line that is no JSON object with a text, or lacks its subdomain (file and line named).
    """
    waiting: list[tuple[str, str]] = []
    for path in files:
        for number, line in enumerate(_lines(path), 1):
            if line.strip():
                waiting.append(_parsed(line, f"{path}, line {number}", domain, subdomains))
            if len(waiting) == _BATCH_DOCUMENTS:
                yield from _encoded(waiting, encode)
                waiting = []
    yield from _encoded(waiting, encode)


def _encoded(waiting: list[tuple[str, str]], encode: Any) -> Iterator[Document]:
    texts = [text for _, text in waiting]
    for (domain, text), ids in zip(waiting, encode(texts), strict=True):
        if text:
            yield Document(domain, np.array(ids, np.int32), len(text.encode()))


def _parsed(line: str, place: str, domain: str, subdomains: bool) -> tuple[str, str]:
    try:
        value = json.loads(line)
        text, part = value["text"], value["subdomain"] if subdomains else None
        if not isinstance(text, str) or not isinstance(part, str | None):
            raise TypeError("a text or subdomain that is no string")
        text.encode()
    except KeyError as error:
        raise EctypeError(
            f"{place}: a document without the field {error}", "a `text`, and a `subdomain` where that is asked for",
            "correct the file, or leave `subdomains` out",
        ) from None  # fmt: skip
    except (ValueError, TypeError, RecursionError) as error:
        raise EctypeError(f"{place}: {error}", "one JSON object a line", "fetch the file again") from None
    return (domain if part is None else f"{domain}/{part}"), text


def _lines(path: Path) -> Iterator[str]:
    try:
        with _opened(path) as raw, io.TextIOWrapper(raw, encoding="utf-8") as stream:
            yield from stream
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise EctypeError(f"{path}: {error}", "a whole, readable file", "fetch it again") from None
    except Exception as error:
        if type(error).__module__.split(".")[0] not in ("zstandard", "zlib"):
            raise
        raise EctypeError(f"{path}: {error}", "a whole compressed file", "fetch it again") from None


def _opened(path: Path) -> IO[bytes]:
    if path.suffix == ".gz":
        return gzip.open(path, "rb")  # type: ignore[return-value]
    if path.suffix != ".zst":
        return path.open("rb")
    try:
        import zstandard  # pyright: ignore[reportMissingImports] - extra `tasks`
    except ImportError:
        raise EctypeError(
            f"{path}: zstandard is not installed", "the extra `tasks`", "pip install 'ectype[tasks]'"
        ) from None  # fmt: skip
    return zstandard.open(path, "rb")


def text_encoder(path: Path, vocab_size: int) -> Any:
    """A function from a list of texts to a list of token ids each, without special tokens, by a `tokenizer.json`.

    Raises:
        EctypeError: no such file, ids beyond the vocabulary, or `tokenizers` is not installed.
    """
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise EctypeError("tokenizers is not installed", "the extra `tasks`", "pip install 'ectype[tasks]'") from None
    try:
        inner = Tokenizer.from_file(str(path))
    except Exception as error:  # the library names no narrower kind
        raise EctypeError(f"tokenizer {path}: {error}", "a readable tokenizer.json", "check the path") from None
    if (size := inner.get_vocab_size(with_added_tokens=True)) > vocab_size:
        raise EctypeError(
            f"tokenizer {path}: {size} ids", f"at most the model's {vocab_size}", "use the run's own tokenizer"
        )
    inner.no_truncation()
    inner.no_padding()
    return lambda texts: [found.ids for found in inner.encode_batch_fast(texts, add_special_tokens=False)]
