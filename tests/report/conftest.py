"""Fixtures of the report's tests."""

from collections.abc import Callable
from pathlib import Path

import pytest
from fabricated_run import make_run

from ectype.run.manifest import Manifest


@pytest.fixture(scope="session")
def run_dir(tmp_path_factory: pytest.TempPathFactory, make_manifest: Callable[..., Manifest]) -> Path:
    """A run whose differences are those of float32 rounding."""
    return make_run(tmp_path_factory.mktemp("runs") / "calm", make_manifest)
