"""Token files, and the reference run, for the data tests."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from data_makers import write_tokens


@pytest.fixture
def corpus(tmp_path: Path) -> Callable[..., list[Path]]:
    """Makes files of the given sizes whose tokens count up, so that a token tells its file and place."""

    def make(*sizes: int, dtype: str = "<u2", vocab_size: int = 1000) -> list[Path]:
        starts = np.cumsum([0, *sizes])
        return [
            write_tokens(tmp_path / f"f{n}.npy", (np.arange(size) + starts[n]) % (vocab_size - 2) + 2, dtype)
            for n, size in enumerate(sizes)
        ]

    return make


@pytest.fixture(scope="session")
def tiny(shared: Path) -> Path:
    """The folder of the reference run."""
    return shared / "reference" / "olmocore_tiny"


@pytest.fixture(scope="session")
def tiny_paths(tiny: Path) -> list[Path]:
    """Its training files, in order."""
    files = json.loads((tiny / "tokens/manifest.json").read_text())["files"]
    return [tiny / file["path"] for file in files if file["split"] == "train"]
