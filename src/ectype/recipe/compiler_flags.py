"""Sets of TPU compiler flags by name, from `compiler_flags.json`: speed only, never what is computed."""

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Literal

from ectype.artifacts import read_json
from ectype.errors import EctypeError
from ectype.recipe.placement import Placement
from ectype.recipe.spec import Section


class Flag(Section):
    """One flag, and the reason for it."""

    flag: str
    why: str


class FlagSets(Section):
    """The table: by name of a set its flags. A chip's own set bears the chip's name."""

    format: Literal[1]
    sets: dict[str, tuple[Flag, ...]]


LIBTPU_VARIABLE = "LIBTPU_INIT_ARGS"
"""The environment variable from which libtpu takes its flags when it loads."""


@lru_cache
def load_flag_sets() -> dict[str, tuple[Flag, ...]]:
    """The shipped sets."""
    table = read_json(Path(__file__).parent / "compiler_flags.json", "the table of compiler flags")
    return FlagSets.model_validate(table).sets


def compiler_flags(placement: Placement) -> tuple[str, ...]:
    """The flags with which a placement's programs are compiled: of the set that it names, else of its chip's.

    Raises:
        EctypeError: no set of that name.
    """
    if placement.platform != "tpu":
        return ()
    sets, name = load_flag_sets(), placement.compiler_flags or placement.chip or "none"
    if name not in sets:
        raise EctypeError(
            f"placement {placement.name}: no set of compiler flags is called {name!r}", f"one of {', '.join(sets)}",
            "correct the placement's `compiler_flags`, or set it to none",
        )  # fmt: skip
    return tuple(flag.flag for flag in sets[name])


def libtpu_arguments(placement: Placement, environment: Mapping[str, str]) -> str:
    """What `LIBTPU_VARIABLE` is to hold: the placement's flags, then what the user has set there, which counts more."""
    given = environment.get(LIBTPU_VARIABLE, "")
    own = [flag for flag in compiler_flags(placement) if flag not in given.split()]
    return " ".join([*own, given]).strip()
