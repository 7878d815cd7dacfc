"""From text to what the engine computes: where a context ends, what is cut off, how long documents become windows.

The rules are those of lm-evaluation-harness's own Hugging Face model, so that both score the same tokens of the same
inputs. No model, no tokenizer library: text is encoded by a function that the caller gives.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from ectype.errors import EctypeError


class Encode(Protocol):
    """Text to token ids. `special` None takes the tokenizer's own habit of adding special tokens, False adds none."""

    def __call__(self, text: str, special: bool | None = None) -> list[int]: ...


@dataclass(frozen=True)
class ScoringRequest:
    """One row to score: `targets` are what should follow the last `len(targets)` of the tokens in `inputs`."""

    inputs: tuple[int, ...]
    targets: tuple[int, ...]


def encode_pair(context: str, continuation: str, encode: Encode, prefix_id: int) -> tuple[list[int], list[int]]:
    """Token ids of a context and of its continuation.

    Spaces at the end of the context go over to the continuation, because tokenizers join a space to the word behind it.
    Then both are encoded as one text, which is split behind as many tokens as the context has alone: where a token
    spans the boundary, it counts as context. An empty context is `prefix_id`; a continuation that itself begins with
    `prefix_id` is not prefixed again.

    Raises:
        EctypeError: no token is left to score, or none to condition on.
    """
    if context == "":
        ids = encode(continuation, False)
        context_ids, ids = ([prefix_id], ids) if ids[:1] != [prefix_id] else (ids[:1], ids[1:])
    else:
        kept = context.rstrip()
        whole, context_ids = encode(kept + context[len(kept) :] + continuation), encode(kept)
        ids = whole[len(context_ids) :]
    if not ids or not context_ids:
        raise EctypeError(
            f"{(context[-40:], continuation[:40])!r}: no token of the "
            + ("continuation is left to score" if context_ids else "context is left to condition on"),
            "a context of more than white space, or none, and a continuation that adds a token to it",
            "correct the task, or use the tokenizer that it was written for",
        )
    return context_ids, ids


def fit(context_ids: Sequence[int], continuation_ids: Sequence[int], max_length: int) -> ScoringRequest:
    """Score the continuation behind as much of the context's end as `max_length` inputs hold.

    Raises:
        EctypeError: the continuation alone is longer.
    """
    if len(continuation_ids) > max_length:
        raise EctypeError(
            f"a continuation of {len(continuation_ids)} tokens", f"at most max_length {max_length}",
            "score it as a rolling log-likelihood, or raise max_length",
        )  # fmt: skip
    tokens = (*context_ids, *continuation_ids)[-(max_length + 1) :]
    return ScoringRequest(tuple(tokens[:-1]), tuple(continuation_ids))


def rolling_requests(tokens: Sequence[int], prefix_id: int, max_length: int) -> list[ScoringRequest]:
    """Windows in which every token of a document is scored once.

    The first window begins with `prefix_id`, each other one with the last token before those that it scores; the last
    one reaches back as far as `max_length` allows. No tokens, no windows.
    """
    requests = []
    for start in range(0, len(tokens), max_length):
        stop = min(start + max_length, len(tokens))
        inputs = (prefix_id, *tokens[: stop - 1]) if start == 0 else tokens[stop - max_length - 1 : stop - 1]
        requests.append(ScoringRequest(tuple(inputs), tuple(tokens[start:stop])))
    return requests


def stop_texts(until: str | Sequence[str] | None, end_of_text: str) -> list[str]:
    """Texts that end a generation: those of the task, and the end of text."""
    asked = [until] if isinstance(until, str) else list(until or ())
    return [text for text in dict.fromkeys((*asked, end_of_text)) if text]


def cut_at(text: str, stops: Sequence[str]) -> str:
    """`text` up to the first of `stops` in it."""
    for stop in stops:
        text = text.split(stop)[0]
    return text


def generation_ended(
    decode: Callable[[Sequence[int]], str], end_id: int, stops: Sequence[str]
) -> Callable[[list[int]], bool]:
    """Whether generated ids hold the end of text, or their text one of `stops`."""

    def ended(ids: list[int]) -> bool:
        if end_id in ids:
            return True
        text = decode(ids)
        return any(stop in text for stop in stops)

    return ended
