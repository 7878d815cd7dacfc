"""The run folder as training opens it: one recipe, one process group at a time."""

import os
import platform
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ectype import __version__
from ectype.artifacts import lock, write_bytes_atomic
from ectype.data.digest import hexadecimal
from ectype.data.ledger import digest_before
from ectype.data.tokenindex import TokenIndex
from ectype.errors import EctypeError
from ectype.recipe.load import recipe_differences, recipe_hash, to_yaml
from ectype.recipe.parse import field_names, nearest_key
from ectype.recipe.placement import Placement
from ectype.recipe.spec import Recipe
from ectype.run.checkpoints import finished_steps, newest_step
from ectype.run.manifest import (
    Environment,
    HandOverRecord,
    Manifest,
    Perturbation,
    Session,
    load_run_recipe,
    read_manifest,
    write_manifest,
)
from ectype.run.paths import RunFolder

_STEP_0_INPUTS = ("weights", "padded_rows")
_RECORDED_PACKAGES = ("jax", "jaxlib", "flax", "orbax-checkpoint", "grain", "numpy")


@contextmanager
def locked(run_dir: Path) -> Iterator[None]:
    """Hold the run folder for this process group; a second one is refused, and a crash releases it."""
    run_dir.mkdir(parents=True, exist_ok=True)
    busy = EctypeError(
        f"{run_dir} is being trained by another process", "one trainer per run folder",
        "wait for it, stop it, or choose another --run folder",
    )  # fmt: skip
    with lock(RunFolder(run_dir).lock, busy):
        yield


def open_run(
    run_dir: Path,
    recipe: Recipe,
    placement: Placement,
    index: TokenIndex,
    perturb: Perturbation | None,
    allowed: Sequence[str] = (),
    hand_over: HandOverRecord | None = None,
) -> None:
    """Create the run's manifest, or check that it is of this recipe, data and perturbation.

    An existing one stays as it is until `record_session`: a change that no checkpoint fits must not be left behind.

    Args:
        allowed: dotted recipe fields whose change the user named; `*` allows any.
        hand_over: what the run takes over; of a run that was begun, what its manifest has.

    Raises:
        EctypeError: the folder holds something else, with every differing field.
    """
    run = RunFolder(run_dir)
    _refuse_unknown(allowed)
    if run.manifest.is_file():
        stored = read_manifest(run_dir)
        _check_recipe(run_dir, recipe, allowed)
        if not index.continues(stored.index_fingerprint, newest_step(run_dir)):
            _check_same(run_dir, "index fingerprint", stored.index_fingerprint, index.fingerprint)
        _check_same(run_dir, "perturbation", _words(stored.perturbation), _words(perturb))
        return
    if any(not _may_precede_manifest(path) for path in run_dir.iterdir()):
        raise EctypeError(
            f"{run_dir} holds files but no {run.manifest.name}",
            "an empty or new folder, or a run's",
            "choose another --run folder",
        )
    manifest = Manifest(
        recipe=recipe.name,
        recipe_hash=recipe_hash(recipe),
        earlier_recipe_hashes=(),
        index_fingerprint=index.fingerprint,
        perturbation=perturb,
        hand_over=hand_over,
        created=_now(),
        environment=environment(),
        placement=placement,
        sessions=(),
    )
    write_bytes_atomic(run.recipe, to_yaml(recipe).encode())
    write_manifest(run_dir, manifest)


def check_recipe(run_dir: Path, recipe: Recipe, allowed: Sequence[str] = ()) -> None:
    """Refuse another recipe than the one that a run began with; before its data is looked for, which it may not fit.

    Raises:
        EctypeError: a field differs that is not among `allowed`.
    """
    if RunFolder(run_dir).manifest.is_file():
        _check_recipe(run_dir, recipe, allowed)


def _may_precede_manifest(path: Path) -> bool:
    """Whether a start that was killed while it opened the run may have left this file."""
    run = RunFolder(path.parent)
    unfinished = tuple(f".{whole.name}." for whole in (run.recipe, run.manifest))
    return path in (run.recipe, run.lock) or path.name.startswith(unfinished)


def check_description(run_dir: Path, meta: dict[str, Any], recipe: Recipe, index: TokenIndex) -> None:
    """Refuse a checkpoint of another recipe or other data, or one whose consumed windows the ledger does not show.

    Args:
        meta: the checkpoint's description.
    """
    path, step = f"{run_dir}: checkpoint of step {meta['step']}", meta["step"]
    known = {recipe_hash(recipe)} | read_manifest(run_dir).recipe_hashes
    if meta.get("recipe_hash") not in known:
        raise EctypeError(
            f"{path} was made under recipe {meta.get('recipe_hash')}", f"one of {sorted(known)}",
            "move that checkpoint away, or restore the run folder from a copy",
        )  # fmt: skip
    if not index.continues(str(meta.get("index_fingerprint")), step):
        raise EctypeError(
            f"{path} was made with index {meta.get('index_fingerprint')}", f"index {index.fingerprint}",
            "train with the index that the run began with",
        )  # fmt: skip
    found = hexadecimal(digest_before(run_dir, step))
    if meta.get("ledger_digest") != found:
        raise EctypeError(
            f"{path}: the ledger sums to {found} up to there", f"{meta.get('ledger_digest')}, as it was when saved",
            "restore the ledger folder that belongs to these checkpoints: exactly-once can't be proven without it",
        )  # fmt: skip


def record_session(
    run_dir: Path,
    recipe: Recipe,
    placement: Placement,
    index: TokenIndex,
    first_step: int,
    devices: int,
    processes: int,
) -> None:
    """Write what a start of the program runs, and add it to the manifest: from which step, on how many devices."""
    stored, now = read_manifest(run_dir), recipe_hash(recipe)
    earlier = stored.earlier_recipe_hashes
    if stored.recipe_hash not in (now, *earlier):
        earlier = (*earlier, stored.recipe_hash)
    session = Session(started=_now(), from_step=first_step, devices=devices, processes=processes)
    changes = {
        "recipe": recipe.name, "recipe_hash": now, "earlier_recipe_hashes": earlier, "environment": environment(),
        "index_fingerprint": index.fingerprint, "placement": placement, "sessions": (*stored.sessions, session),
    }  # fmt: skip
    write_manifest(run_dir, stored.model_copy(update=changes))
    write_bytes_atomic(RunFolder(run_dir).recipe, to_yaml(recipe).encode())


def environment() -> Environment:
    """What the numbers may depend on beyond the recipe."""
    return Environment(
        ectype=__version__,
        python=platform.python_version(),
        machine=platform.machine(),
        system=platform.system(),
        cores=os.cpu_count(),
        packages={name: version(name) for name in _RECORDED_PACKAGES},
    )


def _refuse_unknown(allowed: Sequence[str]) -> None:
    known = field_names(Recipe)
    for name in allowed:
        if name != "*" and name not in known:
            raise EctypeError(
                f"--allow-change of unknown field {name!r}{nearest_key(Recipe, name)}",
                "a field or section of the recipe, or *", "see `ectype recipes show NAME`",
            )  # fmt: skip


def _check_recipe(run_dir: Path, recipe: Recipe, allowed: Sequence[str]) -> None:
    stored, own = load_run_recipe(run_dir), RunFolder(run_dir).recipe
    resumes = f"`ectype train {own} --run {run_dir}` resumes the run as it is"
    changed = _unnamed(recipe_differences(stored, recipe), allowed)
    if changed:
        raise EctypeError(
            f"{run_dir} was made under another recipe: {_stored_and_asked(changed)}",
            "the recipe that the run began with",
            f"{resumes}; or take another --run folder, or name each change with --allow-change FIELD",
        )
    if not finished_steps(run_dir):
        return
    # Step-0 weights are no longer read; a record of others than those that the run began from would be untrue.
    pairs = {f"inputs.{name}": (getattr(stored.inputs, name), getattr(recipe.inputs, name)) for name in _STEP_0_INPUTS}
    moved = _unnamed({name: pair for name, pair in pairs.items() if pair[0] != pair[1]}, allowed)
    if moved:
        raise EctypeError(
            f"the recipe is that of {run_dir}, but not the step-0 weights' path: {_stored_and_asked(moved)}",
            "the path that the run began with, or none: it goes on from a checkpoint, and does not read them again",
            f"{resumes}; or record the new path with --allow-change inputs",
        )


def _unnamed(different: dict[str, tuple[Any, Any]], allowed: Sequence[str]) -> dict[str, tuple[Any, Any]]:
    """Differences that `allowed` does not name, by field or by section."""
    return {
        key: pair
        for key, pair in different.items()
        if "*" not in allowed and not any(key == name or key.startswith(f"{name}.") for name in allowed)
    }


def _stored_and_asked(different: dict[str, tuple[Any, Any]]) -> str:
    return "; ".join(f"{key}: stored {old!r}, asked {new!r}" for key, (old, new) in different.items())


def _check_same(run_dir: Path, what: str, stored: Any, asked: Any) -> None:
    if stored != asked:
        raise EctypeError(
            f"{run_dir}: {what} {asked}", f"{stored}, as the run began", "use the same inputs, or another --run folder"
        )


def _words(perturbation: Perturbation | None) -> str:
    return "none" if perturbation is None else perturbation.words


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
