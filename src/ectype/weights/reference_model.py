"""The Hugging Face model as a reference, one layer's weights in memory at a time. Needs the extra `reference`.

transformers' own forward pass runs unchanged; hooks fill each layer's weights just before it and drop them after.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ectype.errors import EctypeError
from ectype.recipe.spec import Model
from ectype.weights.mapping import TABLE
from ectype.weights.safetensors_files import StoredTensor, read_folder
from ectype.weights.tree import LeafPath

_INSTALL = "pip install 'ectype[reference]'"


@dataclass(frozen=True)
class ReferenceModel:
    """A model without weights, and where its tensors lie."""

    module: Any
    tensors: Mapping[str, StoredTensor]
    dtype: Any
    tied_head: bool


@dataclass
class Recording:
    """What one pass left behind, float32 NumPy: hidden states [L, D] before each layer and after the last."""

    hidden: list[np.ndarray] = field(default_factory=list)
    layer_arguments: list[dict[str, Any]] = field(default_factory=list)
    final: Any = None
    """After the final norm, a tensor [L, D] in the reference's element type."""


def versions() -> dict[str, str]:
    """Versions of the reference libraries, or an error that says how to install them."""
    try:
        import torch
        import transformers
    except ImportError as error:
        raise EctypeError(f"no module {error.name}", "the extra `reference` is installed", _INSTALL) from None
    return {"torch": torch.__version__, "transformers": transformers.__version__}


def refuse_version(transformers_version: str, model: Model) -> None:
    """transformers 5.0 to 5.12 scale rotary positions in every layer: no reference for a model with YaRN."""
    major, minor = (int(part) for part in transformers_version.split(".")[:2])
    if model.yarn is not None and (5, 0) <= (major, minor) < (5, 13):
        raise EctypeError(
            f"transformers {transformers_version} as the reference of a model with YaRN",
            "5.13 or later (or 4.57): 5.0 to 5.12 also scale the sliding-window layers", _INSTALL + " -U",
        )  # fmt: skip


def open_reference(folder: Path, dtype: str) -> ReferenceModel:
    """The model of a Hugging Face folder, computing in `dtype`; weights stay on disk."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(folder)
    element = getattr(torch, dtype)
    with torch.device("meta"):
        module = AutoModelForCausalLM.from_config(config, dtype=element, attn_implementation="sdpa").eval()
    # Rotary tables are computed, not stored, so they cannot stay without storage.
    module.model.rotary_emb = type(module.model.rotary_emb)(config=config)
    return ReferenceModel(module, read_folder(folder), element, bool(config.tie_word_embeddings))


def run_reference(reference: ReferenceModel, tokens_L: np.ndarray, *, keep_hidden: bool) -> Recording:
    """Run transformers' forward pass on one sequence of token ids."""
    import torch

    recording, body = Recording(), reference.module.model

    def before_layer(number: int) -> Callable[..., None]:
        def fill(module: Any, args: Any, kwargs: dict[str, Any]) -> None:
            _fill(reference, module, f"model.layers.{number}.")
            if keep_hidden:
                recording.hidden.append(_numpy(args[0]))
                recording.layer_arguments.append(kwargs)

        return fill

    handles = []
    for number, layer in enumerate(body.layers):
        handles.append(layer.register_forward_pre_hook(before_layer(number), with_kwargs=True))
    for module in (body.embed_tokens, *body.layers):
        handles.append(module.register_forward_hook(lambda module, args, output: _drop(module)))
    try:
        _fill(reference, body.embed_tokens, "model.embed_tokens.")
        _fill(reference, body.norm, "model.norm.")
        before_norm = body.norm.register_forward_pre_hook(
            lambda module, args: recording.hidden.append(_numpy(args[0])) if keep_hidden else None
        )
        handles.append(before_norm)
        with torch.inference_mode():
            ids = torch.from_numpy(tokens_L.astype(np.int64))[None]
            recording.final = body(input_ids=ids, use_cache=False).last_hidden_state[0]
    finally:
        for handle in handles:
            handle.remove()
        _drop(body.embed_tokens)
        _drop(body.norm)
    return recording


def head_logits_of(reference: ReferenceModel, final_LD: Any, first: int, end: int) -> np.ndarray:
    """Logits [L, end - first] of the ids [first, end), from hidden states after the final norm.

    float32, or float64 of a model that computes in it. Only those rows of the projection are read: it has no bias in
    the families that are read, and nothing follows it.
    """
    import torch

    stored = reference.tensors["model.embed_tokens.weight" if reference.tied_head else "lm_head.weight"]
    with torch.inference_mode():
        logits = torch.nn.functional.linear(final_LD, _read(reference, stored, first, end))
    return (logits if logits.dtype == torch.float64 else logits.float()).numpy()


def probe_layer(
    reference: ReferenceModel, recording: Recording, layer: int, model: Model
) -> dict[LeafPath, tuple[np.ndarray, np.ndarray]]:
    """Input and output [B, L, ...] of every projection and norm of one layer, run again on its recorded input.

    Keyed by the path of the tensor within our layer.
    """
    import torch

    seen: dict[LeafPath, tuple[np.ndarray, np.ndarray]] = {}
    module = reference.module.model.layers[layer]
    prefix, suffix = "model.layers.{layer}.", ".weight"
    handles = [
        module.get_submodule(row.hugging_face.removeprefix(prefix).removesuffix(suffix)).register_forward_hook(
            _recorder(seen, row.path)
        )
        for row in TABLE
        if row.in_layer and row.hugging_face.endswith(suffix) and row.when(model)
    ]
    _fill(reference, module, prefix.format(layer=layer))
    try:
        with torch.inference_mode():
            hidden = torch.from_numpy(recording.hidden[layer])[None].to(reference.dtype)
            module(hidden, **recording.layer_arguments[layer])
    finally:
        for handle in handles:
            handle.remove()
        _drop(module)
    return seen


def rotary_of(recording: Recording, layer: int) -> tuple[np.ndarray, np.ndarray]:
    """cos and sin [L, K] that the reference gave to a layer."""
    cos, sin = recording.layer_arguments[layer]["position_embeddings"]
    return _numpy(cos), _numpy(sin)


def _recorder(seen: dict[LeafPath, tuple[np.ndarray, np.ndarray]], path: LeafPath) -> Callable[..., None]:
    def record(module: Any, args: Any, output: Any) -> None:
        seen[path] = (args[0].float().numpy(), output.float().numpy())

    return record


def _numpy(tensor_1LN: Any) -> np.ndarray:
    """A batch of one as float32 [L, N]."""
    return tensor_1LN[0].float().numpy()


def _fill(reference: ReferenceModel, module: Any, prefix: str) -> None:
    """Read the module's weights, in the reference's element type."""
    state = {}
    for name, _ in module.named_parameters():
        stored = reference.tensors[prefix + name]
        state[name] = _read(reference, stored, 0, stored.shape[0])
    module.load_state_dict(state, assign=True)


def _read(reference: ReferenceModel, stored: StoredTensor, first: int, end: int) -> Any:
    """Rows [first, end) as a tensor of the reference's element type."""
    import torch

    # torch has no bfloat16 from NumPy: the bits pass as integers.
    rows = stored.read_rows(first, end)
    bits = rows.view(np.uint8).reshape(*rows.shape[:-1], -1)
    return torch.from_numpy(bits).view(getattr(torch, stored.dtype.name)).to(reference.dtype)


def _drop(module: Any) -> None:
    """Let the weights go."""
    module.to("meta")
