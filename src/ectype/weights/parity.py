"""Parity of a checkpoint with transformers: logits everywhere, drift by layer, and the tensor that is to blame.

Both sides run layer by layer, and their heads by some ids of the vocabulary at a time: memory holds one layer's weights
of each, and the hidden states between the layers.
"""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from ectype.errors import EctypeError
from ectype.progress import Progress, silent
from ectype.recipe.spec import Dtype, Model
from ectype.run.checkpoints import WEIGHTS_ITEM
from ectype.weights import layerwise, reference_model
from ectype.weights.agreement import (
    Agreement,
    compare_logits,
    join_parts,
    largest_error_of,
    largest_row_error,
    relative_error,
    summarise,
)
from ectype.weights.checkpoint import model_of, read_meta, refuse_other_model
from ectype.weights.hf_config import read_config
from ectype.weights.parity_record import Fault, LayerDrift, ParityRecord, Tolerances
from ectype.weights.reference_model import Recording, ReferenceModel
from ectype.weights.tree import Tree, dotted

_POSITIONS_AT_ONCE = 128
_HEAD_ROWS_AT_ONCE = 4096

Head = Callable[[int, int], np.ndarray]
"""Logits [L, end - first] of the ids [first, end)."""


def measure_parity(
    checkpoint: Path,
    folder: Path,
    tokens_L: np.ndarray,
    *,
    dtype: Dtype = "float32",
    tolerances: Tolerances | None = None,
    progress: Progress = silent,
) -> ParityRecord:
    """Compare a checkpoint with a Hugging Face folder on one sequence, over all positions and the real vocabulary.

    Args:
        checkpoint: an Ectype checkpoint.
        folder: the Hugging Face folder that transformers runs, in float32 (the reference).
        tokens_L: token ids [L].
        dtype: element type of our computation. With bfloat16, transformers runs in bfloat16 too, for its own distance.
        tolerances: None for the documented ones.

    Returns:
        The verdict with its figures, the drift of the hidden states by layer, and when not the same the first fault.
    """
    tolerances = tolerances or Tolerances()
    versions = reference_model.versions()
    model = model_of(read_meta(checkpoint), checkpoint)
    reference_model.refuse_version(versions["transformers"], model)
    check_comparable(checkpoint, folder, model, tokens_L)
    weights = checkpoint / WEIGHTS_ITEM
    reference = reference_model.open_reference(folder, "float32")
    recording = reference_model.run_reference(reference, tokens_L, keep_hidden=True)
    final, layers = _run_ours(weights, model, tokens_L, dtype, recording, progress)
    heads: list[Head] = [partial(layerwise.head_logits_of, weights, model, final)]
    if dtype != "float32":
        heads.append(_head_in(folder, tokens_L, dtype))
    ours, *theirs = _compare_heads(weights, model, partial(_reference_head, reference, recording), heads)
    figures = summarise(ours)
    figures |= {"reference_kl_mean": summarise(theirs[0])["kl_mean"] if theirs else None}
    windows = [window for window in model.window_pattern if window is not None]
    record = ParityRecord(
        same=False, **figures, dtype=dtype, length_tokens=len(tokens_L), window_tokens=max(windows, default=None),
        vocab_size=model.vocab_size, layers=tuple(layers), first_fault=None, tolerances=tolerances, versions=versions,
    )  # fmt: skip
    if record.needs_rounding:
        # Their norms and rotary tables stay float32 there.
        exact = _head_in(folder, tokens_L, "float64")
        (parts,) = _compare_heads(weights, model, partial(_reference_head, reference, recording), [exact])
        rounding = float(np.concatenate([part.largest for part in parts]).max())
        record = record.model_copy(update={"reference_rounding_max": rounding})
    same, fault = record.within, None
    if not same or record.reference_rounding_max is not None:
        fault = _first_fault(weights, model, tokens_L, reference, recording, tolerances.local_relative_error)
    return record.model_copy(update={"same": same and fault is None, "first_fault": fault})


def check_comparable(checkpoint: Path, folder: Path, model: Model, tokens_L: np.ndarray) -> None:
    """Refuse two models whose descriptions already say that they differ, and tokens that they can't read.

    Raises:
        EctypeError: they differ, or the tokens are not one row of at least two ids of the vocabulary.
    """
    theirs = read_config(folder).model
    same_layers = theirs.n_layers == model.n_layers and all(
        theirs.layer_window(layer) == model.layer_window(layer) for layer in range(model.n_layers)
    )
    if same_layers:
        theirs = theirs.model_copy(update={"window_pattern": model.window_pattern})
    refuse_other_model(checkpoint, model, theirs.model_copy(update={"trained_rows": model.trained_rows}))
    if tokens_L.ndim != 1 or len(tokens_L) < 2 or tokens_L.min() < 0 or tokens_L.max() >= model.vocab_size:
        raise EctypeError(
            f"tokens of shape {list(tokens_L.shape)} from {tokens_L.min(initial=0)} to {tokens_L.max(initial=0)}",
            f"one row of at least 2 ids below {model.vocab_size}", "use tokens of this model's tokenizer",
        )  # fmt: skip


def _run_ours(
    weights: Path, model: Model, tokens_L: np.ndarray, dtype: str, recording: Recording, progress: Progress
) -> tuple[jax.Array, list[LayerDrift]]:
    """Our final hidden states [L, D] in `dtype`, and the drift of the hidden states after each layer."""
    hidden = layerwise.embed(weights, tokens_L[None], dtype)
    layers = []
    for layer in range(model.n_layers):
        params = layerwise.read_layer(weights, model, layer)
        hidden = layerwise.apply_layer(params, hidden, model, model.layer_window(layer))
        ours, theirs = np.asarray(hidden[0], np.float32), recording.hidden[layer + 1]
        row = {"relative_error": relative_error(theirs, ours), "difference_max": float(np.abs(theirs - ours).max())}
        layers.append(LayerDrift(layer=layer, **{k: v if np.isfinite(v) else None for k, v in row.items()}))
        progress("parity, layers", layer + 1, model.n_layers)
    return layerwise.final_norm(weights, hidden, model)[0], layers


def _compare_heads(weights: Path, model: Model, expected: Head, others: Sequence[Head]) -> list[list[Agreement]]:
    """Agreement of each of the other heads with the expected one over the real ids, some positions per `Agreement`."""
    rows = layerwise.head_rows_at_once(weights, model, _HEAD_ROWS_AT_ONCE)
    parts = [[] for _ in others]
    for first in range(0, model.vocab_size, rows):
        end = min(first + rows, model.vocab_size)
        reference_LR = expected(first, end)
        spans = [slice(place, place + _POSITIONS_AT_ONCE) for place in range(0, len(reference_LR), _POSITIONS_AT_ONCE)]
        for own, other in zip(parts, others, strict=True):
            ours_LR = other(first, end)
            own.append([compare_logits(reference_LR[span], ours_LR[span], first) for span in spans])
    return [[join_parts(of_span) for of_span in zip(*own, strict=True)] for own in parts]


def _reference_head(reference: ReferenceModel, recording: Recording, first: int, end: int) -> np.ndarray:
    return reference_model.head_logits_of(reference, recording.final, first, end)


def _head_in(folder: Path, tokens_L: np.ndarray, dtype: str) -> Head:
    """transformers' own head after its own pass in another element type."""
    reference = reference_model.open_reference(folder, dtype)
    recording = reference_model.run_reference(reference, tokens_L, keep_hidden=False)
    return partial(_reference_head, reference, recording)


def _first_fault(
    weights: Path, model: Model, tokens_L: np.ndarray, reference: ReferenceModel, recording: Recording, limit: float
) -> Fault | None:
    """The first place where ours and theirs part although both get the reference's input, in float32."""
    embedded = np.asarray(layerwise.embed(weights, tokens_L[None], "float32")[0])
    error = largest_row_error(recording.hidden[0], embedded)
    if not error <= limit:
        return _fault(None, "embedding", ("embedding.weight",), error)
    for layer in range(model.n_layers):
        params = layerwise.read_layer(weights, model, layer)
        given = jnp.asarray(recording.hidden[layer])[None]
        ours = layerwise.apply_layer(params, given, model, model.layer_window(layer))
        error = largest_row_error(recording.hidden[layer + 1], np.asarray(ours[0]))
        if fault := _fault_in_layer(params, model, layer, reference, recording, error, limit):
            return fault
    normed = layerwise.final_norm(weights, jnp.asarray(recording.hidden[-1])[None], model)
    error = largest_row_error(recording.final.numpy(), np.asarray(normed[0]))
    if not error <= limit:
        return _fault(None, "norm", ("norm.weight",), error)
    ours = partial(layerwise.head_logits_of, weights, model, jnp.asarray(recording.final.numpy()))
    (parts,) = _compare_heads(weights, model, partial(_reference_head, reference, recording), [ours])
    error = float(np.max([largest_error_of(part) for part in parts]))
    name = "embedding.weight" if model.tied_head else "head.weight"
    return None if error <= limit else _fault(None, "head", (name,), error)


def _fault_in_layer(
    params: Tree, model: Model, layer: int, reference: ReferenceModel, recording: Recording, layer_error: float,
    limit: float,
) -> Fault | None:  # fmt: skip
    """Blame every tensor whose own product differs on the reference's input, or else rotation and mask."""
    seen = reference_model.probe_layer(reference, recording, layer, model)
    blamed = {}
    for path, (given, expected) in seen.items():
        error = largest_row_error(expected, np.asarray(layerwise.apply_tensor(params, path, jnp.asarray(given), model)))
        if not error <= limit:
            blamed[path] = error
    if blamed:
        group = "mlp" if all(path[0] == "mlp" for path in blamed) else next(iter(blamed))[0]
        return _fault(layer, group, tuple(dotted(path) for path in blamed), max(blamed.values()))
    window = model.layer_window(layer)
    ours = layerwise.rotary(len(recording.hidden[0]), model, window)
    errors = [largest_row_error(*pair) for pair in zip(reference_model.rotary_of(recording, layer), ours, strict=True)]
    if not max(errors) <= limit:
        return _fault(layer, "rotary", (), max(errors))
    normed = [seen.get(("attention", f"{name}_norm"), seen[("attention", name)])[1] for name in ("query", "key")]
    value, context = seen[("attention", "value")][1], seen[("attention", "output")][0]
    length = value.shape[1]
    query, key, value = (jnp.asarray(array).reshape(1, length, -1) for array in (*normed, value))
    error = largest_row_error(context, np.asarray(layerwise.attend(query, key, value, model, window)))
    if not error <= limit:
        return _fault(layer, "attention mask", (), error)
    return None if layer_error <= limit else _fault(layer, "residual or order of operations", (), layer_error)


def _fault(layer: int | None, group: str, tensors: tuple[str, ...], error: float) -> Fault:
    known = error if np.isfinite(error) else None
    return Fault(layer=layer, group=group, tensors=tensors, relative_error=known)
