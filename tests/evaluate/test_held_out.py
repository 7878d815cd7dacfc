"""Sets of token files: what a stream of them scores, in how much memory, and that training never reads it."""

import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from ectype.data.tokenindex import TokenIndex
from ectype.errors import EctypeError
from ectype.evaluate.disjoint import block_tokens_of, require_disjoint, sampled_windows
from ectype.evaluate.disjointness import read_disjointness
from ectype.evaluate.held_out import HeldOutText, load_set
from ectype.evaluate.runner import run_texts
from ectype.recipe.load import load_recipe
from ectype.recipe.reference import Reference
from ectype.recipe.spec import HeldOutSet, Recipe

VOCABULARY = 1000


def write(path: Path, tokens: np.ndarray) -> Path:
    tokens.astype("<u2").tofile(path)
    return path


def scored_targets(text: HeldOutText) -> list[int]:
    return [token for block in text.stream() for token in block.rows.targets[block.rows.scored].tolist()]


@pytest.mark.parametrize("tokens", [64 * 16, 64 * 16 + 1, 64 * 16 + 9, 3 * 64 * 16 + 33])
def test_fixed_windows_stream_like_the_whole(tmp_path: Path, tokens: int) -> None:
    """Blocks of 64 windows: whole ones, a remainder of one token, and one that is dropped or scored."""
    values = np.random.default_rng(tokens).integers(0, VOCABULARY, tokens)
    path = write(tmp_path / "a.npy", values)
    whole = tokens // 16 * 16
    expected = values[:whole].reshape(-1, 16)[:, 1:].reshape(-1).tolist()
    dropped = load_set(HeldOutSet(tokens=path, dtype="uint16"), 16, VOCABULARY)
    assert scored_targets(dropped) == expected
    assert dropped.targets == len(expected)
    scored = load_set(HeldOutSet(tokens=path, dtype="uint16", remainder="score"), 16, VOCABULARY)
    assert scored_targets(scored) == expected + values[whole + 1 :].tolist()
    assert scored.targets == len(scored_targets(scored))


def test_rolling_windows_score_every_token_but_the_first_or_all_behind_a_prefix(tmp_path: Path) -> None:
    values = np.random.default_rng(0).integers(0, VOCABULARY, 5000)
    rolling = HeldOutSet(tokens={"a": write(tmp_path / "a.npy", values)}, dtype="uint16", stride_tokens=7)
    text = load_set(rolling, 16, VOCABULARY)
    assert scored_targets(text) == values[1:].tolist()
    prefixed = load_set(rolling.model_copy(update={"prefix": "end_of_text"}), 16, VOCABULARY, end_of_text_id=5)
    assert scored_targets(prefixed) == values.tolist()
    assert (text.targets, prefixed.targets) == (4999, 5000)


def test_only_the_first_tokens_of_a_set_count_when_it_says_so(tmp_path: Path) -> None:
    values = np.arange(1000)
    given = HeldOutSet(tokens=write(tmp_path / "a.npy", values), dtype="uint16", first_tokens=320)
    assert scored_targets(load_set(given, 16, VOCABULARY))[-1] == 319
    with pytest.raises(EctypeError, match=r"1,000 tokens.*\n.*at least 1,001"):
        load_set(given.model_copy(update={"first_tokens": 1001}), 16, VOCABULARY)


STREAM = """
import resource, sys
import numpy as np
from pathlib import Path
from ectype.evaluate.engine import Settings, measure_text
from ectype.evaluate.held_out import load_set
from ectype.evaluate.summary import domain_record
from ectype.recipe.spec import HeldOutSet

def measure(rows, first_row):
    # No two alike, so that the distribution of the KL has to round.
    places = np.arange(rows.targets.size).reshape(rows.targets.shape) + rows.targets.size * first_row
    values = (rows.targets + 1e-7 * places).astype(np.float32)
    return {name: values for name in ("loss", "reference_loss", "kl", "agree")}

text = load_set(HeldOutSet(tokens=Path(sys.argv[1]), dtype="uint16"), 1024, 1000)
found = measure_text(text.stream(), measure, Settings(batch_windows=16, devices=1))
record = domain_record(found["a"])
print(record.summary.targets, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def test_memory_does_not_grow_with_the_size_of_a_set(tmp_path: Path) -> None:
    """Eight times as many tokens: their numbers alone, kept, would take 24 bytes each, 88 MB."""
    peaks = []
    for tokens in (1 << 19, 1 << 22):
        path = tmp_path / "a.npy"
        with path.open("wb") as stream:
            for start in range(0, tokens, 1 << 19):
                values = np.random.default_rng(start).integers(0, VOCABULARY, 1 << 19)
                stream.write(values.astype("<u2").tobytes())
        done = subprocess.run(
            [sys.executable, "-c", STREAM, str(path)], capture_output=True, text=True, check=True, timeout=120
        )
        targets, peak_kilobytes = map(int, done.stdout.split())
        assert targets == tokens // 1024 * 1023
        peaks.append(peak_kilobytes)
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss >= max(peaks)
    assert peaks[1] - peaks[0] < 24_000


def training_recipe(folder: Path, *files: np.ndarray) -> Recipe:
    """A recipe with windows of 16 tokens that reads these files."""
    for number, tokens in enumerate(files):
        write(folder / f"train{number}.npy", tokens)
    listed = "\n".join(f"x,train{number}.npy" for number in range(len(files)))
    (folder / "manifest.txt").write_text(listed + "\n")
    index = str(folder / "manifest.txt")
    changes = [f"inputs.index={index}", "data.sequence_length_tokens=16", "data.order.max_target_length_tokens=null"]
    return load_recipe("toy-calm", changes)


@pytest.fixture
def texts(tmp_path: Path) -> dict[str, HeldOutText]:
    values = np.random.default_rng(9).integers(2, VOCABULARY, 400)
    path = write(tmp_path / "held.npy", values)
    return {"web": load_set(HeldOutSet(tokens={"blogs": path}, dtype="uint16"), 32, VOCABULARY)}


@pytest.mark.parametrize("shift", [0, 5])
def test_a_set_that_training_reads_is_refused(tmp_path: Path, texts: dict[str, HeldOutText], shift: int) -> None:
    """One training window of 16 tokens is held-out text, at any offset of it."""
    generator = np.random.default_rng(1)
    clean, leaking = (generator.integers(2, VOCABULARY, 800) for _ in range(2))
    leaking[160:176] = np.fromfile(tmp_path / "held.npy", "<u2")[40 + shift : 56 + shift]
    recipe = training_recipe(tmp_path, clean, leaking)
    with pytest.raises(EctypeError, match=r"'web', domain blogs: 8 of its tokens stand in training window 60 .*train1"):
        require_disjoint(tmp_path, recipe, texts)
    assert not (tmp_path / "disjoint.json").exists()


def test_disjoint_sets_are_recorded_and_searched_for_once(tmp_path: Path, texts: dict[str, HeldOutText]) -> None:
    recipe = training_recipe(tmp_path, np.random.default_rng(1).integers(2, VOCABULARY, 800))
    found = require_disjoint(tmp_path, recipe, texts)
    assert read_disjointness(tmp_path) == found
    assert not isinstance(found, str)
    record = found.sets["web"]
    assert (record.block_tokens, record.blocks, record.windows_searched, found.windows) == (8, 50, 50, 50)
    # A search tells how far it is.
    again = require_disjoint(tmp_path, recipe, texts, progress=lambda *_: pytest.fail("searched again"))
    assert again == found


def test_training_text_that_is_not_at_hand_is_not_searched(tmp_path: Path, texts: dict[str, HeldOutText]) -> None:
    recipe = training_recipe(tmp_path, np.arange(2, 802))
    (tmp_path / "train0.npy").unlink()
    assert "train0.npy" in str(require_disjoint(tmp_path, recipe, texts))


@pytest.mark.parametrize(("windows", "searched"), [(10, 10), (1000, 64), (724_000_000, 5000)])
def test_a_sample_of_windows_is_spread_over_all_of_them(windows: int, searched: int) -> None:
    ids = np.concatenate([found for _, found in sampled_windows(windows, searched, 999)]).astype(np.int64)
    assert len(ids) == searched
    assert (np.diff(ids) > 0).all()
    places = ids * searched // windows
    np.testing.assert_allclose(places, np.arange(searched), atol=1)
    again = np.concatenate([found for _, found in sampled_windows(windows, searched, 7)])
    assert (len(again), int(again.max()) < windows) == (searched, True)


def test_the_bundled_runs_training_reads_none_of_its_held_out_text(tmp_path: Path, reference: Reference) -> None:
    recipe = load_recipe("toy-calm")
    found = require_disjoint(tmp_path, recipe, run_texts(recipe, reference))
    assert not isinstance(found, str)
    assert found.sets["held-out"].windows_searched == found.windows
    assert found.sets["held-out"].block_tokens == 128


@pytest.mark.parametrize(
    ("window", "training", "expected"), [(2048, 8192, 1024), (32, 256, 64), (256, 256, 128), (8, 16, 8)]
)
def test_blocks_are_half_a_window_but_no_mere_phrase(tmp_path: Path, window: int, training: int, expected: int) -> None:
    text = load_set(
        HeldOutSet(tokens=write(tmp_path / "a.npy", np.arange(3000) % 999), dtype="uint16"), window, VOCABULARY
    )
    index = TokenIndex((), "uint16", VOCABULARY, training)
    assert block_tokens_of(text, index) == expected
