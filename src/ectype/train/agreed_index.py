"""One index for all processes of a job: each looks at its own files, and all start, or none does."""

from collections.abc import Callable

import jax
import numpy as np

from ectype.data.tokenindex import TokenIndex
from ectype.errors import EctypeError
from ectype.train import distributed


def agreed_index(load: Callable[[], TokenIndex]) -> TokenIndex:
    """What `load` gives on this process, once every process of the job has the same.

    Raises:
        EctypeError: on every process, when one of them refused its files, or sees other content than process 0.
    """
    if jax.process_count() == 1:
        return load()
    index, fault = None, None
    try:
        index = load()
    except EctypeError as error:
        fault = error
    told = distributed.gather(_summary(index))
    if fault is not None:
        raise fault
    assert index is not None
    refused = np.flatnonzero(told[:, 0] == 0)
    if len(refused):
        raise EctypeError(
            f"process {refused[0]} refused its index or token files", "the same readable files on every host",
            "see the error of that process",
        )  # fmt: skip
    differing = np.flatnonzero((told != told[0]).any(axis=1))
    if len(differing):
        _refuse(index, told, differing)
    return index


def _refuse(index: TokenIndex, told: np.ndarray, differing: np.ndarray) -> None:
    """Every process comes here at once, and names the first file whose content is not the same for all."""
    fault = f"process {differing[0]} reads other data than process 0: "
    if (told[:, 1] != told[0, 1]).any():
        fault += f"{told[differing[0], 1]} files against {told[0, 1]}"
    else:
        files = distributed.gather(np.concatenate([_content(file.tokens, file.sample_sha256) for file in index.files]))
        parts = (files != files[0]).any(axis=0).reshape(len(index.files), -1).any(axis=1)
        changed = np.flatnonzero(parts)
        fault += index.files[changed[0]].path if len(changed) else "another order of mixing, dtype or length"
    raise EctypeError(fault, "files of equal content on every host", "copy them anew, or give all hosts one index")


def _summary(index: TokenIndex | None) -> np.ndarray:
    """[10] uint32: whether it was loaded, its count of files, its fingerprint."""
    if index is None:
        return np.zeros(10, np.uint32)
    words = np.frombuffer(bytes.fromhex(index.fingerprint), np.uint32)
    return np.concatenate([np.array([1, len(index.files)], np.uint32), words])


def _content(tokens: int, sample_sha256: str | None) -> np.ndarray:
    """[4] uint32: a file's size, and half of its sample's hash."""
    size = np.array([tokens], np.uint64).view(np.uint32)
    return np.concatenate([size, np.frombuffer(bytes.fromhex(str(sample_sha256))[:8], np.uint32)])
