"""Shards, index and tensors checked against each other before anything is written (C08)."""

import json
from collections.abc import Callable
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from hf_toys import OLMO3, random_tensors, read_file, write_file, write_folder

from ectype.errors import EctypeError
from ectype.weights.hf_import import import_weights
from ectype.weights.safetensors_files import read_header

SHARD_2 = "model-00002-of-00003.safetensors"
INDEX = "model.safetensors.index.json"


def _refused(tmp_path: Path, folder: Path) -> str:
    """The import's error; nothing may have been written."""
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(EctypeError) as caught:
        import_weights(folder, tmp_path / "checkpoint")
    assert sorted(tmp_path.rglob("*")) == before
    return str(caught.value)


def _edit_index(folder: Path, edit: Callable[[dict[str, str]], object]) -> None:
    index = json.loads((folder / INDEX).read_text())
    edit(index["weight_map"])
    (folder / INDEX).write_text(json.dumps(index))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "hf", random_tensors(), shards=3)


def test_three_sound_shards_are_taken(tmp_path, folder):
    assert import_weights(folder, tmp_path / "checkpoint")["tensors"] == len(random_tensors())


def test_deleted_shard(tmp_path, folder):
    (folder / SHARD_2).unlink()
    assert f"shard {SHARD_2} is listed but absent" in _refused(tmp_path, folder)


def test_shard_short_by_one_byte(tmp_path, folder):
    data = (folder / SHARD_2).read_bytes()
    (folder / SHARD_2).write_bytes(data[:-1])
    message = _refused(tmp_path, folder)
    assert SHARD_2 in message
    assert "(-1)" in message


def test_shard_long_by_one_byte(tmp_path, folder):
    (folder / SHARD_2).write_bytes((folder / SHARD_2).read_bytes() + b"\0")
    assert "(+1)" in _refused(tmp_path, folder)


def test_index_line_that_points_to_another_shard(tmp_path, folder):
    _edit_index(folder, lambda names: names.update({"lm_head.weight": SHARD_2}))
    message = _refused(tmp_path, folder)
    assert f"tensor lm_head.weight is listed in {SHARD_2}, which lacks it" in message
    assert "tensor lm_head.weight is in model-00003-of-00003.safetensors but not listed there" in message


def test_index_line_that_points_to_no_file(tmp_path, folder):
    _edit_index(folder, lambda names: names.update({"lm_head.weight": "model-00004-of-00003.safetensors"}))
    assert "shard model-00004-of-00003.safetensors is listed but absent" in _refused(tmp_path, folder)


def test_index_line_that_leaves_the_folder(tmp_path, folder):
    _edit_index(folder, lambda names: names.update({"lm_head.weight": "../secret.safetensors"}))
    assert "'../secret.safetensors', which is no file name" in _refused(tmp_path, folder)


def test_index_line_removed(tmp_path, folder):
    _edit_index(folder, lambda names: names.pop("lm_head.weight"))
    assert "lm_head.weight is in model-00003-of-00003.safetensors but not listed" in _refused(tmp_path, folder)


def test_stray_file(tmp_path, folder):
    write_file(folder / "stray.safetensors", {"a": np.ones(2, np.float32)})
    assert "stray.safetensors is present but the index lists nothing in it" in _refused(tmp_path, folder)


def test_stray_file_beside_a_single_one(tmp_path):
    folder = write_folder(tmp_path / "hf", random_tensors())
    write_file(folder / "consolidated.safetensors", {"a": np.ones(2, np.float32)})
    assert "consolidated.safetensors belongs to no checkpoint" in _refused(tmp_path, folder)


def test_folder_without_safetensors(tmp_path):
    folder = write_folder(tmp_path / "hf", random_tensors())
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    assert "holds neither model.safetensors nor" in _refused(tmp_path, folder)


@pytest.mark.parametrize("shards", [1, 3])
def test_tensor_missing_extra_misshapen_or_of_another_type(tmp_path, shards):
    tensors = random_tensors()
    tensors["model.layers.6.mlp.up_proj.weight"] = tensors.pop("model.layers.5.mlp.up_proj.weight")
    tensors["model.norm.weight"] = np.ones(15, np.float32)
    tensors["model.layers.2.self_attn.q_norm.weight"] = np.ones(16, ml_dtypes.bfloat16)
    tensors["model.layers.3.self_attn.q_norm.weight"] = np.ones(16, np.int32)
    message = _refused(tmp_path, write_folder(tmp_path / "hf", tensors, shards=shards))
    assert "model.layers.5.mlp.up_proj.weight [24, 16] is missing" in message
    assert "model.layers.6.mlp.up_proj.weight [24, 16] is extra" in message
    assert "model.norm.weight has shape [15], not [16]" in message
    assert "model.layers.2.self_attn.q_norm.weight has dtype BF16, not F32" in message
    assert "model.layers.3.self_attn.q_norm.weight has dtype I32, not F32" in message


def test_element_type_other_than_declared(tmp_path):
    folder = write_folder(tmp_path / "hf", random_tensors())
    (folder / "config.json").write_text(json.dumps(OLMO3 | {"dtype": "bfloat16"}))
    assert "has dtype F32, not BF16" in _refused(tmp_path, folder)
    assert import_weights(folder, tmp_path / "checkpoint", dtype="bfloat16")["dtype"] == "bfloat16"


def _header(text: bytes, data: bytes = b"\0" * 8) -> bytes:
    return len(text).to_bytes(8, "little") + text + data


HALF = b'{"dtype":"F32","shape":[1],"data_offsets":'
BROKEN = {
    "empty file": (b"", "cannot hold the header"),
    "header longer than the file": ((1 << 40).to_bytes(8, "little"), "cannot hold the header"),
    "no JSON": (_header(b"{nothing}"), "Expecting"),
    "no object": (_header(b"[]"), "no JSON object"),
    "hole": (_header(b'{"a":' + HALF + b"[4,8]}}"), "a hole or an overlap before tensor a"),
    "overlap": (_header(b'{"a":' + HALF + b'[0,4]},"b":' + HALF + b"[0,4]}}", b"\0" * 4), "a hole or an overlap"),
    "range of another length": (_header(b'{"a":' + HALF + b"[0,8]}}"), "needs 4 bytes, its range has 8"),
    "name twice": (_header(b'{"a":' + HALF + b'[0,4]},"a":' + HALF + b"[4,8]}}"), "'a' twice"),
    "unknown dtype": (_header(b'{"a":{"dtype":"F3","shape":[2],"data_offsets":[0,8]}}'), "unknown dtype 'F3'"),
    "negative size": (_header(b'{"a":{"dtype":"F32","shape":[-2],"data_offsets":[8,0]}}'), "that are no counts"),
}


@pytest.mark.parametrize(("content", "found"), BROKEN.values(), ids=BROKEN)
def test_broken_header(tmp_path, content, found):
    (tmp_path / "model.safetensors").write_bytes(content)
    with pytest.raises(EctypeError, match=found):
        read_header(tmp_path / "model.safetensors")


def test_rows_are_read_alone(tmp_path):
    tensors = random_tensors("bfloat16")
    write_file(tmp_path / "a.safetensors", tensors)
    entry = read_header(tmp_path / "a.safetensors")["lm_head.weight"]
    assert entry.read_rows(5, 9).tobytes() == tensors["lm_head.weight"][5:9].tobytes()
    assert entry.read().tobytes() == read_file(tmp_path / "a.safetensors")["lm_head.weight"][2]
