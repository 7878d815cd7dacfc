"""Checks of Ectype that refuse a fault before anything is trained, each put to the test on the fault itself."""

import shutil
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path

from ectype.data.index import load_index
from ectype.errors import EctypeError
from ectype.evaluate.disjoint import require_disjoint
from ectype.faults import materials
from ectype.faults.catalogue import RESTARTED_AT, STALE, Fault, fault_named
from ectype.recipe.load import load_placement
from ectype.recipe.spec import Recipe
from ectype.run.paths import RunFolder
from ectype.train import checkpoint
from ectype.train.sharding import make_mesh
from ectype.weights.checkpoint import load_weights

Check = Callable[[Recipe, Path, Path], None]
"""Recipe, a folder to write in, the reference's run folder; raises EctypeError where the fault is refused."""


def _width(recipe: Recipe, folder: Path, _: Path) -> None:
    load_index(materials.widened(recipe, folder), recipe.data, recipe.model.vocab_size)


def _disjointness(recipe: Recipe, folder: Path, _: Path) -> None:
    manifest, text = materials.with_held_out_text(recipe, folder)
    leaked = recipe.model_copy(update={"inputs": recipe.inputs.model_copy(update={"index": str(manifest)})})
    require_disjoint(folder, leaked, {"bundled": text})


def _description(name: str) -> Check:
    """The reference's step-0 weights, asked for under the faulty recipe's model."""

    def check(recipe: Recipe, folder: Path, reference: Path) -> None:
        with ExitStack() as stack:
            faulty = fault_named(name).make(recipe, folder, stack).recipe
        load_weights(RunFolder(reference).checkpoint(0), model=faulty.model)

    return check


def _step_of_checkpoint(recipe: Recipe, folder: Path, reference: Path) -> None:
    """A checkpoint folder under the name of a later step."""
    there = RunFolder(folder).checkpoint(RESTARTED_AT)
    shutil.copytree(RunFolder(reference).checkpoint(STALE), there)
    checkpoint.restore(folder, RESTARTED_AT, recipe, make_mesh(load_placement("cpu-one")))


_DESCRIPTION = "weights of another model"
CHECKS: Mapping[str, tuple[str, Check]] = {
    "width-misread": ("width of the token files", _width),
    "held-out-leaked": ("held-out text in training", _disjointness),
    "window-off-by-one": (_DESCRIPTION, _description("window-off-by-one")),
    "norm-per-head": (_DESCRIPTION, _description("norm-per-head")),
    "rope-theta": (_DESCRIPTION, _description("rope-theta")),
    "stale-checkpoint": ("step of the checkpoint", _step_of_checkpoint),
}
"""By fault: the check in words, and the check itself."""


def refused_by(fault: Fault, recipe: Recipe, folder: Path, reference: Path) -> str | None:
    """The check that refuses the fault, in words; None where none does."""
    if fault.name not in CHECKS:
        return None
    words, check = CHECKS[fault.name]
    try:
        check(recipe, folder, reference)
    except EctypeError:
        return words
    return None
