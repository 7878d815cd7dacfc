"""The command line: results as one JSON object, exit codes, errors without traceback."""

import json

import pytest
from hf_toys import random_tensors, write_folder
from typer.testing import CliRunner

from ectype.cli.main import app


def _call(*arguments: object) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["weights", *map(str, arguments)])
    return result.exit_code, result.stdout, result.stderr


def test_import_and_export(tmp_path):
    source = write_folder(tmp_path / "hf", random_tensors())
    code, out, _ = _call("import", source, tmp_path / "c", "--trained-rows", 48, "--json")
    assert code == 0
    assert json.loads(out)["padded_rows"]["from"] == "drawn"
    code, out, _ = _call("export", tmp_path / "c", tmp_path / "back", "--like", source)
    assert code == 0
    assert "8 rows past the vocabulary: left out" in out
    assert (tmp_path / "back/model.safetensors").is_file()


def test_import_says_what_it_did(tmp_path):
    source = write_folder(tmp_path / "hf", random_tensors())
    _, out, _ = _call("import", source, tmp_path / "c", "--trained-rows", 48)
    assert "rows 40..47: drawn with seed 0, not the reference's own" in out
    assert "optimiser state: none" in out


def test_bad_input_is_exit_2_and_writes_nothing(tmp_path):
    source = write_folder(tmp_path / "hf", random_tensors(), shards=3)
    (source / "model-00002-of-00003.safetensors").unlink()
    code, out, err = _call("import", source, tmp_path / "c", "--json")
    assert code == 2
    assert "listed but absent" in json.loads(out)["error"]["found"]
    assert "Traceback" not in err
    assert [path.name for path in tmp_path.iterdir()] == ["hf"]
    assert _call("import", tmp_path / "hf", tmp_path / "c", "--dtype", "int8")[0] == 2
    assert _call("export", tmp_path / "nowhere", tmp_path / "back")[0] == 2
    assert _call("parity", tmp_path / "nowhere", source, "--dtype", "float16")[0] == 2


@pytest.mark.parametrize(
    ("option", "value", "found"),
    [("--seed", -1, "seed -1"), ("--trained-rows", 10**12, "1,000,000,000,000 trained rows"),
     ("--trained-rows", 10**30, "trained rows"), ("--trained-rows", -4, "-4 trained rows")],
)  # fmt: skip
def test_counts_that_no_import_can_use_are_one_error(tmp_path, option, value, found):
    source = write_folder(tmp_path / "hf", random_tensors())
    code, out, err = _call("import", source, tmp_path / "c", option, value, "--json")
    assert code == 2
    assert found in json.loads(out)["error"]["found"]
    assert "Traceback" not in err
    assert [path.name for path in tmp_path.iterdir()] == ["hf"]


@pytest.mark.reference
def test_parity_tells_same_from_not(tmp_path):
    pytest.importorskip("transformers")
    source = write_folder(tmp_path / "hf", random_tensors())
    tensors = random_tensors()
    tensors["model.layers.4.mlp.up_proj.weight"] = tensors["model.layers.4.mlp.gate_proj.weight"]
    other = write_folder(tmp_path / "other", tensors)
    _call("import", source, tmp_path / "c")
    code, out, _ = _call("parity", tmp_path / "c", source, "--length", 16)
    assert code == 0
    assert out.startswith("same  float32, 16 tokens")
    code, out, _ = _call("parity", tmp_path / "c", other, "--length", 16, "--json")
    assert code == 1
    assert json.loads(out)["first_fault"]["tensors"] == ["mlp.up"]
    code, out, _ = _call("parity", tmp_path / "c", other, "--length", 16)
    assert code == 1
    assert "first to part: layer 4, mlp: mlp.up" in out
    assert "not over twice the window of 8 tokens" in out
