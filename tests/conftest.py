"""Fixtures that every test folder shares."""

from pathlib import Path

import pytest

SHARED = Path(__file__).resolve().parents[2] / "shared"


@pytest.fixture(scope="session")
def shared() -> Path:
    """The read-only facts and reference runs that lie beside a developer's or CI's checkout."""
    if not SHARED.is_dir():
        pytest.skip("no shared/ folder beside this checkout")
    return SHARED
