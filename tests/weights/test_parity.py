"""Parity with transformers: figures within tolerance, faults named exactly, every family, exports that load."""

import itertools
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hf_toys import OLMO3, random_tensors, write_folder

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from safetensors.torch import load_file, save_file  # noqa: E402

from ectype.errors import EctypeError  # noqa: E402
from ectype.model.decoder import forward, head_logits  # noqa: E402
from ectype.recipe.spec import Yarn  # noqa: E402
from ectype.weights import parity  # noqa: E402
from ectype.weights.agreement import compare_logits, join_parts, largest_error_of, largest_row_error, summarise  # noqa: E402
from ectype.weights.checkpoint import load_weights, model_of, read_meta  # noqa: E402
from ectype.weights.hf_export import export_weights  # noqa: E402
from ectype.weights.hf_import import import_weights  # noqa: E402
from ectype.weights.parity import measure_parity  # noqa: E402
from ectype.weights.parity_record import Tolerances  # noqa: E402
from ectype.weights.reference_model import refuse_version  # noqa: E402
from ectype.weights.sample_tokens import default_length, encode_text, random_tokens, read_tokens  # noqa: E402

pytestmark = pytest.mark.reference
SIZES: dict[str, Any] = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 96, "max_position_embeddings": 256, "pad_token_id": None,
    "bos_token_id": None, "eos_token_id": None,
}  # fmt: skip
ROPE = {"rope_type": "default", "rope_theta": 5e5}
YARN = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 32, "rope_theta": 5e5}
WINDOWS = {"layer_types": ["sliding_attention", "full_attention", "sliding_attention"], "sliding_window": 8}
FAMILIES = {
    "olmo3, grouped queries": ("Olmo3", WINDOWS | {"rope_theta": 5e5}),
    "olmo3, YaRN": (
        "Olmo3", WINDOWS | {"rope_parameters": {"full_attention": YARN, "sliding_attention": ROPE}},
    ),
    "olmo2": ("Olmo2", {"rope_parameters": ROPE}),
    "llama, tied": ("Llama", {"rope_parameters": ROPE | {"rope_theta": 1e5}, "tie_word_embeddings": True}),
    "qwen3, wide heads": ("Qwen3", {"rope_parameters": ROPE, "head_dim": 16}),
    "qwen2, biases, windows": ("Qwen2", WINDOWS | {"rope_parameters": ROPE, "use_sliding_window": True}),
}  # fmt: skip


def _random_folder(folder: Path, family: str, settings: dict[str, Any]) -> Any:
    """A transformers model with every parameter random (norms and biases too), saved by transformers."""
    torch.manual_seed(0)
    config = getattr(transformers, f"{family}Config")(**SIZES | settings)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            spread, centre = (0.2, 1.0) if "norm" in name else (0.3, 0.0)
            parameter.copy_(centre + spread * torch.randn(parameter.shape))
    model.save_pretrained(folder)
    return model


def _logits(folder: Path, tokens: np.ndarray) -> np.ndarray:
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.inference_mode():
        return model(torch.from_numpy(tokens.astype(np.int64))[None]).logits[0].numpy()


@pytest.mark.parametrize(("family", "settings"), FAMILIES.values(), ids=FAMILIES)
def test_every_family_agrees_and_its_export_loads(tmp_path, family, settings):
    _random_folder(tmp_path / "hf", family, settings)
    import_weights(tmp_path / "hf", tmp_path / "c")
    model = model_of(read_meta(tmp_path / "c"), tmp_path / "c")
    tokens = random_tokens(model, 80, 1)
    result = measure_parity(tmp_path / "c", tmp_path / "hf", tokens)
    assert result.same, result
    assert result.first_fault is None
    assert result.logit_difference_max <= 1e-4
    assert result.kl_max <= 1e-8
    assert result.top1_agreement == 1.0
    export_weights(tmp_path / "c", tmp_path / "back")
    assert (_logits(tmp_path / "back", tokens) == _logits(tmp_path / "hf", tokens)).all()


@pytest.fixture(scope="module")
def tiny(shared, tmp_path_factory) -> tuple[Path, Path]:
    """The reference's trained weights: checkpoint and Hugging Face folder."""
    folder = shared / "reference/olmocore_tiny"
    checkpoint = tmp_path_factory.mktemp("tiny") / "c"
    import_weights(folder / "hf/step640", checkpoint, padded_rows=folder / "padded_rows/step640.safetensors")
    return checkpoint, folder / "hf/step640"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_reference_weights_at_over_twice_the_window(tiny, dtype):
    checkpoint, folder = tiny
    model = model_of(read_meta(checkpoint), checkpoint)
    assert default_length(model) == 192
    result = measure_parity(checkpoint, folder, random_tokens(model, default_length(model), 0), dtype=dtype)
    assert result.same, result
    assert result.positions == result.length_tokens == 192
    if dtype == "float32":
        assert result.logit_difference_max <= 1e-4
        assert result.kl_max <= 1e-8
        assert result.top1_agreement == 1.0
        assert all(row.relative_error < 1e-5 for row in result.layers)
        # The plain bound decides: it isn't widened by what the reference rounds.
        assert (result.reference_rounding_max, result.logit_difference_limit) == (None, 1e-4)
    else:
        assert result.kl_mean <= 1.1 * result.reference_kl_mean


def test_step_zero_in_bfloat16(shared, tmp_path):
    folder = shared / "reference/olmocore_tiny/hf/step0"
    import_weights(folder, tmp_path / "c")
    tokens = random_tokens(model_of(read_meta(tmp_path / "c"), tmp_path / "c"), 192, 0)
    assert measure_parity(tmp_path / "c", folder, tokens, dtype="bfloat16").same


def test_our_logits_are_those_that_olmo_core_recorded(shared, tiny):
    """All 1,024 columns, padded rows included, on OLMo-core's own held-out probes (every 16th position)."""
    params, meta = load_weights(tiny[0])
    model = model_of(meta, tiny[0])
    recorded = np.load(shared / "reference/olmocore_tiny/probe_logits/step640.npz")
    hidden = forward(params, recorded["input_ids"].astype(np.int32), model)[:, ::16]
    found = np.asarray(head_logits(params, hidden, model))
    assert found.shape == recorded["core_logits"].shape == (5, 16, 1024)
    assert np.abs(found - recorded["core_logits"]).max() <= 1e-4


def test_export_takes_tokenizer_files_along(tiny, tmp_path):
    export_weights(tiny[0], tmp_path / "back", like=tiny[1])
    assert {path.name for path in (tmp_path / "back").iterdir()} == {path.name for path in tiny[1].iterdir()}


def _faulty(tiny: tuple[Path, Path], folder: Path, change: Any) -> Path:
    """A checkpoint of the reference's weights after `change`."""
    tensors = load_file(tiny[1] / "model.safetensors")
    change(tensors)
    (folder / "hf").mkdir(parents=True)
    (folder / "hf/config.json").write_bytes((tiny[1] / "config.json").read_bytes())
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "hf/model.safetensors")
    import_weights(folder / "hf", folder / "c")
    return folder / "c"


def _swap(tensors: dict[str, Any], layer: int, left: str, right: str) -> None:
    names = [f"model.layers.{layer}.{name}.weight" for name in (left, right)]
    tensors[names[0]], tensors[names[1]] = tensors[names[1]], tensors[names[0]]


SWAPS = {
    "gate and up": (2, "mlp.gate_proj", "mlp.up_proj", "mlp", {"mlp.gate", "mlp.up"}),
    "key and value": (1, "self_attn.k_proj", "self_attn.v_proj", "attention", {"attention.key", "attention.value"}),
    "query and key norm": (
        3, "self_attn.q_norm", "self_attn.k_norm", "attention", {"attention.query_norm", "attention.key_norm"},
    ),
    "the two norms": (
        0, "post_attention_layernorm", "post_feedforward_layernorm", "attention_norm", {"attention_norm", "mlp_norm"},
    ),
}  # fmt: skip


@pytest.mark.parametrize(("layer", "left", "right", "group", "tensors"), SWAPS.values(), ids=SWAPS)
def test_swapped_tensors_of_one_layer_are_named(tiny, tmp_path, layer, left, right, group, tensors):
    checkpoint = _faulty(tiny, tmp_path, lambda found: _swap(found, layer, left, right))
    result = measure_parity(checkpoint, tiny[1], np.arange(192) * 7 % 1000)
    assert not result.same
    fault = result.first_fault
    assert (fault.layer, fault.group, set(fault.tensors)) == (layer, group, tensors)
    before = [row.relative_error for row in result.layers[:layer]]
    assert all(error < 1e-5 for error in before)
    assert result.layers[layer].relative_error > 1e-3


FINE = Tolerances(logit_difference_max=1e-9)
"""Makes any logits too large for the plain bound, as those of some real models are."""


def test_large_logits_are_judged_by_the_rounding_of_the_reference(tiny):
    result = measure_parity(tiny[0], tiny[1], np.arange(192) * 7 % 1000, tolerances=FINE)
    assert result.same, result
    assert result.reference_rounding_max == pytest.approx(_rounding(tiny[1], np.arange(192) * 7 % 1000), rel=0.2)
    assert result.logit_difference_limit == 4 * result.reference_rounding_max < 1e-4
    assert 1e-9 < result.logit_difference_max <= result.logit_difference_limit


def _rounding(folder: Path, tokens: np.ndarray) -> float:
    """Largest distance of transformers' float32 logits from its float64 ones, whole models at a time."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64).eval()
    with torch.inference_mode():
        exact = model(torch.from_numpy(tokens.astype(np.int64))[None]).logits[0].numpy()
    return float(np.abs(_logits(folder, tokens) - exact).max())


def _nudge(tensors: dict[str, Any], name: str, by: float) -> None:
    tensors[name][5, 7] += by


SMALL_FAULTS: dict[str, Any] = {
    "query and key norm": (lambda found: _swap(found, 3, "self_attn.q_norm", "self_attn.k_norm"), 3, None),
    "one weight": (lambda found: _nudge(found, "model.layers.2.mlp.up_proj.weight", 1e-3), 2, ("mlp.up",)),
    "one weight of a projection that the layer hides": (
        lambda found: _nudge(found, "model.layers.1.self_attn.q_proj.weight", 3e-3), 1, ("attention.query",),
    ),
}  # fmt: skip


@pytest.mark.parametrize(("change", "layer", "tensors"), SMALL_FAULTS.values(), ids=SMALL_FAULTS)
def test_small_faults_exceed_the_rounding_of_the_reference(tiny, tmp_path, change, layer, tensors):
    checkpoint = _faulty(tiny, tmp_path, change)
    result = measure_parity(checkpoint, tiny[1], np.arange(192) * 7 % 1000, tolerances=FINE)
    assert not result.same
    assert result.logit_difference_max > result.logit_difference_limit
    assert result.first_fault.layer == layer
    assert tensors in (None, result.first_fault.tensors)


def test_other_rotary_base_exceeds_the_rounding_of_the_reference(tiny, tmp_path, monkeypatch):
    """Also when nobody compares the two descriptions."""
    folder = tmp_path / "hf"
    folder.mkdir()
    config, count = re.subn(r'("rope_theta": )500000(\.0)?', r"\g<1>500500.0", (tiny[1] / "config.json").read_text())
    assert count > 0
    (folder / "config.json").write_text(config)
    (folder / "model.safetensors").write_bytes((tiny[1] / "model.safetensors").read_bytes())
    import_weights(folder, tmp_path / "c")
    monkeypatch.setattr(parity, "check_comparable", lambda *arguments: None)
    result = measure_parity(tmp_path / "c", tiny[1], np.arange(192) * 7 % 1000, tolerances=FINE)
    assert not result.same
    assert result.logit_difference_max > result.logit_difference_limit
    assert (result.first_fault.layer, result.first_fault.group) == (0, "rotary")


def test_fault_is_named_in_bfloat16_too(tiny, tmp_path):
    checkpoint = _faulty(tiny, tmp_path, lambda found: _swap(found, 2, "mlp.gate_proj", "mlp.up_proj"))
    result = measure_parity(checkpoint, tiny[1], np.arange(192) * 7 % 1000, dtype="bfloat16")
    assert not result.same
    assert (result.first_fault.layer, result.first_fault.group) == (2, "mlp")


OUTSIDE = {
    "model.embed_tokens.weight": ("embedding", "embedding.weight"),
    "model.norm.weight": ("norm", "norm.weight"),
    "lm_head.weight": ("head", "head.weight"),
}


@pytest.mark.parametrize("name", OUTSIDE)
def test_faults_outside_the_layers_are_named(tiny, tmp_path, name):
    checkpoint = _faulty(tiny, tmp_path, lambda found: found.update({name: found[name] * 1.01}))
    result = measure_parity(checkpoint, tiny[1], np.arange(192) * 7 % 1000)
    group, tensor = OUTSIDE[name]
    assert not result.same
    assert result.first_fault.model_dump() == {
        "layer": None, "group": group, "tensors": (tensor,), "relative_error": pytest.approx(0.01, rel=0.05),
    }  # fmt: skip


def test_nan_is_a_failure_and_is_found(tiny, tmp_path):
    def spoil(tensors: dict[str, Any]) -> None:
        tensors["model.layers.1.self_attn.o_proj.weight"][3, 5] = float("nan")

    result = measure_parity(_faulty(tiny, tmp_path, spoil), tiny[1], np.arange(192) * 7 % 1000)
    assert (result.same, result.nan, result.kl_mean) == (False, True, None)
    assert (result.first_fault.layer, result.first_fault.tensors) == (1, ("attention.output",))
    json.dumps(result.model_dump(mode="json"), allow_nan=False)


def test_reference_that_reads_the_rotary_settings_otherwise_is_found(tmp_path):
    """transformers 5.24 takes a flat theta for full-attention layers only: sliding layers part, and it says rotary."""
    source = write_folder(tmp_path / "hf", random_tensors(), OLMO3 | {"rope_theta": 1e4})
    import_weights(source, tmp_path / "c")
    tokens = np.arange(60) % 40
    result = measure_parity(tmp_path / "c", source, tokens)
    assert not result.same
    assert (result.first_fault.layer, result.first_fault.group) == (0, "rotary")
    export_weights(tmp_path / "c", tmp_path / "back")
    assert measure_parity(tmp_path / "c", tmp_path / "back", tokens).same


def test_other_model_and_foreign_tokens_are_bad_input(tiny, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    values = json.loads((tiny[1] / "config.json").read_text())
    (other / "config.json").write_text(json.dumps(values | {"rms_norm_eps": 1e-5}))
    with pytest.raises(EctypeError, match=r"norm_eps is 1e-06, not 1e-05"):
        measure_parity(tiny[0], other, np.arange(10))
    for tokens in (np.array([1, 1000]), np.array([-1, 2]), np.array([5]), np.ones((2, 3), int)):
        with pytest.raises(EctypeError, match="ids below 1000"):
            measure_parity(tiny[0], tiny[1], tokens)


@pytest.mark.parametrize(
    ("version", "usable"), [("4.57.3", True), ("5.0.0", False), ("5.12.1", False), ("5.13.0", True)]
)
def test_versions_that_scale_every_layer_are_refused_under_yarn(tiny, version, usable):
    model = model_of(read_meta(tiny[0]), tiny[0])
    refuse_version(version, model)
    scaled = model.model_copy(update={"yarn": Yarn(factor=8.0, original_length_tokens=8192)})
    if usable:
        refuse_version(version, scaled)
    else:
        with pytest.raises(EctypeError, match=version):
            refuse_version(version, scaled)


def test_tokens_from_files_and_text(tiny, tmp_path):
    model = model_of(read_meta(tiny[0]), tiny[0])
    ids = np.array([5, 900, 17], np.uint16)
    ids.tofile(tmp_path / "raw.npy")
    np.save(tmp_path / "real.npy", ids)
    (tmp_path / "list.json").write_text("[5, 900, 17]")
    for name in ("raw.npy", "real.npy", "list.json"):
        assert read_tokens(tmp_path / name, model, None).tolist() == [5, 900, 17]
        assert read_tokens(tmp_path / name, model, 2).tolist() == [5, 900]
    for content in ("[[1], [2]]", "[1.5]", "{"):
        (tmp_path / "bad.json").write_text(content)
        with pytest.raises(EctypeError, match=r"bad\.json"):
            read_tokens(tmp_path / "bad.json", model, None)
    text = "In the beginning God created the heaven and the earth."
    found = encode_text(tiny[1], text, None)
    assert transformers.AutoTokenizer.from_pretrained(tiny[1]).decode(found) == text


def test_figures_of_known_logits():
    """Two rows by hand: p = (1/2, 1/2), q = (1/4, 3/4): KL = ln 2 - ln(3)/2; the second row is equal."""
    reference = np.log(np.array([[0.5, 0.5], [0.2, 0.8]]))
    ours = np.log(np.array([[0.25, 0.75], [0.2, 0.8]])) + np.array([[3.0], [0.0]])
    rows = [join_parts([compare_logits(reference[row], ours[row])]) for row in (slice(1), slice(1, 2))]
    figures = summarise(rows)
    expected = np.log(2) - np.log(3) / 2
    assert figures["kl_mean"] == pytest.approx(expected / 2, rel=1e-12)
    assert figures["kl_max"] == pytest.approx(expected, rel=1e-12)
    assert figures["logit_difference_max"] == pytest.approx(3 + np.log(1.5), rel=1e-12)
    assert figures["top1_agreement"] == 0.5


@pytest.mark.parametrize("cuts", [[], [1], [300], [7, 64, 65, 599]], ids=str)
@pytest.mark.parametrize("distance", [0.0, 1e-6, 0.1, 40.0])
def test_parts_of_the_vocabulary_join_to_the_whole(cuts, distance):
    generator = np.random.default_rng(0)
    reference = generator.normal(0.0, 5.0, (6, 600))
    ours = reference + generator.normal(0.0, distance, (6, 600)) + 700.0
    reference[0, 599], ours[0, 599] = 900.0, 1700.0
    edges = [0, *cuts, 600]
    joined = join_parts([
        compare_logits(reference[:, first:end], ours[:, first:end], first)
        for first, end in itertools.pairwise(edges)
    ])  # fmt: skip
    left, right = (torch.log_softmax(torch.from_numpy(side), -1) for side in (reference, ours))
    np.testing.assert_allclose(joined.kl, (left.exp() * (left - right)).sum(-1).numpy(), rtol=1e-9, atol=2e-12)
    difference = np.abs(reference - ours)
    np.testing.assert_allclose(joined.largest, difference.max(-1))
    np.testing.assert_allclose(joined.mean, difference.mean(-1))
    assert (joined.same_top == (reference.argmax(-1) == ours.argmax(-1))).all()
    assert largest_error_of(joined) == pytest.approx(largest_row_error(reference, ours), rel=1e-12)


def test_nan_in_one_part_of_the_vocabulary_spoils_its_row_alone():
    reference = np.zeros((2, 4))
    ours = reference.copy()
    ours[1, 0] = np.nan
    joined = join_parts([compare_logits(reference[:, part], ours[:, part]) for part in (slice(2), slice(2, 4))])
    assert joined.kl[0] == 0.0
    assert np.isnan([joined.kl[1], joined.largest[1], largest_error_of(joined)]).all()


def test_a_row_of_large_values_hides_no_other_row():
    reference = np.array([[1e4, 0.0], [1.0, 2.0], [0.0, 0.0]], np.float32)
    ours = reference + np.array([[1.0, 0.0], [0.0, 0.5], [0.0, 0.0]], np.float32)
    assert largest_row_error(reference, ours) == 0.25
    assert np.isnan(largest_row_error(reference, ours * np.nan))
