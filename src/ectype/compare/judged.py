"""What a verdict rests on beside the run's own records: weights, held-out text, and what the reference published.

These files may be large, so that a report does not read them all again: one whose size and time of change are as they
were is the same, and only another is looked into.
"""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from ectype.artifacts import sha256_of_file
from ectype.evaluate.sides import weight_files
from ectype.recipe.reference import Reference, paths_in
from ectype.recipe.spec import Recipe, Section
from ectype.run.checkpoints import is_checkpoint
from ectype.run.paths import RunFolder


class JudgedFile(Section):
    """A file as it was judged."""

    size_bytes: int
    modified_ns: int
    """Since the epoch."""
    sha256: str


def judged_inputs(
    run_dir: Path, recipe: Recipe, reference: Reference, landmarks: Iterable[int], *, its_noise: bool
) -> dict[str, JudgedFile]:
    """The files by path, within the run folder where they lie in it.

    Args:
        landmarks: those that were evaluated.
        its_noise: whether the tolerances come from the reference's noise record.
    """
    leave_out = {"landmarks"} if its_noise else {"landmarks", "noise"}
    roots = [*paths_in(reference.model_dump(exclude=leave_out)), *paths_in(recipe.evaluation.model_dump())]
    files = {file for root in roots for file in _files(root)}
    for step in landmarks:
        theirs, ours = reference.landmarks[step], RunFolder(run_dir).checkpoint(step)
        weights = [theirs.weights, *([theirs.padded_rows] if theirs.padded_rows else [])]
        weights += [ours] if is_checkpoint(ours) else []  # One that is gone left its hash in the evaluation.
        files |= {file for given in weights for file in weight_files(given)}
    return {_name(run_dir, file): _seen(file) for file in sorted(files)}


def changed_inputs(run_dir: Path, judged: Mapping[str, JudgedFile]) -> tuple[str, ...]:
    """Names of those that are here and no longer as they were judged; of one that is gone nothing is said."""
    return tuple(name for name, before in judged.items() if _changed(run_dir / name, before))


def _changed(path: Path, before: JudgedFile) -> bool:
    if not path.is_file():
        return False
    now = path.stat()
    if (now.st_size, now.st_mtime_ns) == (before.size_bytes, before.modified_ns):
        return False
    return now.st_size != before.size_bytes or sha256_of_file(path) != before.sha256


def _seen(path: Path) -> JudgedFile:
    stat = path.stat()
    return JudgedFile(size_bytes=stat.st_size, modified_ns=stat.st_mtime_ns, sha256=sha256_of_file(path))


def _name(run_dir: Path, file: Path) -> str:
    whole, run = file.absolute(), run_dir.absolute()
    return str(whole.relative_to(run) if whole.is_relative_to(run) else whole)


def _files(root: Path) -> Iterator[Path]:
    yield from [root] if root.is_file() else (file for file in root.rglob("*") if file.is_file())
