"""What window ids read as, whatever lies below: fixed windows of files, or documents packed into windows."""

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from ectype.data.order import Order, make_order
from ectype.data.orderfile import default_cache_dir
from ectype.data.packed import open_packed
from ectype.data.tokenindex import Phase, TokenIndex
from ectype.data.windows import WindowReader
from ectype.recipe.spec import Data


class WindowSource(Protocol):
    """Reads windows by id."""

    def read(self, window_ids: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
        """Tokens [b, L] int32, and which of them may be targets [b, L] bool (None: all)."""
        ...


@dataclass(frozen=True)
class FixedWindows:
    """Windows that are consecutive tokens of one file; every token may be a target."""

    reader: WindowReader

    def read(self, window_ids: np.ndarray) -> tuple[np.ndarray, None]:
        """Tokens [b, L] int32, and None."""
        return self.reader.read(window_ids), None


def open_source(index: TokenIndex, data: Data, cache_dir: Path | None = None) -> tuple[WindowSource, tuple[Phase, ...]]:
    """The source of windows that `data` asks for, and the phases of its order (one unless the mix changes)."""
    if data.packing is not None:
        packed = open_packed(index, data, data.packing, cache_dir or default_cache_dir())
        return packed, (Phase(0, 0, len(packed.plan.window_firsts) - 1),)
    return FixedWindows(WindowReader(index)), index.order_phases


def open_order(index: TokenIndex, data: Data, cache_dir: Path | None = None) -> Order:
    """The order over the windows that `open_source` numbers."""
    return make_order(open_source(index, data, cache_dir)[1], data, cache_dir)
