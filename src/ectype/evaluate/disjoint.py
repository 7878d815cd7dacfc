"""Whether a run's training text holds its held-out text. A set that training reads is refused."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from ectype.artifacts import write_json
from ectype.data.index import load_index
from ectype.data.tokenindex import TokenIndex
from ectype.data.windows import WindowReader
from ectype.errors import EctypeError
from ectype.evaluate.disjointness import Disjointness, SetDisjointness, read_disjointness
from ectype.evaluate.held_out import HeldOutText
from ectype.evaluate.overlap import Blocks, blocks_of, find_blocks, text_blocks
from ectype.progress import Progress, silent
from ectype.recipe.load import parse_remap
from ectype.recipe.spec import Recipe
from ectype.run.paths import RunFolder

LEAST_BLOCK_TOKENS = 64
"""Of the bundled held-out text, 5 blocks of 32 tokens stand in training by themselves, and none of 64."""
CHECKED_WINDOWS = 1 << 18
"""Training windows that are searched unasked: all of an index up to so many, else a sample."""
_TOKENS_AT_ONCE = 1 << 20


def require_disjoint(
    run_dir: Path,
    recipe: Recipe,
    texts: Mapping[str, HeldOutText],
    *,
    most_windows: int = CHECKED_WINDOWS,
    progress: Progress = silent,
) -> Disjointness | str:
    """Search the run's training windows for blocks of held-out text, and write what was found to be disjoint.

    Sets that an earlier search covered, of the same text and index and of as many windows, are not searched for again.

    Args:
        most_windows: of an index that holds more, a sample of so many is searched, the same one each time.

    Returns:
        The record, or why nothing could be searched: the training text is not at hand.

    Raises:
        EctypeError: a set shares a block with training.
    """
    try:
        index = _training_index(recipe)
    except EctypeError as error:
        return error.found
    path = RunFolder(run_dir).disjoint
    known = _stored(path, index)
    searched = min(most_windows, index.windows)
    wanted = {
        name: text
        for name, text in texts.items()
        if name not in known
        or known[name].sha256 != text.sha256
        or known[name].windows_searched < searched
        or known[name].block_tokens != block_tokens_of(text, index)
    }
    if wanted:
        new = {name: _search(name, text, index, searched, progress) for name, text in wanted.items()}
        known = {**known, **new}
        record = Disjointness(index_fingerprint=index.fingerprint, windows=index.windows, sets=known)
        write_json(path, record.model_dump(mode="json"))
    return Disjointness(
        index_fingerprint=index.fingerprint, windows=index.windows, sets={name: known[name] for name in texts}
    )


def block_tokens_of(text: HeldOutText, index: TokenIndex) -> int:
    """Half of the shorter of both windows: whatever the offset, a window of one inside the other holds such a block.

    Not less than `LEAST_BLOCK_TOKENS`, unless that is more than half a training window: shorter phrases recur honestly.
    """
    length = index.sequence_length_tokens
    return max(min(text.cut.window_tokens, length) // 2, min(LEAST_BLOCK_TOKENS, length // 2), 2)


def _training_index(recipe: Recipe) -> TokenIndex:
    if recipe.inputs.index is None:
        raise EctypeError("the recipe names no index", "inputs.index", "name it")
    prefixes = parse_remap(recipe.inputs.remap)
    return load_index(recipe.inputs.index, recipe.data, recipe.model.vocab_size, prefixes=prefixes)


def _stored(path: Path, index: TokenIndex) -> Mapping[str, SetDisjointness]:
    if not path.is_file():
        return {}
    found = read_disjointness(path.parent)
    return found.sets if found.index_fingerprint == index.fingerprint else {}


def _search(
    name: str, text: HeldOutText, index: TokenIndex, searched: int, progress: Progress
) -> SetDisjointness:  # fmt: skip
    size = block_tokens_of(text, index)
    domains, blocks, short = _blocks(text, size)
    hit_windows, first = 0, None
    reader = WindowReader(index)
    for done, ids in sampled_windows(index.windows, searched, max(1, _TOKENS_AT_ONCE // index.sequence_length_tokens)):
        windows, offsets, places = find_blocks(reader.read(ids), blocks, size) if len(blocks.hashes) else ([], [], [])
        hit_windows += len(np.unique(windows))
        if first is None and len(windows):
            first = int(ids[windows[0]]), int(offsets[0]), domains[blocks.texts[places[0]]]
        progress("search training text, windows", done, searched)
    reader.close()
    if first is not None:
        window, offset, domain = first
        (number,), (start,) = index.locate(np.array([window]))
        raise EctypeError(
            f"held-out set {name!r}, domain {domain}: {size} of its tokens stand in training window {window} "
            f"({index.files[number].path}, token {int(start) + offset}); {hit_windows:,} of the {searched:,} windows "
            "searched hold some of the set",
            "text that training never reads",
            "take other text, or an index without it; nothing was evaluated",
        )
    return SetDisjointness(
        sha256=dict(text.sha256), block_tokens=size, blocks=len(blocks.hashes), unchecked_texts=short,
        windows_searched=searched,
    )  # fmt: skip


def _blocks(text: HeldOutText, block_tokens: int) -> tuple[list[str], Blocks, int]:
    """Names of domains, the blocks of all texts with the number of their domain, and how many texts have none."""
    names: dict[str, int] = {}
    hashes, texts, short = [np.empty((0, 2), np.uint64)], [np.empty(0, np.int64)], 0
    for domain, tokens in text.tokens():
        found = text_blocks(tokens, block_tokens)
        short += not len(found)
        hashes.append(found)
        texts.append(np.full(len(found), names.setdefault(domain, len(names))))
    return list(names), blocks_of(np.concatenate(hashes), np.concatenate(texts)), short


def sampled_windows(windows: int, searched: int, at_once: int) -> Iterator[tuple[int, np.ndarray]]:
    """Ascending window ids, [n] uint32 each, with how many came so far: all, or one from each of `searched` strata."""
    generator = np.random.Generator(np.random.PCG64(0))
    for start in range(0, searched, at_once):
        strata = np.arange(start, min(start + at_once, searched), dtype=np.int64)
        low, high = strata * windows // searched, (strata + 1) * windows // searched
        ids = low if searched == windows else generator.integers(low, high)
        yield int(strata[-1]) + 1, ids.astype(np.uint32)
