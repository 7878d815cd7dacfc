"""Fixtures that every test folder shares."""

import atexit
import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import pytest

from ectype.artifacts import package_path
from ectype.recipe.load import load_recipe, recipe_hash
from ectype.recipe.placement import Placement
from ectype.run.manifest import Manifest, Session
from ectype.train.run_folder import environment
from ectype.weights.hf_import import import_weights

SHARED = Path(__file__).resolve().parents[2] / "shared"

# Programs that several tests compile, in this process, the other worker or a command of its own, are compiled once.
# The worker processes inherit the folder from the one that collects.
if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
    os.environ["JAX_COMPILATION_CACHE_DIR"] = tempfile.mkdtemp(prefix="ectype-tests-programs-")
    atexit.register(shutil.rmtree, os.environ["JAX_COMPILATION_CACHE_DIR"], ignore_errors=True)
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")

# With libtpu installed, as the planner needs it, JAX would look for a TPU first.
os.environ.setdefault("JAX_PLATFORMS", "cpu")

# Meshes of up to eight devices are tested in this process; a mesh takes the first ones.
jax.config.update("jax_num_cpu_devices", 8)
# Half the compile time. Long runs, where speed matters more, are tested through the command line in their own process.
jax.config.update("jax_disable_most_optimizations", True)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest files, those that train, first: the two workers take whole files and then end together."""
    items.sort(key=lambda item: "train" not in item.path.parts)


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


@pytest.fixture(scope="session")
def make_manifest() -> Callable[..., Manifest]:
    """A function that makes up the manifest of a run, but for what it is told to change."""
    started = "2026-11-29T16:20:00+00:00"

    def make(**changes: Any) -> Manifest:
        values = {
            "recipe": "toy-calm", "recipe_hash": recipe_hash(load_recipe("toy-calm")), "earlier_recipe_hashes": (),
            "index_fingerprint": "e" * 64,
            "perturbation": None, "created": started, "environment": environment(),
            "placement": Placement(name="cpu"),
            "sessions": (Session(started=started, from_step=0, devices=2, processes=1),),
        }  # fmt: skip
        return Manifest(**values | changes)

    return make


@pytest.fixture(autouse=True)
def _signal_handlers() -> Iterator[None]:
    """A verb that was stopped in this process ignores further signals; neither later tests nor their children may."""
    numbers = (signal.SIGTERM, signal.SIGINT)
    before = [signal.getsignal(number) for number in numbers]
    yield
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)
