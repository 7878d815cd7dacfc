"""A stored reference: what a model says of a fixed probe text, so that others are compared with it in its absence.

One `.npz` file with the text's rows, the log-probabilities of the model's top ids at each scored token, and the mass of
all others. It is held in memory as a whole: 8 bytes for each of the top ids of each token.

Shapes: N rows, L row length, M scored tokens in the order of their rows, K top ids.
"""

import json
import zipfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import jax
import numpy as np

from ectype import __version__
from ectype.artifacts import parse_json, replacing
from ectype.errors import EctypeError
from ectype.evaluate.devices import whole_rows
from ectype.evaluate.engine import CHUNK_TOKENS, Settings, batched, filled_up, measure_text, on_devices
from ectype.evaluate.held_out import Block, Cut, HeldOutText
from ectype.evaluate.subject import Subject
from ectype.evaluate.summary import DomainMeasures
from ectype.evaluate.truncated_kl import top_rows, truncated_rows
from ectype.evaluate.windows import Rows, joined
from ectype.progress import Progress, silent
from ectype.recipe.parse import parse
from ectype.recipe.spec import Dtype, Section

_MEND = "make it anew with `ectype evaluate WEIGHTS --store FILE`"
_BY_TOKEN = {"loss": "f4", "loss_all_rows": "f4", "log_tail": "f4", "log_probabilities": "f4", "ids": "u4"}


class StoredCut(Section):
    """How the probe text was cut; fields as in a protocol."""

    window_tokens: int
    stride_tokens: int | None
    prefix_id: int | None
    remainder: Literal["drop", "score"]
    documents: Literal["as stored", "one by one", "concatenated"]


class StoredFacts(Section):
    """What the numbers of a stored reference are of."""

    format: Literal[1] = 1
    step: int | None
    weights_sha256: str
    tokenizer_sha256: str | None
    text_sha256: dict[str, str]
    cut: StoredCut
    domains: tuple[str, ...]
    vocabulary_rows: int
    all_rows: int
    top_ids: int
    compute_dtype: Dtype
    softmax: str = "float32"
    ectype: str


@dataclass(frozen=True)
class StoredReference:
    """The content of the file."""

    facts: StoredFacts
    rows: Rows
    domains: np.ndarray
    """int64 [N]: number of each row's domain."""
    units: np.ndarray
    text_bytes: np.ndarray | None
    by_token: dict[str, np.ndarray]
    """`loss`, `loss_all_rows`, `log_tail` float32 [M], `log_probabilities` float32 [M, K], `ids` uint32 [M, K]."""

    def blocks(self) -> Iterator[Block]:
        """The rows, one block for each run of one domain."""
        edges = [0, *(np.flatnonzero(np.diff(self.domains)) + 1).tolist(), len(self.rows)]
        for start, stop in pairwise(edges):
            part = slice(start, stop)
            text_bytes = None if self.text_bytes is None else self.text_bytes[part]
            name = self.facts.domains[self.domains[start]]
            yield Block(name, self.rows.part(part), self.units[part], text_bytes)

    def spread(self, name: str, first_row: int, scored_BL: np.ndarray) -> np.ndarray:
        """An array by token as [B, L, ...] of the rows from `first_row` on, zeros where nothing is scored."""
        start, values = int(self.rows.scored[:first_row].sum()), self.by_token[name]
        out = np.zeros((*scored_BL.shape, *values.shape[1:]), values.dtype)
        out[scored_BL] = values[start : start + int(scored_BL.sum())]
        return out


def make_stored(
    subject: Subject, weights_sha256: str, text: HeldOutText, top_ids: int, settings: Settings,
    progress: Progress = silent,
) -> StoredReference:  # fmt: skip
    """Run a model on a text and keep its `top_ids` most probable ids at each scored token.

    Raises:
        EctypeError: more ids than the vocabulary has.
    """
    model = subject.model
    if not 0 < top_ids <= model.vocab_size:
        raise EctypeError(f"{top_ids} top ids", f"1 to {model.vocab_size}", "ask for fewer with --top")
    found: list[tuple[Block, dict[str, np.ndarray]]] = []
    batch_rows, done = whole_rows(settings.batch_windows, settings.devices), 0
    for batch in batched(text.stream(), batch_rows):
        rows = joined([block.rows for block in batch])
        inputs, targets = on_devices(settings, *_arrays(filled_up(rows, batch_rows)))
        top = jax.device_get(
            top_rows(
                subject.params, inputs, targets, model=model, compute_dtype=settings.compute_dtype,
                chunk_tokens=CHUNK_TOKENS, top_ids=top_ids,
            )
        )  # fmt: skip
        by_token = {name: top[name][: len(rows)][rows.scored].astype(kind) for name, kind in _BY_TOKEN.items()}
        found += [(block, {}) for block in batch[:-1]] + [(batch[-1], by_token)]
        done += int(rows.scored.sum())
        progress("store, tokens", done, text.targets or 0)
    blocks = [block for block, _ in found]
    names = list(dict.fromkeys(block.domain for block in blocks))
    all_bytes = [block.text_bytes for block in blocks if block.text_bytes is not None]
    facts = StoredFacts(
        step=subject.step, weights_sha256=weights_sha256, tokenizer_sha256=text.tokenizer_sha256,
        text_sha256=dict(text.sha256), cut=StoredCut(**asdict(text.cut)), domains=tuple(names),
        vocabulary_rows=model.vocab_size, all_rows=model.rows, top_ids=top_ids, compute_dtype=settings.compute_dtype,
        ectype=__version__,
    )  # fmt: skip
    return StoredReference(
        facts=facts,
        rows=joined([block.rows for block in blocks]),
        domains=np.concatenate([np.full(len(block.rows), names.index(block.domain)) for block in blocks]),
        units=np.concatenate([block.units for block in blocks]),
        text_bytes=np.concatenate(all_bytes) if len(all_bytes) == len(blocks) else None,
        by_token={name: np.concatenate([part[name] for _, part in found if part]) for name in _BY_TOKEN},
    )


def measure_against_stored(
    subject: Subject, stored: StoredReference, settings: Settings, progress: Progress = silent
) -> dict[str, DomainMeasures]:
    """Measures of our weights beside a stored reference, on its own text."""
    names = ("ids", "log_probabilities", "log_tail")

    def measure(rows: Rows, first_row: int) -> dict[str, Any]:
        spread = {name: stored.spread(name, first_row, rows.scored) for name in _BY_TOKEN}
        spread["ids"] = spread["ids"].astype(np.int32)
        inputs, targets, *top = on_devices(settings, *_arrays(rows), *(spread[name] for name in names))
        found = truncated_rows(
            subject.params, inputs, targets, tuple(top), model=subject.model, compute_dtype=settings.compute_dtype,
            chunk_tokens=CHUNK_TOKENS,
        )  # fmt: skip
        return found | {f"reference_{name}": spread[name] for name in ("loss", "loss_all_rows")}

    return measure_text(stored.blocks(), measure, settings, progress, len(stored.by_token["loss"]))


def cut_of(stored: StoredReference) -> Cut:
    """How its text was cut."""
    return Cut(**stored.facts.cut.model_dump())


def _arrays(rows: Rows) -> tuple[np.ndarray, np.ndarray]:
    return rows.inputs, rows.targets


def write_stored(path: Path, stored: StoredReference) -> None:
    """Write the file atomically.

    Raises:
        EctypeError: `path` can't be written.
    """
    arrays = {
        "facts": np.frombuffer(json.dumps(stored.facts.model_dump(mode="json")).encode(), np.uint8),
        "inputs": stored.rows.inputs, "targets": stored.rows.targets, "scored": stored.rows.scored,
        "domains": stored.domains, "units": stored.units,
    }  # fmt: skip
    if stored.text_bytes is not None:
        arrays["text_bytes"] = stored.text_bytes
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as temporary, temporary.open("wb") as stream:
            np.savez(stream, allow_pickle=False, **arrays, **stored.by_token)
    except OSError as error:
        raise EctypeError(f"can't write {path}: {error}", "a path in a writable folder", "check the path") from None


def is_stored_reference(path: Path) -> bool:
    """Whether `path` names such a file rather than weights."""
    return path.suffix == ".npz"


def read_facts(path: Path) -> StoredFacts:
    """What a stored reference says of itself; its numbers are not read.

    Raises:
        EctypeError: as for `read_stored`.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            facts = file["facts"].tobytes()
        return parse(StoredFacts, parse_json(facts), f"stored reference {path}", mend=_MEND)
    except (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile) as error:
        raise EctypeError(f"stored reference {path}: {error}", "a whole file of this version", _MEND) from None


def holds_text(facts: StoredFacts, text: HeldOutText) -> bool:
    """Whether a stored reference was made on this text, cut in this way, with this tokenizer."""
    same_text = facts.text_sha256 == dict(text.sha256) and facts.cut == StoredCut(**asdict(text.cut))
    return same_text and facts.tokenizer_sha256 == text.tokenizer_sha256


def read_stored(path: Path) -> StoredReference:
    """Read the file strictly.

    Raises:
        EctypeError: no such file, or none of this format.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        facts = parse(StoredFacts, parse_json(arrays.pop("facts").tobytes()), f"stored reference {path}", mend=_MEND)
        rows = Rows(*(arrays.pop(name) for name in ("inputs", "targets", "scored")))
        text_bytes, domains, units = arrays.pop("text_bytes", None), arrays.pop("domains"), arrays.pop("units")
        by_token = {name: arrays[name].astype(kind, casting="safe") for name, kind in _BY_TOKEN.items()}
        _check_shapes(facts, rows, domains, units, text_bytes, by_token)
    except (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile) as error:
        raise EctypeError(f"stored reference {path}: {error}", "a whole file of this version", _MEND) from None
    return StoredReference(facts, rows, domains, units, text_bytes, by_token)


def _check_shapes(
    facts: StoredFacts, rows: Rows, domains: np.ndarray, units: np.ndarray, text_bytes: np.ndarray | None,
    by_token: dict[str, np.ndarray],
) -> None:  # fmt: skip
    shape, tokens = (len(rows.inputs), facts.cut.window_tokens), int(rows.scored.sum())
    by_row = [domains, units, *([] if text_bytes is None else [text_bytes])]
    wide = {"ids", "log_probabilities"}
    good = (
        all(array.shape == shape for array in (rows.inputs, rows.targets, rows.scored))
        and rows.scored.dtype == bool
        and all(array.shape == shape[:1] and array.dtype.kind == "i" for array in by_row)
        and all(
            array.shape == ((tokens, facts.top_ids) if name in wide else (tokens,)) for name, array in by_token.items()
        )
    )
    if not good or domains.max(initial=-1) >= len(facts.domains):
        raise ValueError("its arrays do not fit together")
    if max(array.max(initial=0) for array in (rows.inputs, rows.targets, by_token["ids"])) >= facts.vocabulary_rows:
        raise ValueError("ids beyond its vocabulary")
