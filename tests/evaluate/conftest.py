"""A run folder whose checkpoints are the bundled reference's own weights."""

from collections.abc import Callable
from pathlib import Path

import pytest

from ectype.recipe.load import load_recipe, to_yaml
from ectype.recipe.reference import Reference, load_reference

BUNDLE = "package:demo/bundle"


@pytest.fixture(scope="session")
def reference() -> Reference:
    return load_reference(BUNDLE)


@pytest.fixture
def copy_run(tmp_path: Path, imported: Callable[[int], Path]) -> Path:
    """A run that reproduced the reference to the last bit, less the padded rows; landmark 400 is lost."""
    run = tmp_path / "run"
    (run / "checkpoints").mkdir(parents=True)
    (run / "recipe.yaml").write_text(to_yaml(load_recipe("toy-calm")))
    for step in (0, 80, 240, 640):
        (run / "checkpoints" / f"{step:08d}").symlink_to(imported(step), target_is_directory=True)
    return run
