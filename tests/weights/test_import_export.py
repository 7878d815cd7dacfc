"""Import and export: byte-identical, resumable, padded rows, damage found."""

import hashlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import orbax.checkpoint as ocp
import pytest
from hf_toys import (
    OLMO3,
    olmo_model,
    olmo_shapes,
    random_tensors,
    read_all,
    read_file,
    save_weights,
    write_file,
    write_folder,
)

from ectype.errors import EctypeError
from ectype.recipe.spec import Model
from ectype.weights import store
from ectype.weights.checkpoint import describe, load_weights, read_meta
from ectype.weights.hf_export import export_weights
from ectype.weights.hf_import import import_weights
from ectype.weights.mapping import olmo_core_tensors
from ectype.weights.tree import flatten

STEPS = (0, 40, 120, 240, 400, 640)


@pytest.fixture
def small_chunks(monkeypatch):
    """Chunks of a few rows, so that toys take the path of large tensors."""
    monkeypatch.setattr(store, "SMALL_LEAF_BYTES", 100)
    monkeypatch.setattr(store, "TARGET_CHUNK_BYTES", 256)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_round_trip_is_byte_identical_in_many_chunks_and_shards(tmp_path, small_chunks, dtype):
    source = write_folder(tmp_path / "hf", random_tensors(dtype), shards=3)
    taken = import_weights(source, tmp_path / "checkpoint")
    assert len(list((tmp_path / "checkpoint/weights/blocks.0.mlp.gate").glob("[0-9]*"))) > 1
    given = export_weights(tmp_path / "checkpoint", tmp_path / "back", shard_bytes=4000)
    assert read_all(tmp_path / "back") == read_all(source)
    assert taken["dtype"] == given["dtype"] == dtype
    assert given["shards"] > 3
    assert given["verified_against_import"]
    index = json.loads((tmp_path / "back/model.safetensors.index.json").read_text())
    assert index["weight_map"].keys() == olmo_shapes().keys()
    assert all(name in read_file(tmp_path / "back" / shard) for name, shard in index["weight_map"].items())


def test_orbax_itself_restores_an_import(tmp_path, small_chunks):
    tensors = random_tensors("bfloat16")
    import_weights(write_folder(tmp_path / "hf", tensors), tmp_path / "checkpoint")
    with ocp.StandardCheckpointer() as checkpointer:
        params = checkpointer.restore(tmp_path / "checkpoint/weights")
    ours, _ = load_weights(tmp_path / "checkpoint")
    assert flatten(params).keys() == flatten(ours).keys()
    for path, leaf in flatten(params).items():
        assert np.asarray(leaf).tobytes() == np.asarray(flatten(ours)[path]).tobytes()
    gate = params["rest"]["1"]["mlp"]["gate"]
    assert np.asarray(gate).tobytes() == tensors["model.layers.5.mlp.gate_proj.weight"].tobytes()


@pytest.mark.parametrize("compressed", ["own save", "import"])
def test_export_of_either_kind_of_checkpoint(tmp_path, compressed):
    tensors = random_tensors()
    source = write_folder(tmp_path / "hf", tensors)
    import_weights(source, tmp_path / "imported")
    checkpoint = tmp_path / "imported"
    if compressed == "own save":
        params, _ = load_weights(checkpoint)
        checkpoint = tmp_path / "saved"
        save_weights(checkpoint, params, describe(olmo_model(), "float32", sequence_length_tokens=64))
    export_weights(checkpoint, tmp_path / "back")
    assert read_all(tmp_path / "back") == read_all(source)
    length = json.loads((tmp_path / "back/config.json").read_text())["max_position_embeddings"]
    assert length == (64 if compressed == "own save" else 128)


def test_dtype_is_converted_when_asked(tmp_path):
    tensors = random_tensors()
    import_weights(write_folder(tmp_path / "hf", tensors), tmp_path / "checkpoint", dtype="bfloat16")
    result = export_weights(tmp_path / "checkpoint", tmp_path / "back", dtype="float32")
    assert not result["verified_against_import"]
    for name, (dtype, _, data) in read_all(tmp_path / "back").items():
        assert dtype == "F32"
        assert data == tensors[name].astype(ml_dtypes.bfloat16).astype(np.float32).tobytes()
    assert json.loads((tmp_path / "back/config.json").read_text())["dtype"] == "float32"


def test_padded_rows_from_a_side_file_come_back(tmp_path, small_chunks):
    tensors = random_tensors("bfloat16")
    rows = {
        "embeddings.weight": np.random.default_rng(1).normal(size=(8, 16)).astype(ml_dtypes.bfloat16),
        "lm_head.w_out.weight": np.random.default_rng(2).normal(size=(8, 16)).astype(ml_dtypes.bfloat16),
    }
    write_file(tmp_path / "rows.safetensors", rows)
    source = write_folder(tmp_path / "hf", tensors)
    result = import_weights(source, tmp_path / "checkpoint", padded_rows=tmp_path / "rows.safetensors")
    assert (result["vocab_size"], result["rows"], result["padded_rows"]["from"]) == (40, 48, "file")
    params, _ = load_weights(tmp_path / "checkpoint")
    expected = tensors["lm_head.weight"].tobytes() + rows["lm_head.w_out.weight"].tobytes()
    assert np.asarray(params["head"]["weight"]).tobytes() == expected
    export_weights(tmp_path / "checkpoint", tmp_path / "back", padded_rows=tmp_path / "again.safetensors")
    assert read_all(tmp_path / "back") == read_all(source)
    assert read_file(tmp_path / "again.safetensors") == read_file(tmp_path / "rows.safetensors")


def test_padded_rows_that_do_not_fit_are_refused(tmp_path):
    source = write_folder(tmp_path / "hf", random_tensors())
    rows = {"embeddings.weight": np.ones((8, 16), np.float32), "lm_head.w_out.weight": np.ones((7, 16), np.float32)}
    write_file(tmp_path / "rows.safetensors", rows)
    with pytest.raises(EctypeError, match=r"embeddings.weight has shape \[8, 16\], not \[7, 16\]"):
        import_weights(source, tmp_path / "checkpoint", padded_rows=tmp_path / "rows.safetensors")
    rows = {name: np.ones((8, 16), ml_dtypes.bfloat16) for name in rows}
    write_file(tmp_path / "rows.safetensors", rows)
    with pytest.raises(EctypeError, match="holds bfloat16"):
        import_weights(source, tmp_path / "checkpoint", padded_rows=tmp_path / "rows.safetensors")
    assert not list(tmp_path.glob("*checkpoint*"))


def test_drawn_rows_are_those_of_the_initialiser_and_say_so(tmp_path):
    source = write_folder(tmp_path / "hf", random_tensors())
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        import_weights(source, tmp_path / name, trained_rows=20_040, seed=seed)
    drawn = [np.asarray(load_weights(tmp_path / name)[0]["head"]["weight"])[40:] for name in "abc"]
    assert (drawn[0] == drawn[1]).all()
    assert (drawn[0] != drawn[2]).any()
    # A normal of deviation 0.02 cut at three deviations has deviation 0.019732 (variance factor 0.973337).
    assert abs(drawn[0].std() - 0.0197319) < 2e-5
    assert abs(drawn[0].mean()) < 2e-4
    assert 0.0599 < np.abs(drawn[0]).max() <= np.float32(0.06)
    origin = read_meta(tmp_path / "c")["padded_rows"]
    assert origin == {"from": "drawn", "seed": 1, "std": 0.02, "cut_deviations": 3.0, "count": 20_000}


def test_fewer_trained_rows_than_real_ids_are_refused(tmp_path):
    with pytest.raises(EctypeError, match="39 trained rows"):
        import_weights(write_folder(tmp_path / "hf", random_tensors()), tmp_path / "checkpoint", trained_rows=39)


def test_existing_outputs_are_left_alone(tmp_path):
    source = write_folder(tmp_path / "hf", random_tensors())
    import_weights(source, tmp_path / "checkpoint")
    with pytest.raises(EctypeError, match="exists"):
        import_weights(source, tmp_path / "checkpoint")
    with pytest.raises(EctypeError, match="exists"):
        export_weights(tmp_path / "checkpoint", source)


KILLED_IMPORT = """
import os, signal, sys
from pathlib import Path
from ectype.weights import store
from ectype.weights.hf_import import import_weights

store.SMALL_LEAF_BYTES, store.TARGET_CHUNK_BYTES = 100, 256

def progress(label, done, total):
    if done > total // 2:
        os.kill(os.getpid(), signal.SIGKILL)

import_weights(Path(sys.argv[1]), Path(sys.argv[2]), progress=progress)
"""


def _run(code: str, *arguments: Path) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(Path(store.__file__).parents[2])}
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)], check=False, capture_output=True, text=True, env=environment
    )


def _interrupt(label: str, done: int, total: int) -> None:
    if done > total // 2:
        raise KeyboardInterrupt


def test_killed_import_and_interrupted_export_resume(tmp_path, small_chunks):
    source = write_folder(tmp_path / "hf", random_tensors(), shards=2)
    assert _run(KILLED_IMPORT, source, tmp_path / "c").returncode == -signal.SIGKILL
    assert not (tmp_path / "c").exists()
    assert import_weights(source, tmp_path / "c")["resumed_units"] > 0
    with pytest.raises(KeyboardInterrupt):
        export_weights(tmp_path / "c", tmp_path / "b", progress=_interrupt)
    assert not (tmp_path / "b").exists()
    assert export_weights(tmp_path / "c", tmp_path / "b")["resumed_units"] > 0
    assert read_all(tmp_path / "b") == read_all(source)
    assert {path.name for path in tmp_path.iterdir()} == {"hf", "c", "b"}


def test_interrupted_import_of_other_weights_starts_over(tmp_path, small_chunks):
    first = write_folder(tmp_path / "first", random_tensors(seed=1))
    second = write_folder(tmp_path / "second", random_tensors(seed=2))
    with pytest.raises(KeyboardInterrupt):
        import_weights(first, tmp_path / "c", progress=_interrupt)
    assert import_weights(second, tmp_path / "c")["resumed_units"] == 0
    export_weights(tmp_path / "c", tmp_path / "b")
    assert read_all(tmp_path / "b") == read_all(second)


def test_flipped_bit_is_found_on_export(tmp_path):
    import_weights(write_folder(tmp_path / "hf", random_tensors()), tmp_path / "checkpoint")
    chunk = tmp_path / "checkpoint/weights/rest.1.mlp.up/0.0"
    data = bytearray(chunk.read_bytes())
    data[100] ^= 1
    chunk.write_bytes(data)
    with pytest.raises(EctypeError, match=r"model\.layers\.5\.mlp\.up_proj\.weight changed since the import"):
        export_weights(tmp_path / "checkpoint", tmp_path / "back")
    assert not (tmp_path / "back").exists()


@pytest.mark.parametrize("step", STEPS)
def test_parameters_of_the_reference_are_taken_over_bit_for_bit(tmp_path, shared, step):
    """Against OLMo-core's own hashes of its 1,024-row parameters at every landmark."""
    reference = shared / "reference/olmocore_tiny"
    import_weights(
        reference / f"hf/step{step}", tmp_path / "c", padded_rows=reference / f"padded_rows/step{step}.safetensors"
    )
    expected = json.loads((reference / "param_sha256.json").read_text())[f"step{step}"]
    params, meta = load_weights(tmp_path / "c")
    leaves, found = flatten(params), {}
    for name, place in olmo_core_tensors(Model.model_validate(meta["model"])).items():
        array = np.asarray(leaves[place.path])
        found[name] = hashlib.sha256((array if place.block is None else array[place.block]).tobytes()).hexdigest()
    assert found == expected


MEASURED_ROUND_TRIP = """
import resource, sys
from pathlib import Path
from ectype.weights import store
from ectype.weights.hf_export import export_weights
from ectype.weights.hf_import import import_weights

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

store.TARGET_CHUNK_BYTES = 2 << 20
before = peak()
import_weights(Path(sys.argv[1]), Path(sys.argv[2]))
between = peak()
export_weights(Path(sys.argv[2]), Path(sys.argv[3]))
print(before, between, peak())
"""


def test_memory_does_not_grow_with_the_model(tmp_path):
    """In chunks of 2 MiB, a folder of about 100 MB passes through less than half of that in memory."""
    config = OLMO3 | {"hidden_size": 512, "intermediate_size": 1536, "num_hidden_layers": 8, "vocab_size": 1000}
    generator = np.random.default_rng(0)
    tensors = {name: generator.random(shape, np.float32) for name, shape in olmo_shapes(config).items()}
    source = write_folder(tmp_path / "hf", tensors, config)
    size = (source / "model.safetensors").stat().st_size
    before, between, after = map(int, _run(MEASURED_ROUND_TRIP, source, tmp_path / "c", tmp_path / "b").stdout.split())
    assert size > 90e6
    assert between - before < 0.5 * size
    assert after - before < 0.5 * size
    assert read_all(tmp_path / "b") == read_all(source)
