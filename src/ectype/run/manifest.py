"""What a run is: the recipe that its folder stores, and `run.json`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from ectype.artifacts import write_json
from ectype.recipe.load import load_recipe
from ectype.recipe.parse import read_record
from ectype.recipe.placement import Placement
from ectype.recipe.spec import Recipe, Section
from ectype.run.paths import RunFolder


class Environment(Section):
    """What the numbers may depend on beyond the recipe."""

    ectype: str
    python: str
    machine: str
    system: str
    cores: int | None
    packages: dict[str, str]


class Perturbation(Section):
    """The relative change of the step-0 weights that makes a twin, and its seed."""

    scale: float
    seed: int


class Session(Section):
    """One start of the program."""

    started: str
    from_step: int
    devices: int
    processes: int


class Manifest(Section):
    """The content of `run.json`."""

    format: Literal[1] = 1
    recipe: str
    recipe_hash: str
    earlier_recipe_hashes: tuple[str, ...]
    """Recipes that the run was under before changes that the user named."""
    index_fingerprint: str
    perturbation: Perturbation | None
    created: str
    environment: Environment
    placement: Placement
    sessions: tuple[Session, ...]


def load_run_recipe(run_dir: Path, overrides: Sequence[str] = ()) -> Recipe:
    """The recipe that a run folder stores, with `section.key=value` overrides applied.

    Raises:
        EctypeError: the folder is no run's, or its recipe can't be read.
    """
    run = RunFolder(run_dir)
    run.require()
    return load_recipe(str(run.recipe), overrides)


def write_manifest(run_dir: Path, manifest: Manifest) -> None:
    """Write `run.json` atomically."""
    write_json(RunFolder(run_dir).manifest, manifest.model_dump(mode="json"))


def read_manifest(run_dir: Path) -> Manifest:
    """Read `run.json` strictly.

    Raises:
        EctypeError: no such file, or none that this version writes.
    """
    mend = "restore it from a copy, or read the run with the Ectype that wrote it"
    return read_record(RunFolder(run_dir).manifest, Manifest, "run", "ectype train", mend)
