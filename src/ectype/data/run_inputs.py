"""The index that a recipe or a run reads, opened for a plan or an audit, and the index of a changed mix."""

from collections.abc import Sequence
from pathlib import Path

from ectype.data.index import load_index
from ectype.data.mixture import change_mix_of_run, load_mixture, mix_index
from ectype.data.tokenindex import TokenIndex
from ectype.errors import EctypeError
from ectype.recipe.load import parse_remap
from ectype.recipe.spec import Recipe
from ectype.run.checkpoints import newest_step
from ectype.run.manifest import load_run_recipe, read_manifest
from ectype.run.paths import RunFolder


def open_index(
    recipe: Recipe, path: str | None = None, remap: Sequence[str] = (), run_dir: Path | None = None
) -> TokenIndex:
    """Open an index without its token files, which a plan does not read.

    Args:
        path: index, manifest or folder; None takes the one that the recipe names.
        remap: `FROM=TO` items beside the recipe's own.
        run_dir: refuse an index that is not the one this run read.

    Raises:
        EctypeError: no index is named, or not the run's.
    """
    chosen = recipe.inputs.index if path is None else path
    if chosen is None:
        raise EctypeError(
            "the recipe names no index", "inputs.index, or --index", "say where the token files are listed"
        )
    prefixes = parse_remap((*recipe.inputs.remap, *remap))
    opened = load_index(chosen, recipe.data, recipe.model.vocab_size, prefixes=prefixes, open_files=False)
    if run_dir is not None:
        _refuse_other_index(run_dir, opened, chosen)
    return opened


def mixed_index(
    built: TokenIndex,
    mix: Path,
    *,
    batch_windows: int | None = None,
    run_dir: Path | None = None,
    step: int | None = None,
    remap: Sequence[str] = (),
) -> TokenIndex:
    """The index of a mixture: a new one, or the change of a run's mix.

    Args:
        built: index of all files that the mixture draws from.
        mix: YAML file of the mixture.
        batch_windows: for a new mixture; its shares fill whole batches.
        run_dir: the run whose mix changes; None for a new mixture.
        step: updates after which it changes; None: those of the run's newest checkpoint.
        remap: as for `open_index`.
    """
    mixture = load_mixture(mix)
    if run_dir is None:
        if batch_windows is None:
            raise EctypeError("--mix without a batch size", "--batch-windows or --recipe", "shares fill whole batches")
        return mix_index(built, mixture, batch_windows)
    recipe = load_run_recipe(run_dir)
    old = open_index(recipe, None, remap, run_dir)
    return change_mix_of_run(old, recipe.data, built, mixture, newest_step(run_dir) if step is None else step)


def _refuse_other_index(run_dir: Path, opened: TokenIndex, path: str) -> None:
    """Compare fingerprints, where the run has a manifest and the index could be fingerprinted without its files."""
    manifest = RunFolder(run_dir).manifest
    if not manifest.exists() or opened.fingerprint.startswith("unopened-"):
        return
    stored = read_manifest(run_dir).index_fingerprint
    if stored not in (opened.fingerprint, opened.previous_fingerprint):
        raise EctypeError(
            f"index {path} has the fingerprint {opened.fingerprint[:16]}", f"{stored[:16]}, as {manifest} says",
            "give the index that the run read (--index)",
        )  # fmt: skip
