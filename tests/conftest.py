"""Fixtures that every test folder shares."""

from collections.abc import Callable
from pathlib import Path

import jax
import pytest

from ectype.artifacts import package_path
from ectype.weights.hf_import import import_weights

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


@pytest.fixture(scope="session")
def imported(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Path]:
    """A function that gives the bundled run's weights after some step as a checkpoint, without padded rows."""
    folder = tmp_path_factory.mktemp("imported")

    def checkpoint(step: int) -> Path:
        path = folder / str(step)
        if not path.is_dir():
            import_weights(package_path(f"package:demo/bundle/hf/step{step}"), path)
        return path

    return checkpoint
