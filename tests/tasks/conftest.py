"""The toy reference's weights under lm-evaluation-harness, ours and its own, and its offline tasks."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

# Nothing is fetched, and the caches of data sets lie in the tests' own folder.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_DATASETS_OFFLINE", "1")

LONGEST = 256
"""Tokens of the longest input, the length that the model was trained at."""


@pytest.fixture(scope="session")
def toy(shared: Path) -> Path:
    """The Hugging Face folder of the tiny reference at its last landmark."""
    return shared / "reference/olmocore_tiny/hf/step640"


@pytest.fixture(scope="session")
def toy_tokenizer(shared: Path) -> Path:
    return shared / "reference/olmocore_tiny/tokenizer/tokenizer.json"


@pytest.fixture(scope="session")
def offline_tasks(shared: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Definitions of the offline tasks, with the folder of their items written in."""
    datasets = pytest.importorskip("datasets")
    folder, source = tmp_path_factory.mktemp("tasks"), shared / "eval_tasks"
    datasets.config.HF_DATASETS_CACHE = tmp_path_factory.mktemp("datasets")
    for path in (*source.glob("*.yaml"), *source.glob("*.py")):
        (folder / path.name).write_text(path.read_text().replace("EVAL_TASKS_DIR", str(source)))
    return folder


@pytest.fixture(scope="session")
def hugging_face(toy: Path, toy_tokenizer: Path) -> Any:
    """lm-evaluation-harness's own model class on the same weights."""
    for needed in ("lm_eval", "torch", "accelerate"):
        pytest.importorskip(needed)
    from lm_eval.models.huggingface import HFLM

    return HFLM(
        pretrained=str(toy), tokenizer=str(toy_tokenizer.parent), device="cpu", dtype="float32", batch_size=8,
        max_length=LONGEST,
    )  # fmt: skip


@pytest.fixture(scope="session")
def ours(toy: Path, toy_tokenizer: Path) -> Callable[..., Any]:
    """A function that gives our model class with some arguments."""
    pytest.importorskip("lm_eval")
    pytest.importorskip("transformers")
    from ectype.tasks.harness import EctypeLM

    return lambda **arguments: EctypeLM(
        str(toy), str(toy_tokenizer), **{"devices": 1, "max_length": LONGEST} | arguments
    )
