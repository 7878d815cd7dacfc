"""The mean of checkpoints: the reference's arithmetic, resumable, strict."""

import jax
import ml_dtypes
import numpy as np
import orbax.checkpoint as ocp
import pytest
from hf_toys import NAMES, OLMO3, olmo_model, random_tensors, read_all, save_weights, write_file, write_folder
from typer.testing import CliRunner

from ectype.cli.main import app
from ectype.errors import EctypeError
from ectype.run.checkpoints import OPTIMIZER_ITEM
from ectype.weights import store
from ectype.weights.checkpoint import describe, load_weights, read_meta
from ectype.weights.hf_export import export_weights
from ectype.weights.hf_import import import_weights
from ectype.weights.mean import mean_of
from ectype.weights.merge import merge_weights
from ectype.weights.tree import flatten


@pytest.fixture
def small_chunks(monkeypatch):
    """Chunks of a few rows, so that toys take the path of large tensors."""
    monkeypatch.setattr(store, "SMALL_LEAF_BYTES", 100)
    monkeypatch.setattr(store, "TARGET_CHUNK_BYTES", 256)


def _imports(folder, dtype="bfloat16", count=3, **options):
    """Checkpoints of random weights, and their tensors."""
    tensors = [random_tensors(dtype, seed) for seed in range(count)]
    for number, found in enumerate(tensors):
        import_weights(write_folder(folder / f"hf{number}", found), folder / f"c{number}", **options)
    return [folder / f"c{number}" for number in range(count)], tensors


def _expected(tensors, dtype):
    """Summed in float32 in order, divided, cast back."""
    means = {}
    for name in tensors[0]:
        total = np.zeros(tensors[0][name].shape, np.float32)
        for found in tensors:
            total = total + found[name].astype(np.float32)
        means[name] = (total / np.float32(len(tensors))).astype(NAMES[dtype])
    return means


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_mean_of_three_in_many_chunks(tmp_path, small_chunks, dtype):
    checkpoints, tensors = _imports(tmp_path, dtype)
    result = merge_weights(checkpoints, tmp_path / "mean")
    assert (result["dtype"], result["step"], result["tensors"]) == (dtype, None, len(tensors[0]))
    assert export_weights(tmp_path / "mean", tmp_path / "back")["verified_against_import"]
    expected = write_folder(tmp_path / "expected", _expected(tensors, dtype))
    assert read_all(tmp_path / "back") == read_all(expected)


def test_mean_is_that_of_torch_as_the_reference_takes_it():
    torch = pytest.importorskip("torch")
    arrays = [np.random.default_rng(seed).normal(size=1000).astype(np.float32) for seed in range(3)]
    tensors = [torch.from_numpy(array).bfloat16() for array in arrays]
    total = tensors[0].to(torch.float32)
    for tensor in tensors[1:]:
        total += tensor
    total /= 3
    found = mean_of([array.astype(ml_dtypes.bfloat16) for array in arrays])
    assert found.view(np.int16).tolist() == total.bfloat16().view(torch.int16).tolist()


def test_padded_rows_are_averaged_too(tmp_path, small_chunks):
    rows = []
    for number in range(2):
        generator = np.random.default_rng(10 + number)
        names = ("embeddings.weight", "lm_head.w_out.weight")
        rows.append({name: generator.normal(size=(8, 16)).astype(np.float32) for name in names})
        write_file(tmp_path / f"rows{number}.safetensors", rows[-1])
        source = write_folder(tmp_path / f"hf{number}", random_tensors(seed=number))
        import_weights(source, tmp_path / f"c{number}", padded_rows=tmp_path / f"rows{number}.safetensors")
    merge_weights([tmp_path / "c0", tmp_path / "c1"], tmp_path / "mean")
    params, meta = load_weights(tmp_path / "mean")
    assert meta["model"]["trained_rows"] == 48
    expected = (rows[0]["lm_head.w_out.weight"] + rows[1]["lm_head.w_out.weight"]) / np.float32(2)
    assert (np.asarray(params["head"]["weight"])[40:] == expected).all()
    assert export_weights(tmp_path / "mean", tmp_path / "back")["verified_against_import"]


def test_checkpoints_of_a_run_keep_step_and_length(tmp_path):
    """Orbax's own compressed checkpoints, as training writes them, beside each other."""
    imported, tensors = _imports(tmp_path, "float32", 2)
    for number, path in enumerate(imported):
        about = describe(olmo_model(), "float32", kind="run", step=7, sequence_length_tokens=64)
        save_weights(tmp_path / f"run{number}", load_weights(path)[0], about)
    assert merge_weights([tmp_path / "run0", tmp_path / "run1"], tmp_path / "mean")["step"] == 7
    params, meta = load_weights(tmp_path / "mean")
    assert (meta["kind"], meta["step"], meta["sequence_length_tokens"]) == ("weights", 7, 64)
    assert [entry["name"] for entry in meta["source"]["of"]] == ["run0", "run1"]
    merge_weights(imported, tmp_path / "other")
    found, other = flatten(params), flatten(load_weights(tmp_path / "other")[0])
    assert all((np.asarray(found[path]) == np.asarray(other[path])).all() for path in other)
    name = "model.layers.5.mlp.gate_proj.weight"
    gate = np.asarray(params["rest"]["1"]["mlp"]["gate"])
    assert (gate == (tensors[0][name] + tensors[1][name]) / np.float32(2)).all()


def _with_moments(path, number, dtype="float32", count=5.0, leave_out=()):
    """Give a checkpoint an optimiser's state such as training writes; the moments are the weights times a factor."""
    params = load_weights(path)[0]
    factors = {"first_moment": 2.0 + number, "second_moment": 10.0 + number}
    state = {name: jax.tree.map(lambda x, by=by: (x * by).astype(dtype), params) for name, by in factors.items()}
    history = {"losses": np.ones(4, np.float32), "norms": np.ones(4, np.float32), "count": np.int32(4)}
    state |= {"count": np.asarray(count, np.float32), "history": history, "step": np.int32(7)}
    for name in leave_out:
        state.pop(name)
    with ocp.Checkpointer(ocp.StandardCheckpointHandler()) as checkpointer:
        checkpointer.save((path / OPTIMIZER_ITEM).absolute(), args=ocp.args.StandardSave(state))
    return flatten({name: state[name] for name in factors if name in state})


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_moments_and_count_are_averaged_with_the_weights(tmp_path, small_chunks, dtype):
    checkpoints, tensors = _imports(tmp_path, "float32", 2)
    first, second = (_with_moments(path, n, dtype, count=5.0 + n) for n, path in enumerate(checkpoints))
    result = merge_weights(checkpoints, tmp_path / "mean")
    assert result["adam_count"] == 5.5
    leaves = store.read_leaves(tmp_path / "mean" / OPTIMIZER_ITEM)
    assert {path[0] for path in leaves} == {"first_moment", "second_moment", "count"}
    for path in first:
        found = store.open_array(tmp_path / "mean" / OPTIMIZER_ITEM, path).read().result()
        expected = mean_of([np.asarray(first[path]), np.asarray(second[path])])
        assert (found.dtype, found.tobytes()) == (expected.dtype, expected.tobytes()), path
    assert store.open_array(tmp_path / "mean" / OPTIMIZER_ITEM, ("count",)).read().result() == 5.5
    export_weights(tmp_path / "mean", tmp_path / "back")
    assert read_all(tmp_path / "back") == read_all(write_folder(tmp_path / "e", _expected(tensors, "float32")))
    assert merge_weights([tmp_path / "mean", checkpoints[0]], tmp_path / "again")["adam_count"] == 5.25


def test_a_mean_of_weights_alone_says_so(tmp_path):
    checkpoints, _ = _imports(tmp_path, "float32", 2)
    for number, path in enumerate(checkpoints):
        _with_moments(path, number)
    arguments = ["weights", "merge", *map(str, checkpoints), "--out"]
    whole = CliRunner().invoke(app, [*arguments, str(tmp_path / "whole")])
    assert "Adam: moments, and a count of 5" in whole.stdout
    bare = CliRunner().invoke(app, [*arguments, str(tmp_path / "bare"), "--weights-only"])
    assert "optimiser state: none" in bare.stdout
    assert not (tmp_path / "bare" / OPTIMIZER_ITEM).exists()


def test_optimiser_states_that_do_not_belong_together_are_refused(tmp_path):
    checkpoints, _ = _imports(tmp_path, "float32", 4)
    _with_moments(checkpoints[0], 0)
    _with_moments(checkpoints[2], 2, "bfloat16")
    _with_moments(checkpoints[3], 3, leave_out=["second_moment"])
    for other, what in ((1, "--weights-only"), (2, "has dtype bfloat16, not float32"), (3, "second_moment.* missing")):
        with pytest.raises(EctypeError, match=what):
            merge_weights([checkpoints[0], checkpoints[other]], tmp_path / "mean")
    with pytest.raises(EctypeError, match="lies within the checkpoint"):
        merge_weights(checkpoints[:2], checkpoints[0] / "new/mean", weights_only=True)
    (tmp_path / "ectype").mkdir()
    assert not list(tmp_path.rglob("*mean*"))
    assert merge_weights(checkpoints, tmp_path / "mean", weights_only=True)["adam_count"] is None


@pytest.mark.parametrize("item", ["weights", "optimizer"])
def test_a_source_with_unreadable_chunks_is_blamed_and_nothing_appears(tmp_path, item):
    """Of Orbax's own files, what is missing shows only when it is read."""
    imported, _ = _imports(tmp_path, "float32", 2)
    for number, path in enumerate(imported):
        save_weights(tmp_path / f"run{number}", load_weights(path)[0], describe(olmo_model(), "float32", kind="run"))
        _with_moments(tmp_path / f"run{number}", number)
    for file in (tmp_path / "run1" / item).rglob("d/*"):
        file.write_bytes(b"")
    with pytest.raises(EctypeError, match=rf"run1/{item}") as caught:
        merge_weights([tmp_path / "run0", tmp_path / "run1"], tmp_path / "mean")
    assert "can't write" not in str(caught.value)
    assert "tensorstore_spec" not in str(caught.value)
    assert not (tmp_path / "mean").exists()


def test_interrupted_merge_resumes(tmp_path, small_chunks):
    checkpoints, tensors = _imports(tmp_path, "float32", 2)

    def interrupt(label, done, total):
        assert label == "merge, bytes"
        if done > total // 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        merge_weights(checkpoints, tmp_path / "mean", progress=interrupt)
    assert not (tmp_path / "mean").exists()
    assert merge_weights(checkpoints, tmp_path / "mean")["resumed_units"] > 0
    export_weights(tmp_path / "mean", tmp_path / "back")
    assert read_all(tmp_path / "back") == read_all(write_folder(tmp_path / "e", _expected(tensors, "float32")))


def test_checkpoints_that_do_not_belong_together_are_refused(tmp_path):
    (first, second), _ = _imports(tmp_path, "float32", 2)
    source = write_folder(tmp_path / "half", random_tensors("bfloat16"))
    import_weights(source, tmp_path / "half-c")
    other = write_folder(tmp_path / "other", random_tensors(), OLMO3 | {"rms_norm_eps": 1e-5})
    import_weights(other, tmp_path / "other-c")
    import_weights(other, tmp_path / "more-rows", trained_rows=48)
    for paths, what in (
        ([first], "two or more"), ([first, second, first], "each once"), ([first, tmp_path / "half-c"], "bfloat16"),
        ([first, tmp_path / "other-c"], "norm_eps"), ([tmp_path / "other-c", tmp_path / "more-rows"], "rows is 48"),
    ):  # fmt: skip
        with pytest.raises(EctypeError, match=what):
            merge_weights(paths, tmp_path / "mean")
    (second / "weights/rest.1.mlp.up/0.0").unlink()
    with pytest.raises(EctypeError, match=r"rest\.1\.mlp\.up/0\.0 is missing"):
        merge_weights([first, second], tmp_path / "mean")
    assert not list(tmp_path.glob("*mean*"))


def test_command(tmp_path):
    checkpoints, _ = _imports(tmp_path, "float32", 2)
    arguments = ["weights", "merge", *map(str, checkpoints), "--out", str(tmp_path / "mean")]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0
    assert "mean of 2, " in result.stdout
    assert "optimiser state: none" in result.stdout
    assert read_meta(tmp_path / "mean")["source"]["kind"] == "mean"
    assert CliRunner().invoke(app, arguments).exit_code == 2
