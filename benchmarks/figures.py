"""How every benchmark reports: one JSON line per figure, and exit 1 when one misses its target."""

import json
import sys
from typing import Any


class Figures:
    """Collects figures; `at_most` and `at_least` print one line each."""

    def __init__(self) -> None:
        self._missed = False

    def at_most(self, name: str, value: float, unit: str, target: float, **more: Any) -> None:
        """A figure that must not exceed `target`; NaN is a miss."""
        self._line(name, value, unit, target, value <= target, more)

    def at_least(self, name: str, value: float, unit: str, target: float, **more: Any) -> None:
        """A figure that must reach `target`; NaN is a miss."""
        self._line(name, value, unit, target, value >= target, more)

    def finish(self) -> None:
        """End the script: 1 when a figure missed its target, else 0."""
        sys.exit(self._missed)

    def _line(self, name: str, value: float, unit: str, target: float, holds: bool, more: dict[str, Any]) -> None:
        self._missed |= not holds
        row = {"name": name, "value": value, "unit": unit, "target": target, "holds": bool(holds), **more}
        print(json.dumps(row), flush=True)
