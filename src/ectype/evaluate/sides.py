"""The weights that are measured: known by their content, run on a text."""

import hashlib
from collections.abc import Sequence
from pathlib import Path

import jax

from ectype.artifacts import sha256_of_file
from ectype.errors import EctypeError
from ectype.evaluate.engine import CHUNK_TOKENS, Settings, measure_text, on_devices
from ectype.evaluate.held_out import HeldOutText
from ectype.evaluate.measures import row_measures
from ectype.evaluate.subject import Subject, load_subject
from ectype.evaluate.summary import DomainMeasures
from ectype.evaluate.windows import Rows
from ectype.progress import Progress, silent
from ectype.recipe.reference import LandmarkWeights
from ectype.run.checkpoints import META_ITEM, WEIGHTS_ITEM


def load_side(given: LandmarkWeights, settings: Settings, step: int | None = None) -> Subject:
    """Load weights onto the devices.

    Args:
        step: what they must be of, as far as they say; None: anything.

    Raises:
        EctypeError: they can't be loaded, or belong to another step.
    """
    found = load_subject(
        given.weights, padded_rows=given.padded_rows, split_weights=settings.split_weights, devices=settings.devices
    )
    if step is not None and found.step not in (None, step):
        raise EctypeError(
            f"{given.weights} holds step {found.step}", f"step {step}", "a checkpoint was moved or renamed: restore it"
        )
    return found


def require_one_vocabulary(ours: int, reference: int) -> None:
    """Refuse two models between whose predictions there is no divergence.

    Raises:
        EctypeError: their numbers of real ids differ.
    """
    if ours != reference:
        raise EctypeError(
            f"vocabulary of {ours} ids in ours and {reference} in the reference",
            "one vocabulary, or there is no divergence between their predictions",
            "compare runs that share a tokenizer",
        )


def measure_sides(
    sides: Sequence[Subject], text: HeldOutText, settings: Settings, progress: Progress = silent
) -> dict[str, DomainMeasures]:
    """Measures of our weights, and of the reference's where there are two, on every domain of a text."""

    def measure(rows: Rows, first_row: int) -> dict[str, jax.Array]:
        inputs, targets = on_devices(settings, rows.inputs, rows.targets)
        return row_measures(
            tuple(side.params for side in sides),
            inputs,
            targets,
            models=tuple(side.model for side in sides),
            compute_dtype=settings.compute_dtype,
            chunk_tokens=CHUNK_TOKENS,
        )

    return measure_text(text.stream(), measure, settings, progress, text.targets or 0)


def weight_files(path: Path) -> list[Path]:
    """The files that hold weights, in order of their names: a file, a folder's, or those of a checkpoint's items.

    A checkpoint's optimiser state is left out: no evaluation depends on it.

    Raises:
        EctypeError: there is nothing at `path`.
    """
    if path.is_file():
        return [path]
    items = [path / item for item in (WEIGHTS_ITEM, META_ITEM)]
    roots = items if items[0].is_dir() else [path]
    files = sorted(file for root in roots for file in ([root] if root.is_file() else root.rglob("*")) if file.is_file())
    if not files:
        raise EctypeError(f"no weights at {path}", "a checkpoint or a Hugging Face folder", "check the path")
    return files


def weights_sha256(path: Path) -> str:
    """SHA-256 over names and contents of `weight_files`.

    It is of files: two checkpoints of equal weights may differ as files.
    """
    digest = hashlib.sha256()
    for file in weight_files(path):
        digest.update(str(file.relative_to(path.parent if path.is_file() else path)).encode() + b"\0")
        digest.update(bytes.fromhex(sha256_of_file(file)))
    return digest.hexdigest()
