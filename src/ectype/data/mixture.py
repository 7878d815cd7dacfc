"""Weighted mixtures of sources, as OLMo-core's SourceMixtureDataset and NumpyFSLDatasetMixture make them.

A source's share of the requested tokens is spread over its files in proportion to their size; the shares are rounded to
whole windows so that they fill whole batches; each file gives its first windows. A file is listed again for each
repetition. When the mix changes mid-run, each file gives its first windows that were not used yet.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated

import numpy as np
from pydantic import Field, model_validator

from ectype.data.order import Order, make_order
from ectype.data.tokenindex import Phase, TokenFile, TokenIndex, checked, windows_of
from ectype.errors import EctypeError
from ectype.recipe.parse import parse
from ectype.recipe.spec import Data, Positive, Section
from ectype.recipe.yaml_text import parse_yaml


class Source(Section):
    """One source: the files with one of its labels, or whose path matches one of its patterns."""

    name: str
    target_ratio: Annotated[float, Field(gt=0, le=1)]
    labels: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()
    max_repetition_ratio: Annotated[float, Field(ge=1, le=10_000)] = 1.0
    """Bounded, since each repetition lists the source's files once more."""
    max_source_fraction: Annotated[float, Field(gt=0, le=1)] = 1.0


class Mixture(Section):
    """Sources with their shares of the requested tokens."""

    requested_tokens: Positive
    sources: tuple[Source, ...]

    @model_validator(mode="after")
    def _shares_sum_to_one(self) -> "Mixture":
        total = sum(source.target_ratio for source in self.sources)
        if not np.allclose(total, 1.0):
            raise ValueError(f"target ratios sum to {total}, not 1")
        return self


@dataclass(frozen=True)
class Share:
    """What a mixture wants of one listing of one file."""

    file: int
    tokens: int
    """Wanted; a whole number of windows once rounded."""
    available_tokens: int


def mixture_shares(
    mixture: Mixture, files: Sequence[Sequence[int]], tokens: Sequence[int], length: int, batch_tokens: int
) -> list[Share]:
    """Tokens to take from each listing of each file, rounded to whole windows and batches.

    Args:
        files: file numbers of each source, in order.
        tokens: available tokens of each file.
        length: tokens in a window.
        batch_tokens: tokens in a global batch.

    Raises:
        EctypeError: a source has too few tokens for its share.
    """
    shares: list[Share] = []
    for source, numbers in zip(mixture.sources, files, strict=True):
        population = sum(tokens[number] for number in numbers)
        needed = int(mixture.requested_tokens * source.target_ratio)
        allowed = int((population * source.max_source_fraction) * source.max_repetition_ratio)
        if allowed < needed or population == 0:
            raise EctypeError(
                f"source {source.name!r}: {needed} tokens wanted, {allowed} allowed of {population}",
                "enough tokens for its target ratio", "lower its ratio or the requested tokens, or allow repetition",
            )  # fmt: skip
        remaining, ratio = needed / population, 0.0
        while remaining > 0 or ratio == 0:
            ratio = min(1.0, remaining)
            shares += [Share(n, math.ceil(tokens[n] * ratio), tokens[n]) for n in numbers]
            if ratio == 0:
                break
            remaining -= ratio
    return _round_to_batches(shares, mixture.requested_tokens, length, batch_tokens)


def _round_to_batches(shares: Sequence[Share], requested: int, length: int, batch_tokens: int) -> list[Share]:
    """Whole windows that add up to whole batches where the files allow it: Hamilton's largest remainders."""
    target = math.ceil(requested / batch_tokens) * (batch_tokens // length)
    most = [share.available_tokens // length for share in shares]
    counts = [min(share.tokens // length, limit) for share, limit in zip(shares, most, strict=True)]
    remainders = [
        (share.tokens % length) / length if count < limit else 0.0
        for share, count, limit in zip(shares, counts, most, strict=True)
    ]
    eligible = [n for n in range(len(shares)) if counts[n] < most[n]]
    if target > sum(counts) and eligible:
        each = (target - sum(counts)) // len(eligible)
        for n in eligible:
            counts[n] += min(each, most[n] - counts[n])
        candidates = sorted(((remainders[n], n) for n in eligible if counts[n] < most[n]), reverse=True)
        for _, n in candidates[: max(0, target - sum(counts))]:
            counts[n] += 1
    return [
        Share(share.file, count * length, share.available_tokens) for share, count in zip(shares, counts, strict=True)
    ]


def mix_index(base: TokenIndex, mixture: Mixture, batch_windows: int) -> TokenIndex:
    """The index of a mixture over the files of `base`, which lists whole files."""
    shares = _shares(base, mixture, [file.tokens for file in base.files], batch_windows)
    segments = []
    for share in shares:
        count = windows_of(share.tokens, base.sequence_length_tokens, base.max_target_length_tokens)
        if count:
            segments.append((base.files[share.file].first_window, count))
    return checked(_with_segments(base, segments, (), None))


def change_mix(
    old: TokenIndex, files: tuple[TokenFile, ...], mixture: Mixture, batch_windows: int, used: np.ndarray, step: int
) -> TokenIndex:
    """The index of a run that used `old` for `step` updates and goes on with `mixture`; no used window comes again.

    Args:
        files: those of `old`, then any new ones, numbered through.
        used: [physical windows of `old`] bool, what the first `step` batches read.
    """
    length = old.sequence_length_tokens
    chunk = (old.max_target_length_tokens or length) // length
    total = sum(file.windows for file in files)
    free = ~np.pad(used, (0, total - len(used))).reshape(-1, chunk).any(axis=1).repeat(chunk)
    base = TokenIndex(files, old.dtype, old.vocab_size, length, old.max_target_length_tokens, skipped=old.skipped)
    unused = [free[file.first_window : file.first_window + file.windows] for file in files]
    shares = _shares(base, mixture, [int(windows.sum()) * length for windows in unused], batch_windows)
    segments = [(0, old.physical_windows)] if old.segments is None else [tuple(s) for s in old.segments.tolist()]
    added = 0
    for share in shares:
        count = windows_of(share.tokens, length, old.max_target_length_tokens)
        positions = np.flatnonzero(unused[share.file])[:count] + files[share.file].first_window
        runs = np.split(positions, np.flatnonzero(np.diff(positions) != 1) + 1)
        segments += [(int(run[0]), len(run)) for run in runs if len(run)]
        added += count
    before = old.windows
    phases = (*old.order_phases, Phase(step, before, added))
    return checked(_with_segments(base, segments, phases, old.fingerprint))


def change_mix_of_run(old: TokenIndex, data: Data, files: TokenIndex, mixture: Mixture, step: int) -> TokenIndex:
    """The index with which a run that read `old` for `step` updates goes on; files that `old` lacks are added.

    Raises:
        EctypeError: another length or id space, or too few unused windows.
    """
    same = ("dtype", "vocab_size", "sequence_length_tokens", "max_target_length_tokens")
    if any(getattr(old, name) != getattr(files, name) for name in same):
        raise EctypeError(
            "the new files' lengths or id space differ", "those of the run's index", "use the run's recipe"
        )
    known = {file.path for file in old.files}
    first, every = old.physical_windows, list(old.files)
    for file in files.files:
        if file.path not in known:
            every.append(replace(file, first_window=first))
            first += file.windows
    used = used_windows(old, make_order(old.order_phases, data), step)
    return change_mix(old, tuple(every), mixture, data.global_batch_windows, used, step)


def load_mixture(path: Path) -> Mixture:
    """Read a mixture from YAML: `requested_tokens`, and `sources` with name, target_ratio, labels or paths."""
    try:
        values = parse_yaml(path.read_bytes())
    except (OSError, ValueError) as error:
        raise EctypeError(f"mixture {path}: {error}", "a readable YAML file", "check the path and its syntax") from None
    return parse(Mixture, values, f"mixture {path}", expected="requested_tokens and sources", mend="correct the file")


def used_windows(index: TokenIndex, order: Order, end_batch: int) -> np.ndarray:
    """What batches [0, end_batch) read. [physical windows] bool."""
    used = np.zeros(index.physical_windows, bool)
    for _, ids in order.blocks(0, end_batch):
        used[index.physical(ids.reshape(-1))] = True
    return used


def _shares(base: TokenIndex, mixture: Mixture, tokens: Sequence[int], batch_windows: int) -> list[Share]:
    length = base.sequence_length_tokens
    files = [_files_of(base, source) for source in mixture.sources]
    return mixture_shares(mixture, files, tokens, length, batch_windows * length)


def _files_of(index: TokenIndex, source: Source) -> list[int]:
    found = [
        number
        for number, file in enumerate(index.files)
        if file.label in source.labels or any(fnmatchcase(file.path, pattern) for pattern in source.paths)
    ]
    if not found:
        raise EctypeError(
            f"source {source.name!r} matches no file", "labels of the manifest, or patterns of paths",
            "correct its labels or paths",
        )  # fmt: skip
    return found


def _with_segments(
    base: TokenIndex, segments: Sequence[tuple[int, ...]], phases: tuple[Phase, ...], previous: str | None
) -> TokenIndex:  # fmt: skip
    return TokenIndex(
        base.files, base.dtype, base.vocab_size, base.sequence_length_tokens, base.max_target_length_tokens,
        np.array(segments, np.int64).reshape(-1, 2), phases, previous, base.skipped,
    )  # fmt: skip
