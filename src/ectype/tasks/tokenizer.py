"""A tokenizer file as functions from text to ids and back, by the library that lm-evaluation-harness itself uses."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ectype.artifacts import sha256_of_file
from ectype.errors import EctypeError

_FILE, _CONFIG = "tokenizer.json", "tokenizer_config.json"


@dataclass(frozen=True)
class Tokenizer:
    """A loaded tokenizer and the ids that the harness's rules need."""

    inner: Any
    """A tokenizer of `transformers`."""
    sha256: str
    end_of_text_id: int
    prefix_id: int
    """What stands before a text without context: the beginning of text where the tokenizer has one, else its end."""
    add_bos_token: bool | None
    """Whether special tokens are added; None leaves it to the tokenizer."""

    def encode(self, text: str, special: bool | None = None) -> list[int]:
        """Ids of `text`; by default special tokens are added as the tokenizer does, but never a second prefix."""
        if special is None and text.startswith(self.inner.decode(self.prefix_id)):
            special = False
        chosen = self.add_bos_token if special is None else special
        return self.inner.encode(text, **({} if chosen is None else {"add_special_tokens": chosen}))

    def decode(self, ids: Sequence[int]) -> str:
        """Text of `ids` without special tokens."""
        return self.inner.decode(list(ids), skip_special_tokens=True)

    @property
    def end_of_text(self) -> str:
        """The text of the token that ends a document."""
        return self.inner.decode(self.end_of_text_id, skip_special_tokens=False)


def load_tokenizer(
    path: Path,
    *,
    vocab_size: int,
    end_of_text_id: int | None = None,
    prefix_id: int | None = None,
    add_bos_token: bool | None = None,
) -> Tokenizer:
    """Load `tokenizer.json`, with the `tokenizer_config.json` beside it where there is one.

    Args:
        path: the file, or the folder that holds it.
        vocab_size: real token ids of the model.
        end_of_text_id: taken where the tokenizer itself names none.
        prefix_id: stands before a text without context; None: the beginning of text, else the end of text.

    Raises:
        EctypeError: no such file, ids beyond the model's, no end of text, or `transformers` is not installed.
    """
    file = path / _FILE if path.is_dir() else path
    if not file.is_file():
        raise EctypeError(f"no tokenizer {file}", f"a {_FILE}, or a folder with one", "check the path")
    inner = _opened(file, add_bos_token)
    end = end_of_text_id if inner.eos_token_id is None else inner.eos_token_id
    if end is None:
        raise EctypeError(
            f"neither {file} nor the weights say which id ends a text", "its id",
            f"put its {_CONFIG} beside it, or give end_of_text_id to the model",
        )  # fmt: skip
    prefix = inner.bos_token_id if prefix_id is None else prefix_id
    prefix = end if prefix is None else prefix
    highest = max(len(inner) - 1, end, prefix)
    if highest >= vocab_size:
        raise EctypeError(
            f"{file}: ids up to {highest}", f"ids below the model's vocab_size {vocab_size}",
            "use the run's own tokenizer",
        )  # fmt: skip
    return Tokenizer(inner, sha256_of_file(file), end, prefix, add_bos_token)


def _opened(file: Path, add_bos_token: bool | None) -> Any:
    try:
        from transformers import AutoTokenizer, PreTrainedTokenizerFast
    except ImportError:
        raise EctypeError(
            "transformers is not installed", "the extra `tasks`", "pip install 'ectype[tasks]'"
        ) from None  # fmt: skip
    habit = {} if add_bos_token is None else {"add_bos_token": add_bos_token}
    try:
        if file.name == _FILE and file.with_name(_CONFIG).is_file():
            return AutoTokenizer.from_pretrained(str(file.parent), local_files_only=True, **habit)
        return PreTrainedTokenizerFast(tokenizer_file=str(file), **habit)
    except Exception as error:  # the library names no narrower kind for a broken file
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise EctypeError(
            f"tokenizer {file}: {reason}", "a tokenizer that transformers reads", "fetch it again"
        ) from error
