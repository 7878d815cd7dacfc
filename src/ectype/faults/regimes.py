"""The two ways in which a reproduction can be compared, and which runs make up the matrix of each."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import Field

from ectype import __version__
from ectype.errors import EctypeError
from ectype.faults.catalogue import FAULTS
from ectype.recipe.load import load_recipe, recipe_hash
from ectype.recipe.parse import nearest
from ectype.recipe.spec import Recipe, Section

RECIPE = "toy-faults"
FAULT_SEED, HONEST_SEED = 1000, 2000
"""Added to the data's seed, or a perturbation's, so that no run of the matrix is a twin of the noise's."""
HONEST_DEVICES = (1, 2, 4)
"""Devices of the honest runs, by turns."""
DETAILS = "matrix.json"

RegimeName = Literal["replay", "re-run"]


@dataclass(frozen=True)
class Regime:
    """A way to compare: what it changes in the recipe, and how its noise is measured."""

    name: RegimeName
    what: str
    reseeded: bool
    """Runs read the data in other orders than the reference."""
    overrides: tuple[str, ...]
    twins: int


REGIMES = (
    # The lower rate keeps rounding from deciding the path, so that runs can be followed step by step.
    Regime(
        "replay",
        "the reference's own data order",
        False,
        ("schedule.peak=1e-3", "duration_steps=128", "landmarks=[0, 32, 64, 128]"),
        3,
    ),
    Regime("re-run", "another data seed than the reference's", True, (), 4),
)


class Details(Section):
    """What a matrix is to hold; kept in its folder, so that a later call goes on with the same."""

    format: Literal[1] = 1
    ectype: str = __version__
    regimes: tuple[RegimeName, ...]
    faults: tuple[str, ...]
    honest: int
    overrides: tuple[str, ...]
    recipe_hashes: dict[str, str] = Field(default_factory=dict)
    """By regime, of its reference's recipe."""


def details(
    regimes: Sequence[str] = (), faults: Sequence[str] = (), honest: int = 10, overrides: Sequence[str] = ()
) -> Details:
    """All regimes and faults, or those named.

    Raises:
        EctypeError: a name that is none.
    """
    known = {"regime": [regime.name for regime in REGIMES], "fault": [fault.name for fault in FAULTS]}
    for kind, given in (("regime", regimes), ("fault", faults)):
        for name in given:
            if name not in known[kind]:
                raise EctypeError(
                    f"no {kind} named {name!r}{nearest(name, known[kind])}", f"one of {', '.join(known[kind])}",
                    "see docs/faults.md",
                )  # fmt: skip
    chosen = Details(
        regimes=tuple(regime.name for regime in REGIMES if regime.name in regimes or not regimes),
        faults=tuple(name for name in known["fault"] if name in faults or not faults),
        honest=honest,
        overrides=tuple(overrides),
    )
    hashes = {name: recipe_hash(regime_recipe(chosen, regime_named(name))) for name in chosen.regimes}
    return chosen.model_copy(update={"recipe_hashes": hashes})


def regime_named(name: str) -> Regime:
    """The regime called `name`."""
    return next(regime for regime in REGIMES if regime.name == name)


def regime_recipe(chosen: Details, regime: Regime) -> Recipe:
    """The recipe of the regime's reference, and of all its runs but for what each of them changes."""
    return load_recipe(RECIPE, (*regime.overrides, *chosen.overrides))


@dataclass(frozen=True)
class Run:
    """One run of the matrix, made by one process."""

    regime: RegimeName
    kind: Literal["reference", "twin", "noise", "fault", "honest"]
    of: str = ""
    """The fault's name, or the number of a twin or of an honest run."""

    @property
    def name(self) -> str:
        """As the command line and the folders call it."""
        return f"{self.regime}/{self.kind}{f'-{self.of}' if self.of else ''}"

    def folder(self, out: Path) -> Path:
        """Where it works."""
        return out / self.regime / self.name.rpartition("/")[2]

    def done(self, out: Path) -> Path:
        """What is there once it has ended well."""
        return self.folder(out).with_suffix(".json")


def run_named(name: str) -> Run:
    """The run that `Run.name` names."""
    regime, _, rest = name.partition("/")
    kind, _, of = rest.partition("-")
    return Run(regime, kind, of)  # pyright: ignore[reportArgumentType] - names that this program made


def stages(chosen: Details) -> list[list[Run]]:
    """Runs in the order of what they need of each other; those of one stage need nothing of one another."""
    regimes = [regime_named(name) for name in chosen.regimes]
    judged = [Run(regime.name, "fault", name) for regime in regimes for name in chosen.faults]
    honest = [Run(regime.name, "honest", str(i)) for regime in regimes for i in range(1, chosen.honest + 1)]
    return [
        [Run(regime.name, "reference") for regime in regimes],
        [Run(regime.name, "twin", str(i)) for regime in regimes for i in range(1, regime.twins + 1)],
        [Run(regime.name, "noise") for regime in regimes],
        judged + honest,
    ]
