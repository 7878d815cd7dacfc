"""Fixtures of the report's tests."""

from pathlib import Path

import pytest
from fabricated_run import make_run


@pytest.fixture(scope="session")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose differences are those of float32 rounding."""
    return make_run(tmp_path_factory.mktemp("runs") / "calm")
