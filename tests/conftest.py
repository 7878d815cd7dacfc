"""Fixtures that every test folder shares."""

from pathlib import Path

import jax
import pytest

SHARED = Path(__file__).resolve().parents[2] / "shared"

# Meshes of up to eight devices are tested in this process; a mesh takes the first ones.
jax.config.update("jax_num_cpu_devices", 8)
# Half the compile time. Long runs, where speed matters more, are tested through the command line in their own process.
jax.config.update("jax_disable_most_optimizations", True)


@pytest.fixture(scope="session")
def shared() -> Path:
    """The read-only facts and reference runs that lie beside a developer's or CI's checkout."""
    if not SHARED.is_dir():
        pytest.skip("no shared/ folder beside this checkout")
    return SHARED
