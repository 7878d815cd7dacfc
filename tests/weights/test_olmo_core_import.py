"""Checkpoint folders that OLMo-core's own classes write: weights, moments and count come over bit for bit."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("olmo_core")

import jax  # noqa: E402
from olmo_core.distributed.checkpoint import save_model_and_optim_state  # noqa: E402
from olmo_core.nn.attention import AttentionBackendName  # noqa: E402
from olmo_core.nn.transformer import TransformerBlockType, TransformerConfig  # noqa: E402
from olmo_core.optim import SkipStepAdamWConfig  # noqa: E402

from ectype.data.index import load_index  # noqa: E402
from ectype.errors import EctypeError  # noqa: E402
from ectype.recipe.load import load_placement, load_recipe  # noqa: E402
from ectype.recipe.spec import Recipe  # noqa: E402
from ectype.train.hand_over import plan_hand_over, take_over  # noqa: E402
from ectype.train.sharding import make_mesh  # noqa: E402
from ectype.train.state import state_shardings  # noqa: E402
from ectype.weights import store  # noqa: E402
from ectype.weights.checkpoint import load_weights, read_meta  # noqa: E402
from ectype.weights.distributed_files import DistributedTensor, Piece, read_distributed  # noqa: E402
from ectype.weights.hf_export import export_weights  # noqa: E402
from ectype.weights.mapping import olmo_core_tensors  # noqa: E402
from ectype.weights.olmo_core_import import import_olmo_core  # noqa: E402
from ectype.weights.tree import flatten  # noqa: E402

pytestmark = [pytest.mark.reference, pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")]
UPDATES = 3
SETTINGS = (
    "model.d_model=16", "model.n_heads=2", "model.n_kv_heads=1", "model.head_dim=8", "model.d_ffn=48",
    "model.n_layers=6", "model.window_pattern=[8, 8, 8, null]", "inputs.weights=null", "inputs.padded_rows=null",
)  # fmt: skip
"""Six layers: one whole pattern, and two left over."""


def recipe(*more: str) -> Recipe:
    return load_recipe("toy-calm", [*SETTINGS, *more])


@pytest.fixture(scope="module")
def trained() -> tuple[Any, Any]:
    """OLMo-core's model and optimiser after a few updates with random gradients."""
    torch.manual_seed(0)
    model = TransformerConfig.llama_like(
        vocab_size=recipe().model.rows, d_model=16, n_layers=6, n_heads=2, n_kv_heads=1, qk_norm=True,
        block_name=TransformerBlockType.reordered_norm, layer_norm_eps=1e-6, hidden_size_multiple_of=8,
        attn_backend=AttentionBackendName.torch,
    ).build(init_device="cpu")  # fmt: skip
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape))
    optimizer = SkipStepAdamWConfig(lr=1e-3).build(model)
    for _ in range(UPDATES):
        for parameter in model.parameters():
            parameter.grad = torch.randn(parameter.shape)
        optimizer.latest_loss, optimizer.latest_grad_norm = torch.tensor(1.0), torch.tensor(1.0)
        optimizer.step()
    return model, optimizer


@pytest.fixture
def folder(trained, tmp_path) -> Path:
    """The folder `step3` of that run."""
    save_model_and_optim_state(tmp_path / "step3/model_and_optim", *trained)
    return tmp_path / "step3"


def _expected(trained: tuple[Any, Any], spec: Recipe) -> dict[str, dict[tuple[str, ...], Any]]:
    """What each leaf of weights and moments must hold: OLMo-core's tensors, stacked by layer where the leaf is."""
    model, optimizer = trained
    trees: dict[str, dict[tuple[str, ...], Any]] = {"weights": {}, "first_moment": {}, "second_moment": {}}
    parameters = dict(model.named_parameters())
    for name, place in olmo_core_tensors(spec.model).items():
        moments = optimizer.state[parameters[name]]
        values = {
            "weights": parameters[name].detach(), "first_moment": moments["exp_avg"],
            "second_moment": moments["exp_avg_sq"],
        }  # fmt: skip
        for kind, tensor in values.items():
            if place.block is None:
                trees[kind][place.path] = tensor.numpy()
            else:
                trees[kind].setdefault(place.path, []).append(tensor.numpy())
    return {kind: {path: np.asarray(leaf) for path, leaf in leaves.items()} for kind, leaves in trees.items()}


def _same(found: Any, expected: dict[tuple[str, ...], Any]) -> bool:
    leaves = flatten(found)
    return leaves.keys() == expected.keys() and all(
        np.asarray(leaves[path]).tobytes() == expected[path].tobytes() for path in expected
    )


@pytest.mark.parametrize("inner", [False, True], ids=["stepN", "model_and_optim"])
def test_a_stage_goes_on_with_the_moments_of_olmo_core(trained, folder, tmp_path, inner):
    source = folder / "model_and_optim" if inner else folder
    result = import_olmo_core(source, tmp_path / "c", recipe().model, sequence_length_tokens=256)
    assert (result["step"], result["adam_count"], result["dtype"]) == (3, float(UPDATES), "float32")
    spec = recipe("hand_over.source_step=3", f"inputs.source={tmp_path / 'c'}")
    expected = _expected(trained, spec)
    params, meta = load_weights(tmp_path / "c")
    assert _same(params, expected["weights"])
    assert (meta["step"], meta["source"]["kind"], meta["sequence_length_tokens"]) == (3, "olmo-core", 256)
    index = load_index(str(spec.inputs.index), spec.data, spec.model.vocab_size)
    record = plan_hand_over(spec, tmp_path / "run", index)
    state = take_over(record, spec, state_shardings(spec, make_mesh(load_placement("cpu-one"))))
    assert _same(state.params, expected["weights"])
    assert _same(state.optimizer.first_moment, expected["first_moment"])
    assert _same(state.optimizer.second_moment, expected["second_moment"])
    assert float(state.optimizer.count) == UPDATES
    assert any(np.asarray(leaf).any() for leaf in jax.tree.leaves(state.optimizer.first_moment))


def test_it_is_exported_like_any_checkpoint(trained, folder, tmp_path):
    import_olmo_core(folder, tmp_path / "c", recipe().model, sequence_length_tokens=256)
    result = export_weights(tmp_path / "c", tmp_path / "hf")
    assert (result["rows_left_out"], result["verified_against_import"]) == (24, False)


def test_folder_without_optimiser_state_gives_weights_alone(trained, tmp_path):
    save_model_and_optim_state(tmp_path / "averaged", trained[0])
    result = import_olmo_core(tmp_path / "averaged", tmp_path / "c", recipe().model)
    assert (result["step"], result["adam_count"]) == (None, None)
    assert not (tmp_path / "c/optimizer").exists()
    assert read_meta(tmp_path / "c")["step"] is None
    assert _same(load_weights(tmp_path / "c")[0], _expected(trained, recipe())["weights"])


def _interrupt(label: str, done: int, total: int) -> None:
    if done > total // 2:
        raise KeyboardInterrupt


def test_interrupted_import_resumes(trained, folder, tmp_path, monkeypatch):
    monkeypatch.setattr(store, "SMALL_LEAF_BYTES", 100)
    monkeypatch.setattr(store, "TARGET_CHUNK_BYTES", 256)
    with pytest.raises(KeyboardInterrupt):
        import_olmo_core(folder, tmp_path / "c", recipe().model, progress=_interrupt)
    assert not (tmp_path / "c").exists()
    assert import_olmo_core(folder, tmp_path / "c", recipe().model)["resumed_units"] > 0
    assert _same(load_weights(tmp_path / "c")[0], _expected(trained, recipe())["weights"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("model.d_ffn=56", r"model\.blocks\.0\.feed_forward\.w1\.weight has shape \[48, 16\], not \[56, 16\]"),
        ("model.n_layers=7", r"model\.blocks\.6\.attention\.k_norm\.weight \[8\] is missing"),
        ("model.n_layers=5", r"model\.blocks\.5\.attention\.k_norm\.weight \[8\] is extra"),
    ],
)
def test_folder_of_another_model_is_refused(folder, tmp_path, change, message):
    with pytest.raises(EctypeError, match=message):
        import_olmo_core(folder, tmp_path / "c", recipe(change).model)
    assert not list(tmp_path.glob("*c.ectype*"))


def test_damaged_folders_are_refused(folder, tmp_path):
    (file, *_) = sorted((folder / "model_and_optim").glob("*.distcp"))
    data = file.read_bytes()
    file.write_bytes(data[:-1])
    with pytest.raises(EctypeError, match=rf"{file.name} has {len(data) - 1} bytes, not {len(data)}"):
        import_olmo_core(folder, tmp_path / "c", recipe().model)
    file.unlink()
    with pytest.raises(EctypeError, match=rf"{file.name} is absent"):
        import_olmo_core(folder, tmp_path / "c", recipe().model)


class _Attack:
    def __reduce__(self) -> Any:
        return print, ("ran",)


def test_metadata_never_runs_code(folder, tmp_path, capsys):
    (folder / "model_and_optim/.metadata").write_bytes(pickle.dumps(_Attack()))
    with pytest.raises(EctypeError, match=r"it names builtins\.print"):
        import_olmo_core(folder, tmp_path / "c", recipe().model)
    (folder / "model_and_optim/.metadata").write_bytes(b"no pickle")
    with pytest.raises(EctypeError, match="the metadata of a distributed checkpoint"):
        import_olmo_core(folder, tmp_path / "c", recipe().model)
    assert "ran" not in capsys.readouterr().out


def test_rows_of_a_tensor_in_many_pieces(tmp_path):
    """Shards of rows and of columns, as sharded training leaves them, read in every range of rows."""
    values = torch.arange(7 * 6, dtype=torch.bfloat16).reshape(7, 6)
    pieces, start = [], 0
    with (tmp_path / "0.distcp").open("wb") as stream:
        for rows in ((0, 3), (3, 5), (5, 7)):
            for columns in ((0, 2), (2, 6)):
                part = values[slice(*rows), slice(*columns)].clone()
                torch.save(part, stream)
                place = (rows[0], columns[0])
                pieces.append(Piece(place, tuple(part.shape), tmp_path / "0.distcp", start, stream.tell() - start))
                start = stream.tell()
    tensor = DistributedTensor("t", "BF16", (7, 6), tuple(pieces))
    expected = values.float().numpy()
    for first in range(7):
        for end in range(first + 1, 8):
            assert (tensor.read_rows(first, end).astype(np.float32) == expected[first:end]).all()
    holed = DistributedTensor("t", "BF16", (7, 6), tuple(pieces[:3] + pieces[4:]))
    assert (holed.read_rows(0, 3).astype(np.float32) == expected[:3]).all()
    with pytest.raises(EctypeError, match="values of rows 0 to 6 are stored"):
        holed.read_rows(0, 7)


def test_bfloat16_is_read(tmp_path):
    module = torch.nn.Linear(4, 3, bias=False, dtype=torch.bfloat16)
    save_model_and_optim_state(tmp_path / "d", module)
    tensor = read_distributed(tmp_path / "d")["model.weight"]
    assert tensor.dtype_name == "BF16"
    assert (tensor.read().astype(np.float32) == module.weight.detach().float().numpy()).all()
