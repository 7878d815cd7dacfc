"""Held-out text as a stream of rows, in an amount of memory that does not depend on its size."""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from ectype.artifacts import read_json, sha256_of_file
from ectype.data.tokenfile import probe
from ectype.data.width import dtype_of_id_space
from ectype.errors import EctypeError
from ectype.evaluate.documents import documents_by_domain, read_documents, text_encoder
from ectype.evaluate.token_bytes import NO_TOKEN, bytes_per_token
from ectype.evaluate.windows import Rows, fixed_rows, rolling_rows, rolling_stream
from ectype.recipe.reference import Reference
from ectype.recipe.spec import HeldOutSet

_PIECE_TOKENS = 1 << 18
ROWS_AT_ONCE = 64
"""Rows that a stream of tokens is cut into at a time."""


@dataclass(frozen=True)
class Cut:
    """How a set's texts become rows; all of it is part of the recorded protocol."""

    window_tokens: int
    stride_tokens: int | None
    """None: windows that do not overlap, whose first token is context alone."""
    prefix_id: int | None
    remainder: Literal["drop", "score"]
    documents: Literal["as stored", "one by one", "concatenated"]


@dataclass(frozen=True)
class Block:
    """Rows of one domain, the number of the unit that each belongs to, and the bytes of what it scores."""

    domain: str
    rows: Rows
    units: np.ndarray
    """int64 [N]; a unit is a document, or a window where documents are not known. Equal numbers stand together."""
    text_bytes: np.ndarray | None
    """int64 [N], of the original UTF-8 text; None where no tokenizer tells them."""


@dataclass(frozen=True)
class TokenText:
    """A token file, as far as it is read."""

    path: Path
    dtype: str
    header_bytes: int
    tokens: int

    def pieces(self, piece_tokens: int = _PIECE_TOKENS) -> Iterator[np.ndarray]:
        """All tokens, `piece_tokens` at a time, of the file's own element type."""
        item = np.dtype(self.dtype)
        for start in range(0, self.tokens, piece_tokens):
            count = min(piece_tokens, self.tokens - start)
            offset = self.header_bytes + start * item.itemsize
            yield np.fromfile(self.path, item.newbyteorder("<"), count=count, offset=offset)


@dataclass(frozen=True)
class HeldOutText:
    """A set that can be streamed, and what the protocol and the record need to know of it."""

    cut: Cut
    texts: Mapping[str, TokenText | list[Path]]
    """By domain: a token file, or files of documents."""
    subdomains: bool
    targets: int | None
    """Tokens that will be scored; None where only reading all documents would tell."""
    sha256: Mapping[str, str]
    """Of each domain's tokens as little-endian int32, whatever width the file has, or of its files of documents."""
    token_bytes: np.ndarray | None
    """Bytes of each id, int64 [vocab_size]; None without a tokenizer."""
    tokenizer_sha256: str | None
    encode: Any = None
    """Texts to token ids, for documents."""

    def stream(self) -> Iterator[Block]:
        """Blocks of all domains, one domain after another."""
        for domain, text in self.texts.items():
            if isinstance(text, TokenText):
                yield from _number(domain, self._token_rows(text))
            elif self.cut.documents == "concatenated":
                yield from _number(domain, self._rolled(self._joined(text)))
            else:
                yield from self._documents(domain, text)

    def tokens(self) -> Iterator[tuple[str, np.ndarray]]:
        """Domain and tokens, by document where they are known and else by piece."""
        for domain, text in self.texts.items():
            if isinstance(text, TokenText):
                yield from ((domain, piece) for piece in text.pieces())
            else:
                found = read_documents(text, domain, self.subdomains, self.encode)
                yield from ((document.domain, document.tokens) for document in found)

    def _token_rows(self, text: TokenText) -> Iterator[tuple[Rows, np.ndarray | None]]:
        length, cut = self.cut.window_tokens, self.cut
        if cut.stride_tokens is not None:
            pieces = text.pieces()
            if cut.prefix_id is not None:
                pieces = _behind(np.full(1, cut.prefix_id, np.int32), pieces)
            yield from self._rolled(pieces)
            return
        for piece in text.pieces(ROWS_AT_ONCE * length):
            whole = len(piece) // length * length
            parts = [fixed_rows(piece[:whole].reshape(-1, length))] if whole else []
            if cut.remainder == "score" and len(piece) - whole > 1:
                rest = np.zeros((1, length), np.int32)
                rest[0, : len(piece) - whole] = piece[whole:]
                parts.append(fixed_rows(rest, np.array([len(piece) - whole])))
            for rows in parts:
                yield rows, self._bytes(rows)

    def _rolled(self, pieces: Iterator[np.ndarray]) -> Iterator[tuple[Rows, np.ndarray | None]]:
        length = self.cut.window_tokens
        for rows in rolling_stream(pieces, length, self.cut.stride_tokens or length, ROWS_AT_ONCE):
            yield rows, self._bytes(rows)

    def _documents(self, domain: str, files: list[Path]) -> Iterator[Block]:
        prefix = np.array([] if self.cut.prefix_id is None else [self.cut.prefix_id], np.int32)
        stride = self.cut.stride_tokens or self.cut.window_tokens
        for number, document in enumerate(read_documents(files, domain, self.subdomains, self.encode)):
            text = np.concatenate([prefix, document.tokens])
            rows = rolling_rows(text, 1, self.cut.window_tokens, stride)
            text_bytes = np.zeros(len(rows), np.int64)
            if len(rows):
                # Of the text itself, whatever the tokenizer made of it; without a prefix its first token has no score.
                text_bytes[0] = document.text_bytes - (0 if len(prefix) else self._byte_count(document.tokens[0]))
                yield Block(document.domain, rows, np.full(len(rows), number), text_bytes)

    def _joined(self, files: list[Path]) -> Iterator[np.ndarray]:
        """Documents one behind the other, the end of text before each."""
        end = np.array([] if self.cut.prefix_id is None else [self.cut.prefix_id], np.int32)
        for document in read_documents(files, "", False, self.encode):
            yield np.concatenate([end, document.tokens])

    def _bytes(self, rows: Rows) -> np.ndarray | None:
        if self.token_bytes is None:
            return None
        return np.sum(self.token_bytes[rows.targets], axis=1, where=rows.scored)

    def _byte_count(self, token: int) -> int:
        return 0 if self.token_bytes is None else int(self.token_bytes[token])


def _number(domain: str, found: Iterator[tuple[Rows, np.ndarray | None]]) -> Iterator[Block]:
    """Every row a unit of its own."""
    first = 0
    for rows, text_bytes in found:
        yield Block(domain, rows, np.arange(first, first + len(rows)), text_bytes)
        first += len(rows)


def _behind(first: np.ndarray, pieces: Iterator[np.ndarray]) -> Iterator[np.ndarray]:
    yield first
    yield from pieces


def load_held_out(reference: Reference, window_tokens: int, vocab_size: int) -> HeldOutText:
    """The reference's own held-out text. Arguments and errors as for `load_set`."""
    return load_set(reference.held_out.as_set, window_tokens, vocab_size, tokenizer=reference.tokenizer)


def load_set(
    given: HeldOutSet,
    window_tokens: int,
    vocab_size: int,
    *,
    tokenizer: Path | None = None,
    end_of_text_id: int | None = None,
) -> HeldOutText:
    """Look through a set once: hash it and check it. Nothing of it is kept.

    Args:
        window_tokens: where the set itself says nothing.
        vocab_size: real token ids of the models.
        tokenizer: `tokenizer.json`, for bytes of text and for documents.
        end_of_text_id: for sets that begin texts with it.

    Raises:
        EctypeError: a file is absent or of another width, an id lies outside `vocab_size` or has no entry in the
            tokenizer, a domain is too short to score anything, or a tokenizer or its end of text is needed.
    """
    cut = _cut(given, window_tokens, end_of_text_id)
    counts, sha256 = _tokenizer(tokenizer, vocab_size)
    if given.documents is not None:
        if tokenizer is None:
            raise EctypeError("documents without a tokenizer", "the run's tokenizer.json", "give --tokenizer FILE")
        files = _document_domains(given.documents, given.split)
        digests = {name: _sha256_of_files(found) for name, found in files.items()}
        encode = text_encoder(tokenizer, vocab_size)
        return HeldOutText(cut, files, given.subdomains, None, digests, counts, sha256, encode)
    dtype = given.dtype or dtype_of_id_space(vocab_size)
    texts, digests, targets = {}, {}, 0
    for name, path in _token_domains(given).items():
        text = open_tokens(path, dtype, vocab_size, given.first_tokens)
        texts[name], digests[name] = text, _checked_sha256(name, text, vocab_size, counts, tokenizer)
        scored = _targets(text.tokens, cut)
        if scored == 0:
            raise EctypeError(
                f"held-out domain {name}: {text.tokens} tokens",
                f"at least one window of {cut.window_tokens}",
                "drop the domain, or score its remainder (`remainder`: `score`)",
            )
        targets += scored
    return HeldOutText(cut, texts, False, targets, digests, counts, sha256)


def _cut(given: HeldOutSet, window_tokens: int, end_of_text_id: int | None) -> Cut:
    length = given.window_tokens or window_tokens
    if length < 2:
        raise EctypeError(f"windows of {length} token", "at least two, or nothing is scored", "give a longer window")
    documents = given.documents is not None
    prefix = given.prefix or ("end_of_text" if documents else "none")
    if prefix == "end_of_text" and end_of_text_id is None:
        raise EctypeError(
            "texts that begin with the end of text, and nothing says which id it is", "the recipe's data.eos_id",
            "set the set's `prefix` to none, or measure a run or a checkpoint that knows it",
        )  # fmt: skip
    kind = "as stored" if not documents else "concatenated" if given.concatenate else "one by one"
    return Cut(
        window_tokens=length,
        stride_tokens=(given.stride_tokens or length) if documents else given.stride_tokens,
        prefix_id=end_of_text_id if prefix == "end_of_text" else None,
        remainder=given.remainder,
        documents=kind,
    )


def _targets(tokens: int, cut: Cut) -> int:
    if cut.stride_tokens is not None:
        return max(0, tokens - (cut.prefix_id is None))
    rest = tokens % cut.window_tokens if cut.remainder == "score" else 0
    return tokens // cut.window_tokens * (cut.window_tokens - 1) + max(0, rest - 1)


def _token_domains(given: HeldOutSet) -> dict[str, Path]:
    if isinstance(given.tokens, dict):
        return given.tokens
    place = given.tokens or Path()
    if not place.is_dir():
        return {place.stem: place}
    found = {str(path.relative_to(place).with_suffix("")): path for path in sorted(place.rglob("*.npy"))}
    if not found:
        raise EctypeError(f"folder {place} holds no .npy file", "token files", "check the path")
    return found


def _document_domains(given: Path | dict[str, Path], split: str | None) -> dict[str, list[Path]]:
    if isinstance(given, Path):
        return documents_by_domain(given, split)
    named = {name: documents_by_domain(place, split) for name, place in given.items()}
    return {name: [path for files in found.values() for path in files] for name, found in named.items()}


def open_tokens(path: Path, dtype: str, vocab_size: int, first_tokens: int | None = None) -> TokenText:
    """A token file, with or without a `.npy` header, of which only the first `first_tokens` count."""
    found = probe(str(path), dtype, vocab_size)
    if found is None:
        raise EctypeError(f"held-out file {path} is absent", "an existing file", "check the path of the set")
    if first_tokens is not None and found.tokens < first_tokens:
        raise EctypeError(
            f"held-out file {path}: {found.tokens:,} tokens", f"at least {first_tokens:,}, as the set asks for",
            "bring the whole text, or define a set of your own without `first_tokens`",
        )  # fmt: skip
    return TokenText(path, dtype, found.header_bytes, first_tokens or found.tokens)


def _checked_sha256(
    name: str, text: TokenText, vocab_size: int, counts: np.ndarray | None, tokenizer: Path | None
) -> str:
    digest = hashlib.sha256()
    for tokens in text.pieces():
        if int(tokens.max(initial=0)) >= vocab_size:
            raise EctypeError(
                f"held-out file {text.path}: id {int(tokens.max())}",
                f"ids below the model's vocab_size {vocab_size}",
                "check the file, its dtype and the model",
            )
        if counts is not None and np.any(unknown := counts[tokens] == NO_TOKEN):
            raise EctypeError(
                f"held-out domain {name}: id {int(tokens[unknown][0])} has no entry in {tokenizer}",
                "the tokenizer that wrote these tokens",
                "correct `tokenizer` in the reference, or set it to null",
            )
        digest.update(tokens.astype("<i4").tobytes())
    return digest.hexdigest()


def _sha256_of_files(files: list[Path]) -> str:
    digest = hashlib.sha256()
    for path in files:
        digest.update(bytes.fromhex(sha256_of_file(path)))
    return digest.hexdigest()


def _tokenizer(path: Path | None, vocab_size: int) -> tuple[np.ndarray | None, str | None]:
    if path is None:
        return None, None
    counts = bytes_per_token(read_json(path, "tokenizer"), vocab_size)
    return counts, sha256_of_file(path)
