"""Windows of packed documents: planned once per host, kept on disk, memory-mapped by every process that reads."""

import gzip
import os
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ectype.artifacts import build_once, sha256_of_json
from ectype.data.documents import document_spans
from ectype.data.packing import best_fit, cut_documents, longest_first, permuted_files
from ectype.data.storage import is_remote, read_all
from ectype.data.tokenindex import TokenFile, TokenIndex
from ectype.data.windows import WindowReader
from ectype.errors import EctypeError
from ectype.recipe.spec import Data, Packing

_SCAN_TOKENS = 1 << 24
_PARTS = ("files", "starts", "lengths", "window_firsts")


@dataclass(frozen=True)
class PackedPlan:
    """Which documents fill which window. Documents are listed window by window, in packing order."""

    files: np.ndarray
    """[documents] uint32, file number in the index"""
    starts: np.ndarray
    """[documents] int64, first token in the file"""
    lengths: np.ndarray
    """[documents] uint32"""
    window_firsts: np.ndarray
    """[windows + 1] int64, the first document of each window"""


@dataclass(frozen=True)
class PackedWindows:
    """Reads packed windows. Padding has the id `pad_id` and is no target."""

    reader: WindowReader
    plan: PackedPlan
    length: int
    pad_id: int

    def read(self, window_ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Tokens [b, L] int32, and True where they are of a document [b, L] bool."""
        tokens = np.full((len(window_ids), self.length), self.pad_id, np.int32)
        mask = np.zeros(tokens.shape, bool)
        for row, window in enumerate(np.asarray(window_ids, np.int64)):
            end = 0
            for document in range(self.plan.window_firsts[window], self.plan.window_firsts[window + 1]):
                start, size = int(self.plan.starts[document]), int(self.plan.lengths[document])
                tokens[row, end : end + size] = self.reader.read_span(
                    int(self.plan.files[document]), start, start + size
                )
                end += size
            mask[row, :end] = True
        return tokens, mask


def open_packed(index: TokenIndex, data: Data, rule: Packing, cache_dir: Path) -> PackedWindows:
    """The packed windows of all files of the index, planned first when no plan is stored.

    Raises:
        EctypeError: a mixture (packing takes whole files), no document, a remote file without its `.csv.gz`, or an
            unwritable cache folder.
    """
    if index.segments is not None or data.order.max_target_length_tokens is not None:
        raise EctypeError(
            "packing with a mixture or a max target length", "whole files and a single length",
            "leave out data.packing, the mixture, or order.max_target_length_tokens",
        )  # fmt: skip
    identity = [1, index.fingerprint, data.sequence_length_tokens, data.eos_id, rule.model_dump(mode="json")]
    if rule.ties == "numpy":
        identity.append(np.__version__)
    folder = cache_dir / f"packed-{sha256_of_json(identity)[:32]}"
    reader = WindowReader(index)
    try:
        build_once(folder, lambda temporary: _store(temporary, plan_packing(index, data, rule)))
        parts = [np.load(folder / f"{part}.npy", mmap_mode="r") for part in _PARTS]
    except (OSError, ValueError, EOFError) as error:
        raise EctypeError(
            f"packing plan {folder}: {error}", "a readable plan", "delete the folder; it is made again"
        ) from None
    return PackedWindows(reader, PackedPlan(*parts), data.sequence_length_tokens, data.pad_id)


def plan_packing(index: TokenIndex, data: Data, rule: Packing) -> PackedPlan:
    """Pack the documents of each group of consecutive files, after the files' permutation."""
    numbers = permuted_files(len(index.files), rule.source_permutation_seed)
    reader, plans = WindowReader(index), []
    for first in range(0, len(numbers), rule.source_group_size):
        group = numbers[first : first + rule.source_group_size]
        plans.append(_pack_group(index, data, rule, reader, group))
    reader.close()
    offsets = np.cumsum([0] + [len(plan.files) for plan in plans])
    firsts = [plan.window_firsts[:-1] + offset for plan, offset in zip(plans, offsets, strict=False)]
    windows = np.concatenate([*firsts, offsets[-1:]])
    if len(windows) == 1:
        raise EctypeError(
            "the files hold no document", f"documents that end with id {data.eos_id}", "check data.eos_id"
        )
    files, starts, lengths = (np.concatenate([getattr(plan, name) for plan in plans]) for name in _PARTS[:3])
    return PackedPlan(files, starts, lengths, windows)


def _pack_group(
    index: TokenIndex, data: Data, rule: Packing, reader: WindowReader, group: Iterable[int]
) -> PackedPlan:  # fmt: skip
    files, spans = [], []
    for number in group:
        found = cut_documents(
            _spans(index.files[number], number, reader, data.eos_id), data.sequence_length_tokens, rule
        )
        spans.append(found)
        files.append(np.full(len(found), number, np.uint32))
    all_spans, all_files = np.concatenate(spans), np.concatenate(files)
    lengths = all_spans[:, 1] - all_spans[:, 0]
    order = longest_first(lengths, rule)
    documents, firsts = best_fit(lengths[order], data.sequence_length_tokens)
    chosen = order[documents]
    return PackedPlan(all_files[chosen], all_spans[chosen, 0], lengths[chosen].astype(np.uint32), firsts)


def _spans(file: TokenFile, number: int, reader: WindowReader, eos_id: int) -> np.ndarray:
    if is_remote(file.path):
        return _listed_spans(file)
    ends = [
        start + np.flatnonzero(reader.read_span(number, start, min(start + _SCAN_TOKENS, file.tokens)) == eos_id)
        for start in range(0, file.tokens, _SCAN_TOKENS)
    ]
    return document_spans(np.concatenate(ends) if ends else np.empty(0, np.int64))


def _listed_spans(file: TokenFile) -> np.ndarray:
    """Documents of a remote file, from the `.csv.gz` beside it (`start,end,...` lines), as OLMo-core reads them."""
    name = file.path.removesuffix(".npy") + ".csv.gz"
    try:
        lines = gzip.decompress(read_all(name)).decode().splitlines()
        spans = np.array([[int(part) for part in line.split(",")[:2]] for line in lines], np.int64).reshape(-1, 2)
    except (OSError, EOFError, ValueError, OverflowError, zlib.error) as error:
        raise EctypeError(
            f"{name}: {error}", "gzipped lines `start,end`", "restore the file, or copy the tokens here"
        ) from None
    if len(spans) and not (spans[:, 0].min() >= 0 and spans.max() <= file.tokens and (spans[:, 0] < spans[:, 1]).all()):
        raise EctypeError(
            f"{name}: documents outside {file.tokens} tokens", "spans inside the file", "restore the file"
        )
    return spans


def _store(folder: Path, plan: PackedPlan) -> None:
    folder.mkdir()
    for part in _PARTS:
        array = np.ascontiguousarray(getattr(plan, part))
        with open(folder / f"{part}.npy", "xb") as stream:
            np.lib.format.write_array_header_1_0(stream, np.lib.format.header_data_from_array_1_0(array))
            stream.write(array.data)  # np.save loses what a full disk does not take
            stream.flush()
            os.fsync(stream.fileno())
