"""What is said of a submission before it is made: what cannot work is refused, what may not be meant is noted."""

import os
from collections.abc import Sequence
from pathlib import Path

from ectype.artifacts import package_path
from ectype.errors import EctypeError
from ectype.launch.command import Training
from ectype.launch.settings import only_in_job
from ectype.recipe.load import load_placement, load_recipe, parse_remap
from ectype.recipe.spec import Inputs


def check_inputs(training: Training, *, begun: bool = False) -> list[str]:
    """Notes on a job's inputs; none on a recipe that only the job has.

    Args:
        begun: whether the run is known to have begun: it then holds its weights already.

    Raises:
        EctypeError: nobody names an index, so that every job would end at once.
    """
    if only_in_job(training.recipe):
        return []
    recipe = load_recipe(training.recipe, training.overrides)
    if training.index is None and recipe.inputs.index is None:
        raise EctypeError(
            f"no --index, and recipe {recipe.name} names none", "the tokens to train on",
            "give --index FILE or set $OLMO_INDEX_PATH; `ectype data index` writes one",
        )  # fmt: skip
    if begun or training.source is not None or recipe.inputs.source is not None:
        return []
    if recipe.hand_over is not None:
        return [f"no --from: {recipe.name} goes on from another run, and a new one ends at once without it"]
    if training.weights is None and recipe.inputs.weights is None:
        return ["no --weights: step 0 of a new run is drawn from the recipe's seed; it reproduces no published run"]
    return []


def check_paths(training: Training, state: Path, *, begun: bool) -> None:
    """Refuse inputs that are not on this machine, where the job runs on it, and a run folder that can't be one.

    Args:
        state: the supervisor's folder.
        begun: whether the run has begun: it then holds its weights and knows its index, unless another is named.

    Raises:
        EctypeError: names the first.
    """
    run = Path(training.run)
    if run.exists() and not run.is_dir():
        raise EctypeError(f"--run {run}, a file", "a folder, or the path of a new one", "name another")
    if state.resolve() == run.resolve():
        raise EctypeError(f"--state {state}, the run folder itself", "a folder beside it", "leave --state out")
    parse_remap(training.remap)
    flags, own = dict(_named(training)), dict(_named(load_recipe(training.recipe, training.overrides).inputs))
    given = {flag: path for flag, path in flags.items() if flag == "--index"} if begun else own | flags
    for flag, path in given.items():
        there = package_path(path)
        if not path or not (there.is_file() if flag == "--index" else there.exists()):
            what = "file" if flag == "--index" else "file or folder"
            field = flag if flag in flags else f"the recipe's input for {flag},"
            raise EctypeError(f"{field} {path!r}: no such {what}", f"a {what} of this machine", "check the path")


def check_volumes(training: Training, mounted: Sequence[str]) -> list[str]:
    """Notes on paths of a pod that has volumes at the folders `mounted`, and a disk of its own that goes with it.

    Raises:
        EctypeError: the run folder is in no volume, so that nothing would be left of the run.
    """
    if not _within(training.run, mounted):
        where = ", ".join(mounted) or "none is mounted"
        raise EctypeError(
            f"--run {training.run} lies in no volume ({where}), but on the pod's own disk, which goes with the pod",
            "a run folder below a mounted volume", "mount one with --bucket BUCKET=/PATH or --claim CLAIM=/PATH",
        )  # fmt: skip
    return [
        f"{flag} {path} lies in no volume: it must be in the image"
        for flag, path in _inputs(training)
        if not _within(path, mounted)
    ]


def check_storage(storages: Sequence[str], run: str) -> list[str]:
    """A note where no job is told of a volume: xpk alone knows whether it mounts one."""
    if storages:
        return []
    return [
        f"no --storage: unless xpk mounts one by itself, {run} is on the pod's own disk, which goes with the pod; "
        "`xpk storage list` names them"
    ]


def check_gpus(training: Training, nodes: int, gpus_per_node: int | None) -> None:
    """Refuse GPUs over which model or batch can't be split; files that only the job has are not looked at.

    Raises:
        EctypeError: that, or a placement for GPUs of which no count is given.
    """
    if only_in_job(training.placement):
        return
    placement = load_placement(training.placement, training.placement_overrides)
    if placement.platform == "tpu":
        raise EctypeError(
            f"placement {placement.name}, for TPUs", "one for GPUs or CPUs, which Slurm's nodes have",
            "choose another --placement, or use `ectype launch xpk`",
        )  # fmt: skip
    if placement.platform != "gpu":
        return
    if gpus_per_node is None:
        raise EctypeError(
            f"no --gpus-per-node, and placement {placement.name} is for GPUs", "how many each node has",
            "give --gpus-per-node, as --gpus-per-node 8",
        )  # fmt: skip
    if only_in_job(training.recipe):
        return
    # The numerical libraries take seconds to load, and no other check needs them.
    from jax.sharding import AbstractMesh

    from ectype.train.sharding import check_fit, mesh_sizes

    sizes = mesh_sizes(placement, nodes * gpus_per_node)
    mesh = AbstractMesh(tuple(sizes.values()), tuple(sizes))
    check_fit(load_recipe(training.recipe, training.overrides), mesh, placement)


def _inputs(training: Training) -> list[tuple[str, str]]:
    """Flag and path of each input that was named, but for those that ship with Ectype."""
    return [(flag, path) for flag, path in _named(training) if not path.startswith("package:")]


def _named(what: Training | Inputs) -> list[tuple[str, str]]:
    given = [("--index", what.index), ("--weights", what.weights), ("--padded-rows", what.padded_rows)]
    return [(flag, str(path)) for flag, path in (*given, ("--from", what.source)) if path is not None]


def _within(path: str, folders: Sequence[str]) -> bool:
    whole = os.path.normpath(path)
    return any(f"{whole}/".startswith(f"{os.path.normpath(folder).rstrip('/')}/") for folder in folders)
