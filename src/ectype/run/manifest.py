"""What a run is: the recipe that its folder stores."""

from collections.abc import Sequence
from pathlib import Path

from ectype.recipe.load import load_recipe
from ectype.recipe.spec import Recipe
from ectype.run.paths import RunFolder


def load_run_recipe(run_dir: Path, overrides: Sequence[str] = ()) -> Recipe:
    """The recipe that a run folder stores, with `section.key=value` overrides applied.

    Raises:
        EctypeError: the folder is no run's, or its recipe can't be read.
    """
    run = RunFolder(run_dir)
    run.require()
    return load_recipe(str(run.recipe), overrides)
