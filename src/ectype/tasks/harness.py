"""The model class `ectype` of lm-evaluation-harness. Importing this module registers it there."""

import dataclasses
from pathlib import Path
from typing import Any

from lm_eval.api.instance import Instance  # pyright: ignore[reportMissingImports] - extra `tasks`
from lm_eval.api.model import LM  # pyright: ignore[reportMissingImports]
from lm_eval.api.registry import register_model  # pyright: ignore[reportMissingImports]

from ectype.errors import EctypeError
from ectype.evaluate.subject import load_subject, require_length
from ectype.progress import Progress, silent
from ectype.tasks.batching import Settings
from ectype.tasks.generation import generate
from ectype.tasks.requests import cut_at, encode_pair, fit, generation_ended, rolling_requests, stop_texts
from ectype.tasks.scoring import Score, score
from ectype.tasks.tokenizer import load_tokenizer

_DEFAULT_BATCH_ROWS = 8
_DEFAULT_NEW_TOKENS = 256
_LENGTH_NAMES = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")
_WITHOUT_EFFECT_ON_GREEDY = {"do_sample", "temperature", "top_p", "top_k", "until"}


@register_model("ectype")
class EctypeLM(LM):
    """Weights that Ectype holds, measured by the harness's tasks under the rules of its Hugging Face model.

    Args:
        checkpoint: a checkpoint, a run folder (its newest checkpoint, or `step`), or a Hugging Face folder.
        tokenizer: `tokenizer.json`, or the folder that holds it.
        batch_size: rows at a time, raised to a multiple of the devices; `auto` is 8.
        max_length: longest input in tokens. Default: what the weights were made for.
        dtype: element type of the forward pass: float32 or bfloat16. Logits and log-probabilities are float32.
        split_weights: spread the weights over the devices instead of keeping a copy on each.
        end_of_text_id: for a tokenizer that names none.
        prefix_token_id: stands before a text without context. Default: the beginning of text, else the end of text.
        add_bos_token: whether special tokens are added. Default: as the tokenizer does.
        devices: the first so many of this process's devices. Default: all.
        device, max_batch_size: taken because the harness always gives them; JAX chooses the devices.
    """

    def __init__(
        self,
        checkpoint: str,
        tokenizer: str,
        batch_size: int | str | None = None,
        max_length: int | None = None,
        dtype: str = "float32",
        step: int | None = None,
        split_weights: bool = False,
        end_of_text_id: int | None = None,
        prefix_token_id: int | None = None,
        add_bos_token: bool | None = None,
        devices: int | None = None,
        device: str | None = None,
        max_batch_size: int | None = None,
    ) -> None:
        super().__init__()
        if dtype not in ("float32", "bfloat16"):
            raise EctypeError(f"dtype {dtype}", "float32 or bfloat16", "leave it out for float32")
        self.subject = load_subject(Path(checkpoint), step=step, split_weights=split_weights, devices=devices)
        self.settings = Settings(require_length(self.subject, max_length), _batch_rows(batch_size), dtype, devices)
        self.text = load_tokenizer(
            Path(tokenizer), vocab_size=self.subject.model.vocab_size, end_of_text_id=_first_known(
                end_of_text_id, self.subject.end_of_text_id
            ), prefix_id=prefix_token_id, add_bos_token=add_bos_token,
        )  # fmt: skip
        self.progress: Progress = silent

    @property
    def tokenizer(self) -> Any:
        """The tokenizer itself, whose special tokens the harness records."""
        return self.text.inner

    @property
    def tokenizer_name(self) -> str:
        """Names the tokenizer in the harness's caches."""
        return self.text.sha256

    @property
    def eot_token_id(self) -> int:
        """The id that ends a text."""
        return self.text.end_of_text_id

    @property
    def max_length(self) -> int:
        """Longest input in tokens."""
        return self.settings.max_length

    def loglikelihood(self, requests: list[Instance], disable_tqdm: bool = False) -> list[Score]:
        """Log-likelihood of each continuation in nats, and whether it is what greedy decoding gives."""
        pairs = [(str(args[0]), str(args[1])) for args in map(_arguments, requests)]
        encoded = [encode_pair(*pair, self.text.encode, self.text.prefix_id) for pair in pairs]
        scores = self._score([fit(*ids, self.max_length) for ids in encoded])
        for pair, each in zip(pairs, scores, strict=True):
            self.cache_hook.add_partial("loglikelihood", pair, each)
        return scores

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = False) -> list[float]:
        """Log-likelihood of each whole text in nats, every token scored once."""
        windows = [
            rolling_requests(self.text.encode(str(request.args[0])), self.text.prefix_id, self.max_length)
            for request in requests
        ]
        scores = iter(self._score([window for own in windows for window in own]))
        totals = [float(sum(next(scores)[0] for _ in own)) for own in windows]
        for request, total in zip(requests, totals, strict=True):
            self.cache_hook.add_partial("loglikelihood_rolling", (request.args[0],), total)
        return totals

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """Greedy continuation of each context up to the first stop text, the end of text, or the token limit."""
        texts = [""] * len(requests)
        alike: dict[tuple[int, tuple[str, ...]], list[int]] = {}
        for number, request in enumerate(requests):
            alike.setdefault(self._generation(dict(_arguments(request)[1])), []).append(number)
        for (new_tokens, stops), members in alike.items():
            prompts = [self._prompt(str(requests[member].args[0]), new_tokens) for member in members]
            ended = generation_ended(self.text.decode, self.text.end_of_text_id, stops)
            made = generate(
                self.subject.params, self.subject.model, prompts, new_tokens, ended, self.settings, self.progress
            )  # fmt: skip
            for member, ids in zip(members, made, strict=True):
                texts[member] = cut_at(self.text.decode(self._before_end(ids)), stops)
                self.cache_hook.add_partial("generate_until", requests[member].args, texts[member])
        return texts

    def get_model_info(self) -> dict[str, Any]:
        """What the harness adds to its own record."""
        model = self.subject.model.model_dump(mode="json")
        return {"ectype_model": model, "ectype_step": self.subject.step, **dataclasses.asdict(self.settings)}

    def _score(self, requests: list) -> list[Score]:
        return score(self.subject.params, self.subject.model, requests, self.settings, self.progress)

    def _generation(self, arguments: dict[str, Any]) -> tuple[int, tuple[str, ...]]:
        """New tokens and stop texts of a task's generation arguments."""
        sampled = arguments.get("do_sample", False) or float(arguments.get("temperature") or 0) > 0
        unknown = arguments.keys() - _WITHOUT_EFFECT_ON_GREEDY - set(_LENGTH_NAMES)
        if unknown or (sampled and arguments.get("do_sample") is not False):
            raise EctypeError(
                f"generation arguments {arguments}", "greedy decoding: no sampling, and no argument but stop texts and "
                "a token limit", "override them with --gen_kwargs do_sample=False, or leave the task out",
            )  # fmt: skip
        given = [arguments[name] for name in _LENGTH_NAMES if arguments.get(name) is not None]
        new_tokens = int(given[0]) if given else _DEFAULT_NEW_TOKENS
        if not 0 < new_tokens < self.max_length:
            raise EctypeError(
                f"{new_tokens} tokens to generate with max_length {self.max_length}",
                "at least one, and room for a context", "set max_gen_toks for the task (--gen_kwargs max_gen_toks=N)",
            )  # fmt: skip
        return new_tokens, tuple(stop_texts(arguments.get("until"), self.text.end_of_text))

    def _prompt(self, context: str, new_tokens: int) -> list[int]:
        """Ids of the context's end that fit before the new tokens; the prefix where there is no context."""
        ids = self.text.encode(context)[-(self.max_length - new_tokens) :]
        return ids or [self.text.prefix_id]

    def _before_end(self, ids: list[int]) -> list[int]:
        end = self.text.end_of_text_id
        return ids[: ids.index(end)] if end in ids else ids


def _arguments(request: Instance) -> tuple[Any, ...]:
    """What the harness asks; its own annotation says that the tuple is empty."""
    return request.args


def _batch_rows(asked: int | str | None) -> int:
    text = str(_DEFAULT_BATCH_ROWS if asked is None or str(asked).startswith("auto") else asked)
    if not text.isdigit() or int(text) < 1:
        raise EctypeError(f"batch_size {asked!r}", "a positive count, or auto", "leave it out for 8")
    return int(text)


def _first_known(*values: int | None) -> int | None:
    return next((value for value in values if value is not None), None)
