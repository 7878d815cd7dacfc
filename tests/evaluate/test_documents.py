"""Documents as they are published: compressed lines of JSON in folders by source, with the bytes of their own text."""

import gzip
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ectype.artifacts import package_path
from ectype.errors import EctypeError
from ectype.evaluate.engine import Settings, measure_text
from ectype.evaluate.held_out import HeldOutText, load_set
from ectype.evaluate.summary import join_measures, summarise
from ectype.evaluate.windows import Rows
from ectype.recipe.held_out_sets import PALOMA_SOURCES, named_sets, preset
from ectype.recipe.spec import HeldOutSet

tokenizers = pytest.importorskip("tokenizers")

TOKENIZER = package_path("package:demo/bundle/tokenizer/tokenizer.json")
END, VOCABULARY, WINDOW = 0, 1000, 16
DOCUMENTS = {
    "c4_en": [("", "One."), ("", "Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich. " * 3)],
    "dolma_100_subreddits": [("1_tifu", "To be, or not to be: that is the question. " * 2), ("2_aww", "𝔘𝔫𝔦𝔠𝔬𝔡𝔢 ✓")],
}


def paloma(folder: Path, suffix: str = ".jsonl.gz") -> Path:
    """A copy of two sources in the published layout, and other splits beside them that must not be read."""
    for source, documents in DOCUMENTS.items():
        for split in ("val", "test"):
            lines = [
                json.dumps({"text": text, "id": str(number), "source": source} | ({"subdomain": part} if part else {}))
                for number, (part, text) in enumerate(documents if split == "val" else [("x", "not this")])
            ]
            path = folder / source / split / f"{split}_{source}{suffix}"
            path.parent.mkdir(parents=True, exist_ok=True)
            content = ("\n".join(lines) + "\n").encode()
            if suffix.endswith(".gz"):
                content = gzip.compress(content)
            elif suffix.endswith(".zst"):
                content = pytest.importorskip("zstandard").compress(content)
            path.write_bytes(content)
    return folder


def load(given: HeldOutSet, **changes: Any) -> HeldOutText:
    given = given.model_copy(update=changes)
    return load_set(given, WINDOW, VOCABULARY, tokenizer=TOKENIZER, end_of_text_id=END)


def made_up_loss(context: tuple[int, ...], target: int) -> float:
    """A loss that depends on everything that a model may see, and on nothing else."""
    return math.log(2 + (sum((place + 1) * (token + 1) for place, token in enumerate(reversed(context))) + target) % 97)


def measured(text: HeldOutText) -> dict[str, Any]:
    """The engine's summaries with `made_up_loss` for a model."""

    def measure(rows: Rows, first_row: int) -> dict[str, Any]:
        loss = np.zeros(rows.inputs.shape, np.float32)
        for row, place in np.argwhere(rows.scored):
            loss[row, place] = made_up_loss(tuple(rows.inputs[row, : place + 1]), rows.targets[row, place])
        return {"loss": loss}

    found = measure_text(text.stream(), measure, Settings(batch_windows=3, devices=1))
    return {name: summarise(measures) for name, measures in found.items()} | {
        "all": summarise(join_measures(list(found.values())))
    }


def oracle(texts: list[str], window: int, stride: int) -> tuple[float, int, int]:
    """Nats, tokens and bytes by the definition, in float64: each token once, behind at most `window` tokens."""
    encode = tokenizers.Tokenizer.from_file(str(TOKENIZER)).encode
    nats, tokens = 0.0, 0
    for text in texts:
        ids = [END, *encode(text, add_special_tokens=False).ids]
        for target in range(1, len(ids)):
            last = min(1 + ((target - 1) // stride + 1) * stride, len(ids)) - 1
            nats += made_up_loss(tuple(ids[max(0, last - window) : target]), ids[target])
            tokens += 1
    return nats, tokens, sum(len(text.encode()) for text in texts)


@pytest.mark.parametrize("suffix", [".jsonl.gz", ".jsonl", ".jsonl.zst"])
def test_sources_are_measured_per_token_and_per_byte_of_their_text(tmp_path: Path, suffix: str) -> None:
    found = measured(load(preset("paloma", paloma(tmp_path, suffix)), window_tokens=WINDOW))
    assert list(found) == [*DOCUMENTS, "all"]
    for source, documents in DOCUMENTS.items():
        nats, tokens, text_bytes = oracle([text for _, text in documents], WINDOW, WINDOW)
        summary = found[source]
        assert (summary.targets, summary.bytes) == (tokens, text_bytes)
        assert summary.loss.ours == pytest.approx(nats / tokens, rel=1e-6)
        assert summary.perplexity.ours == pytest.approx(math.exp(nats / tokens), rel=1e-5)
        assert summary.bits_per_byte.ours == pytest.approx(nats / math.log(2) / text_bytes, rel=1e-6)
        assert summary.kl_mean is summary.loss.reference is None


def test_a_shorter_stride_gives_more_context(tmp_path: Path) -> None:
    found = measured(load(preset("paloma", paloma(tmp_path)), window_tokens=WINDOW, stride_tokens=5))
    for source, documents in DOCUMENTS.items():
        nats, tokens, _ = oracle([text for _, text in documents], WINDOW, 5)
        assert (found[source].targets, found[source].loss.ours) == (tokens, pytest.approx(nats / tokens, rel=1e-6))


def test_subdomains_are_domains_of_their_own(tmp_path: Path) -> None:
    given = preset("paloma/dolma_100_subreddits", paloma(tmp_path)).model_copy(update={"subdomains": True})
    found = measured(load(given))
    assert list(found) == ["dolma_100_subreddits/1_tifu", "dolma_100_subreddits/2_aww", "all"]
    assert found["dolma_100_subreddits/2_aww"].bytes == len("𝔘𝔫𝔦𝔠𝔬𝔡𝔢 ✓".encode())
    with pytest.raises(EctypeError, match=r"val_c4_en\.jsonl\.gz, line 1: .* field 'subdomain'"):
        measured(load(preset("paloma-subdomains", tmp_path)))


def test_documents_are_joined_only_when_asked(tmp_path: Path) -> None:
    """Joined, a document's first tokens see the end of the one before, and the end of text between them is scored."""
    given = preset("paloma/c4_en", paloma(tmp_path))
    encode = tokenizers.Tokenizer.from_file(str(TOKENIZER)).encode
    ids = [END]
    for _, text in DOCUMENTS["c4_en"]:
        ids += [*encode(text, add_special_tokens=False).ids, END]
    text = load(given, concatenate=True, window_tokens=WINDOW)
    (summary, _) = measured(text).values()
    nats = sum(
        made_up_loss(
            tuple(ids[max(0, min(1 + ((t - 1) // WINDOW + 1) * WINDOW, len(ids) - 1) - 1 - WINDOW) : t]), ids[t]
        )
        for t in range(1, len(ids) - 1)
    )
    assert summary.targets == len(ids) - 2
    assert summary.loss.ours == pytest.approx(nats / (len(ids) - 2), rel=1e-6)
    assert summary.bytes == sum(len(text.encode()) for _, text in DOCUMENTS["c4_en"])
    assert text.cut.documents == "concatenated"


def test_without_a_prefix_the_first_token_of_a_document_has_no_score(tmp_path: Path) -> None:
    given = preset("paloma/c4_en", paloma(tmp_path))
    (summary, _) = measured(load(given, prefix="none")).values()
    (whole, _) = measured(load(given)).values()
    assert summary.targets == whole.targets - 2
    # Both documents begin with a token of one letter.
    assert whole.bytes is not None
    assert summary.bytes == whole.bytes - 2


def test_a_document_is_one_unit_of_the_bootstrap(tmp_path: Path) -> None:
    from ectype.evaluate.summary import domain_record

    text = load(preset("paloma/c4_en", paloma(tmp_path)), window_tokens=4)

    def measure(rows: Rows, first_row: int) -> dict[str, Any]:
        return {"loss": np.ones(rows.inputs.shape, np.float32)}

    found = measure_text(text.stream(), measure, Settings(batch_windows=3, devices=1))
    record = domain_record(found["c4_en"])
    encode = tokenizers.Tokenizer.from_file(str(TOKENIZER)).encode
    assert list(record.windows.targets) == [len(encode(text).ids) for _, text in DOCUMENTS["c4_en"]]
    assert record.windows.loss == record.windows.targets


def test_broken_files_are_named(tmp_path: Path) -> None:
    folder = paloma(tmp_path) / "c4_en" / "val"
    whole = folder / "val_c4_en.jsonl.gz"
    whole.write_bytes(whole.read_bytes()[:-9])
    with pytest.raises(EctypeError, match=r"val_c4_en\.jsonl\.gz"):
        measured(load(preset("paloma/c4_en", tmp_path)))
    whole.unlink()
    for line in ("{", "[]", '{"text": 3}', '{"id": 1}', '"x"'):
        (folder / "x.jsonl").write_text('{"text": "good"}\n' + line)
        with pytest.raises(EctypeError, match=r"x\.jsonl, line 2"):
            measured(load(preset("paloma/c4_en", tmp_path)))


def test_presets_say_what_they_lack(tmp_path: Path) -> None:
    with pytest.raises(EctypeError, match="did you mean 'paloma/c4_en'"):
        preset("paloma/c4-en", tmp_path)
    with pytest.raises(EctypeError, match="holds no source of Paloma"):
        preset("paloma", tmp_path)
    with pytest.raises(EctypeError, match="without its text"):
        named_sets(["c4-16m"])
    np.zeros(1000, "<u2").tofile(tmp_path / "c4.npy")
    with pytest.raises(EctypeError, match="at least 16,777,216"):
        load(preset("c4-16m", tmp_path / "c4.npy"))
    assert len(PALOMA_SOURCES) == 16


def test_sets_are_named_on_the_command_line_and_in_files(tmp_path: Path) -> None:
    (tmp_path / "sets.yaml").write_text(
        "web: {documents: web, window_tokens: 32}\nbooks: {tokens: {kjv: a.npy}, dtype: uint16}\n"
    )
    (tmp_path / "one.yaml").write_text("tokens: b.npy\n")
    found = named_sets(["bundled", str(tmp_path / "sets.yaml"), f"extra={tmp_path / 'one.yaml'}"])
    assert list(found) == ["bundled", "web", "books", "extra"]
    assert found["web"].documents == tmp_path / "web"
    assert found["books"].tokens == {"kjv": tmp_path / "a.npy"}
    assert sorted(load(found["bundled"]).texts) == ["devil", "jargon", "kjv", "pycode", "tz"]
    with pytest.raises(EctypeError, match="given twice"):
        named_sets(["bundled", "bundled"])
    (tmp_path / "one.yaml").write_text("tokens: b.npy\nconcatenate: true\n")
    with pytest.raises(EctypeError, match="are for documents"):
        named_sets([f"extra={tmp_path / 'one.yaml'}"])
