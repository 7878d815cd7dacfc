"""A compiled step from the cache, or from a compiler process of its own; the same job is never compiled twice."""

import gzip
import importlib.metadata
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ectype.artifacts import build_once, read_json, sha256_of_file, sha256_of_json, write_json
from ectype.errors import EXIT_BAD_INPUT, EctypeError
from ectype.plan.hardware import Slice
from ectype.progress import Progress
from ectype.recipe.compiler_flags import LIBTPU_VARIABLE, libtpu_arguments
from ectype.recipe.placement import Placement
from ectype.recipe.spec import Recipe

PROGRAM, COMPILED = "program.txt.gz", "compiled.json"
_SOURCES = ("model", "train", "recipe", "plan/worker.py")
"""Parts of the package that decide what is compiled."""
_NOT_COMPILED = ("name", "description", "landmarks", "inputs", "evaluation")
"""Fields of recipe and placement that no program depends on and that often change."""


@dataclass(frozen=True)
class Compiled:
    """What the compiler said."""

    folder: Path
    facts: dict[str, Any]
    """`compiled.json`: memory in bytes, seconds and memory of the compilation, or `refused`."""

    def program_text(self) -> str:
        """The optimised program."""
        with gzip.open(self.folder / PROGRAM, "rt") as stream:
            return stream.read()


def compile_step(recipe: Recipe, placement: Placement, where: Slice, cache: Path, progress: Progress) -> Compiled:
    """The recipe's training step on a slice, compiled by the TPU compiler of this machine's libtpu.

    Raises:
        EctypeError: libtpu is not installed, the mesh does not fit, or the compiler failed otherwise than for memory.
    """
    if importlib.util.find_spec("libtpu") is None:
        raise EctypeError(
            "libtpu is not installed",
            "the TPU compiler, which needs no TPU",
            "pip install 'ectype[plan]', or in a clone pip install '.[plan]'",
        )
    flags = libtpu_arguments(placement, os.environ)
    job = {
        "recipe": recipe.model_dump(mode="json"), "placement": placement.model_dump(mode="json"),
        "topology": where.name,
    }  # fmt: skip
    folder = cache / _key(job, flags)
    build_once(folder, lambda out: _run_worker(job, flags, out, progress))
    return Compiled(folder, read_json(folder / COMPILED, "a compiled program's facts"))


def _key(job: dict[str, Any], flags: str) -> str:
    """Everything that decides the program: the job, the flags, the libraries and this package's own sources."""
    package = Path(__file__).parents[1]
    files = sorted(
        path for part in _SOURCES for path in ([package / part] if "." in part else package.glob(f"{part}/*.py"))
    )
    versions = {name: importlib.metadata.version(name) for name in ("jax", "jaxlib", "libtpu", "flax", "optax")}
    fields = [
        {key: value for key, value in job[spec].items() if key not in _NOT_COMPILED} for spec in ("recipe", "placement")
    ]
    sources = [sha256_of_file(path) for path in files]
    return sha256_of_json([fields, job["topology"], flags, versions, sources])[:32]


def _run_worker(job: dict[str, Any], flags: str, out: Path, progress: Progress) -> None:
    environment = os.environ | {
        "JAX_PLATFORMS": "cpu", "TPU_SKIP_MDS_QUERY": "1", "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
        LIBTPU_VARIABLE: flags,
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        job_path, log_path = Path(folder) / "job.json", Path(folder) / "log"
        write_json(job_path, job)
        command = [sys.executable, "-m", "ectype.plan.worker", str(job_path), str(out)]
        with open(log_path, "wb") as log:
            process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=log)
        try:
            answer = _wait(process, f"compiling for {job['topology']}", progress)
        finally:
            process.kill()
            process.wait()
        if process.returncode == EXIT_BAD_INPUT:
            raise EctypeError(**json.loads(answer.splitlines()[-1]))
        if process.returncode != 0:
            lines = log_path.read_text(errors="replace").strip().splitlines()
            raise EctypeError(
                f"the TPU compiler failed on {job['topology']}: {lines[-1] if lines else 'without a word'}",
                "a program that it can compile", "try another placement, or fewer compiler flags",
            )  # fmt: skip


def _wait(process: subprocess.Popen[bytes], label: str, progress: Progress) -> str:
    began = time.monotonic()
    while True:
        try:
            return process.communicate(timeout=1)[0].decode(errors="replace")
        except subprocess.TimeoutExpired:
            progress(f"{label} (seconds)", int(time.monotonic() - began), 0)
