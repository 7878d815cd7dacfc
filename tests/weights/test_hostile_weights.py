"""Damaged configurations and descriptions, and outputs that can't be written: one clear error, nothing half-written."""

import copy
import json
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ectype.artifacts import package_path
from ectype.errors import EctypeError
from ectype.run.checkpoints import description_file
from ectype.weights.checkpoint import load_weights
from ectype.weights.hf_config import parse_config
from ectype.weights.hf_export import export_weights
from ectype.weights.hf_import import import_weights
from ectype.weights.padded_rows import read_padded_rows
from ectype.weights.safetensors_files import plan_file

STEP_0 = package_path("package:demo/bundle/hf/step0")
SOUND = json.loads((STEP_0 / "config.json").read_text())
MODEL = parse_config(SOUND, "config").model
WRONG: list[Any] = [
    None, 0, -1, 1.5, True, "x", "", [], {}, [1], [[]], [{}] * 4, {"a": 1}, {"full_attention": 3}, {"rope_type": {}},
    {"rope_type": "yarn", "factor": "x"}, {"rope_type": "yarn", "factor": 8, "original_max_position_embeddings": [1]},
    1e308, float("nan"), float("inf"), 10**30, ["sliding_attention"] * 4, ["full_attention"] * 3,
]  # fmt: skip
KEYS = {*SOUND, "rope_scaling", "rope_parameters", "layer_types", "sliding_window", "torch_dtype", "max_window_layers"}


@pytest.mark.parametrize("key", sorted(KEYS))
def test_any_setting_of_any_kind_is_a_model_or_a_clear_error(key: str) -> None:
    for value in WRONG:
        values = copy.deepcopy(SOUND) | {key: value}
        with suppress(EctypeError):
            assert parse_config(values, "config").model.n_layers > 0


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("num_attention_heads", 0, "num_attention_heads: 0 is no count"),
        ("num_hidden_layers", 10**30, "is no count"),
        ("hidden_size", 128.5, "hidden_size: 128.5 is no count"),
        ("layer_types", 4, "layer_types is no list of names"),
        ("rope_parameters", [1], "rope_parameters is no mapping"),
        ("rope_parameters", {"full_attention": 3}, "rope_parameters.full_attention is no mapping"),
        ("rope_scaling", {"rope_type": "yarn", "factor": "x"}, "factor: Input should be a valid number"),
        ("model_type", ["olmo3"], "model_type"),
    ],
)
def test_the_setting_is_named(key: str, value: Any, said: str) -> None:
    with pytest.raises(EctypeError, match=said):
        parse_config(SOUND | {key: value}, "config")


def test_a_side_file_without_rows_is_refused(tmp_path: Path) -> None:
    names = dict.fromkeys(("embeddings.weight", "lm_head.w_out.weight"), ("F32", (0, MODEL.d_model)))
    (tmp_path / "rows.safetensors").write_bytes(plan_file("rows.safetensors", names)[0])
    with pytest.raises(EctypeError, match="holds no rows"):
        read_padded_rows(tmp_path / "rows.safetensors", MODEL)


@pytest.fixture
def checkpoint(tmp_path: Path, imported: Callable[[int], Path]) -> Path:
    return Path(shutil.copytree(imported(0), tmp_path / "checkpoint"))


@pytest.mark.parametrize("dtype", [None, "float8", 7, ["float32"]])
def test_a_description_of_no_element_type_is_refused(checkpoint: Path, dtype: Any) -> None:
    description = json.loads(description_file(checkpoint).read_text())
    description_file(checkpoint).write_text(json.dumps(description | {"dtype": dtype}))
    with pytest.raises(EctypeError, match="weights of dtype"):
        load_weights(checkpoint)


@pytest.mark.parametrize("content", ["[]", "3", '{"tree_metadata": 3}', '{"tree_metadata": {"a": {}}}', "[" * 100_000])
def test_a_tree_description_of_another_form_is_refused(checkpoint: Path, content: str) -> None:
    (checkpoint / "weights" / "_METADATA").write_text(content)
    with pytest.raises(EctypeError, match="weights"):
        load_weights(checkpoint)


def test_an_output_below_a_file_is_refused(tmp_path: Path, checkpoint: Path) -> None:
    (tmp_path / "file").write_text("")
    for write in (lambda out: import_weights(STEP_0, out), lambda out: export_weights(checkpoint, out)):
        with pytest.raises(EctypeError, match="can't write"):
            write(tmp_path / "file" / "out")
    assert (tmp_path / "file").read_text() == ""


@pytest.mark.parametrize("verb", ["import", "export"])
def test_a_file_that_may_not_grow_ends_in_one_error_and_the_same_call_goes_on(
    tmp_path: Path, checkpoint: Path, verb: str
) -> None:
    """A size limit stands for a full disk: the write itself fails, half-way through a file."""
    out, source = tmp_path / "out", STEP_0 if verb == "import" else checkpoint
    command = [sys.executable, "-m", "ectype.cli", "weights", verb, str(source), str(out)]
    limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))  # noqa: E731
    done = subprocess.run(command, preexec_fn=limit, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    assert "error: can't write" in done.stderr
    assert not out.exists()
    if verb == "import":
        import_weights(STEP_0, out)
        ours, _ = load_weights(out)
    else:
        export_weights(checkpoint, out)
        import_weights(out, tmp_path / "again")
        ours, _ = load_weights(tmp_path / "again")
    theirs, _ = load_weights(checkpoint)
    assert np.array_equal(ours["embedding"]["weight"], theirs["embedding"]["weight"])
