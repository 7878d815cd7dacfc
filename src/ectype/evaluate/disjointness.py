"""The record of held-out sets that were looked for in a run's training text and not found: `disjoint.json`."""

from pathlib import Path
from typing import Literal

from ectype.recipe.parse import read_record
from ectype.recipe.spec import Section
from ectype.run.paths import RunFolder


class SetDisjointness(Section):
    """One set that shares no block with the windows that were searched."""

    sha256: dict[str, str]
    """Of each domain's text."""
    block_tokens: int
    """Any training window that is held-out text from end to end holds a block of so many tokens whole."""
    blocks: int
    unchecked_texts: int
    """Documents shorter than a block."""
    windows_searched: int


class Disjointness(Section):
    """`disjoint.json` of a run: sets that training does not read."""

    format: Literal[1] = 1
    index_fingerprint: str
    windows: int
    """Of the index."""
    sets: dict[str, SetDisjointness]


def read_disjointness(run_dir: Path) -> Disjointness:
    """Read `disjoint.json` of a run strictly.

    Raises:
        EctypeError: no such file, or none that this version writes.
    """
    mend = "delete it and evaluate again"
    return read_record(RunFolder(run_dir).disjoint, Disjointness, "disjointness", "ectype evaluate", mend)
