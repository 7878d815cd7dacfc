"""Ectype's own trainer on a recipe, in turns with another; see `turns.py`.

python benchmarks/peers/ectype_speed.py RECIPE
"""

import sys
import tempfile
from pathlib import Path

from turns import Turn

from ectype.cli.huge_pages import restart_with_huge_pages
from ectype.recipe.load import load_placement, load_recipe
from ectype.train.loop import train_run


def main() -> None:
    restart_with_huge_pages()
    turn = Turn()
    with tempfile.TemporaryDirectory() as folder:
        placement = load_placement("cpu", overrides=["checkpoints.every_steps=1000000"])
        train_run(load_recipe(sys.argv[2]), placement, Path(folder) / "run", watch=lambda row: turn.at_step())


if __name__ == "__main__":
    main()
