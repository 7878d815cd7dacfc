"""What a run is: the recipe that its folder stores, and `run.json`."""

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Literal

from ectype.artifacts import write_json
from ectype.errors import EctypeError
from ectype.recipe.load import load_recipe, recipe_hash
from ectype.recipe.parse import read_record
from ectype.recipe.placement import Placement
from ectype.recipe.spec import HandOver, Recipe, Section
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

    @property
    def words(self) -> str:
        """For errors."""
        return f"{self.scale:g} with seed {self.seed}"


class Session(Section):
    """One start of the program."""

    started: str
    from_step: int
    devices: int
    processes: int


class HandOverRecord(Section):
    """What a stage took over from another run before its first update."""

    given: str
    """The source as the user named it."""
    source: str
    """The checkpoint that it meant."""
    source_step: int | None
    source_recipe_hash: str | None
    source_ledger_digest: str | None
    """Of what the source consumed; all three are None for weights that no run of ours made."""
    switches: HandOver
    changed: dict[str, str]
    """Fields of the recipe that differ from the source's, `old -> new`."""
    first_step: int
    """Updates, and batches read, that the stage counts on from."""
    schedule_offset_steps: int
    """What is added to an update's number before its learning rate is taken."""


class Manifest(Section):
    """The content of `run.json`."""

    format: Literal[1] = 1
    recipe: str
    recipe_hash: str
    earlier_recipe_hashes: tuple[str, ...]
    """Recipes that the run was under before changes that the user named."""
    index_fingerprint: str
    perturbation: Perturbation | None
    hand_over: HandOverRecord | None = None
    """None for a run that began from weights of its own."""
    created: str
    environment: Environment
    placement: Placement
    sessions: tuple[Session, ...]

    @property
    def recipe_hashes(self) -> frozenset[str]:
        """Every recipe that the run was under."""
        return frozenset((self.recipe_hash, *self.earlier_recipe_hashes))


def load_run_recipe(run_dir: Path, overrides: Sequence[str] = ()) -> Recipe:
    """The recipe that a run folder stores, with `section.key=value` overrides applied.

    Raises:
        EctypeError: the folder is no run's, or its recipe can't be read, or is none that the run was under.
    """
    run = RunFolder(run_dir)
    run.require()
    recipe = load_recipe(str(run.recipe))
    if run.manifest.is_file():
        stored, found = read_manifest(run_dir), recipe_hash(recipe)
        # An earlier one stands there where a crash came between the two files.
        if found not in stored.recipe_hashes:
            raise EctypeError(
                f"{run.recipe} has the hash {found}: it was changed since the run",
                f"{stored.recipe_hash}, as {run.manifest.name} has",
                "undo the change, or restore the file from a copy; a run never changes its recipe afterwards",
            )  # fmt: skip
    return load_recipe(str(run.recipe), overrides) if overrides else recipe


def with_stored_inputs(recipe: Recipe, run_dir: Path, given: Collection[str]) -> Recipe:
    """For a run that was begun: `recipe` with the run's own inputs in place of those that nobody gave.

    Where the weights and the index lie is no part of a recipe's meaning, so that a shipped recipe's defaults must not
    stand against what the run was begun with.

    Args:
        given: fields of `inputs` that the user named.

    Raises:
        EctypeError: as `load_run_recipe`.
    """
    if not RunFolder(run_dir).manifest.is_file():
        return recipe
    kept = set(given)
    if recipe.hand_over is None:
        # Without a hand-over a source is refused; that the run has one is told as a difference of recipes.
        kept.add("source")
    stored = load_run_recipe(run_dir).inputs.model_dump(exclude=kept)
    return recipe.model_copy(update={"inputs": recipe.inputs.model_copy(update=stored)})


def first_step(run_dir: Path) -> int:
    """Updates that a run counts on from, where a stage keeps its source's data position; else 0."""
    record = read_manifest(run_dir).hand_over if RunFolder(run_dir).manifest.is_file() else None
    return 0 if record is None else record.first_step


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
