"""Blocks of one text are found in another at any offset, and nothing else is."""

import numpy as np
import pytest

from ectype.evaluate.overlap import blocks_of, find_blocks, text_blocks


def found_in(windows: np.ndarray, text: np.ndarray, size: int) -> list[tuple[int, int]]:
    hashes = text_blocks(text, size)
    windows_found, offsets, _ = find_blocks(windows, blocks_of(hashes, np.zeros(len(hashes), np.int64)), size)
    return list(zip(windows_found.tolist(), offsets.tolist(), strict=True))


def brute_force(windows: np.ndarray, text: np.ndarray, size: int) -> list[tuple[int, int]]:
    starts = sorted({*range(0, len(text) - size + 1, size), len(text) - size})
    wanted = {tuple(text[start : start + size].tolist()) for start in starts}
    return [
        (row, offset)
        for row, window in enumerate(windows)
        for offset in range(len(window) - size + 1)
        if tuple(window[offset : offset + size].tolist()) in wanted
    ]


@pytest.mark.parametrize("size", [3, 4, 7])
def test_every_repeated_block_is_found_and_no_other(size: int) -> None:
    # Three ids, so that blocks repeat often and differ by little.
    generator = np.random.default_rng(size)
    windows, text = generator.integers(0, 3, (40, 16)), generator.integers(0, 3, 60)
    expected = brute_force(windows, text, size)
    assert expected
    assert found_in(windows, text, size) == expected


@pytest.mark.parametrize("shift", [0, 1, 9, 16])
def test_a_window_of_held_out_text_is_found_whatever_its_offset(shift: int) -> None:
    generator = np.random.default_rng(0)
    text = generator.integers(0, 50_000, 300, dtype=np.uint16)
    windows = generator.integers(0, 50_000, (5, 16), dtype=np.uint16)
    windows[3] = text[100 + shift : 116 + shift]
    assert {row for row, _ in found_in(windows, text, 8)} == {3}


def test_text_that_is_shorter_than_a_block_has_none() -> None:
    assert text_blocks(np.arange(7), 8).shape == (0, 2)
    assert text_blocks(np.arange(8), 8).shape == (1, 2)
