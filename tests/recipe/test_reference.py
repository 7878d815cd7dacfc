"""Reference folders: read strictly, with every path checked."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ectype.errors import EctypeError
from ectype.recipe.reference import Log, load_reference, read_batches, read_training_log


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "text.npy").write_bytes(b"\0\0")
    (tmp_path / "weights").mkdir()
    write(tmp_path, {})
    return tmp_path


def write(folder: Path, change: dict[str, Any]) -> None:
    values = {
        "format": 1, "name": "x", "framework": "y", "landmarks": {"0": {"weights": "weights"}},
        "held_out": {"dtype": "uint16", "domains": {"a": "text.npy"}},
    }  # fmt: skip
    (folder / "reference.json").write_text(json.dumps(values | change))


def test_paths_are_resolved_beside_the_file(folder: Path) -> None:
    reference = load_reference(folder)
    assert reference.landmarks[0].weights == folder / "weights"
    assert load_reference(folder / "reference.json") == reference


def test_the_shipped_reference_loads() -> None:
    reference = load_reference("package:demo/bundle")
    assert sorted(reference.landmarks) == [0, 80, 240, 400, 640]
    assert reference.log is not None
    log = read_training_log(reference.log)
    assert len(log.steps) == 640
    assert log.steps[log.skipped != 0].tolist() == [238, 282, 434]
    assert reference.batches is not None
    assert read_batches(reference.batches)[1].tolist() == [1403, 4021, 2700, 912, 3080, 2407, 3432, 1788]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tokeniser": "t.json"}, "tokeniser"),
        ({"tokenizer": "absent.json"}, "absent.json"),
        ({"landmarks": {}}, "landmarks"),
        ({"landmarks": {"0": {"weights": "nowhere"}}}, "nowhere"),
        ({"held_out": {"dtype": "int16", "domains": {"a": "text.npy"}}}, "held_out.dtype"),
        ({"format": 2}, "format"),
    ],
)
def test_what_is_wrong_is_named(folder: Path, change: dict[str, Any], message: str) -> None:
    write(folder, change)
    with pytest.raises(EctypeError, match=message):
        load_reference(folder)


def test_a_folder_without_the_file_is_no_reference(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(EctypeError, match="no file") as refused:
            load_reference(path)
        assert refused.value.expected == "a folder that holds reference.json, or package:demo/bundle"


def test_an_exported_log_is_read_whatever_its_gaps_and_words(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    rows = "2,1.5,false\n1,2.5,true\n3,,NaN\n4,n/a,\n2,1.25,0\n"
    path.write_text(f'\ufeff"Step","train/loss","skip"\n{rows}', encoding="utf-8")
    log = read_training_log(Log(path=path, step="Step", loss="train/loss", skipped="skip"))
    assert log.steps.tolist() == [1, 2, 3, 4]
    assert log.loss[:2].tolist() == [2.5, 1.25]
    assert np.isnan(log.loss[2:]).all()
    assert log.skipped is not None
    assert log.skipped[:2].tolist() == [1.0, 0.0]
    assert log.grad_norm is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("step,ce\n1,2\n", "no column 'loss'"),
        ("step,loss\n", "no rows"),
        ("step,loss\n1.5,2\n", "step '1.5'"),
        ("step,loss\n1e300,2\n", "step '1e300'"),
        ("step,loss\n-1,2\n", "step '-1'"),
        ("step,loss\ninf,2\n", "step 'inf'"),
        ("step,loss\n1,2\n2,abc\n", "loss of step 2 is 'abc'"),
        ('step,loss\n1,"2,5"\n', "loss of step 1 is '2,5'"),
        ("step,loss\n1,1,5\n", "rows of more cells than its 2 columns"),
        ("step,loss,loss\n1,1,5\n", "has 2 columns 'loss'"),
    ],
)
def test_a_log_that_does_not_say_what_it_should_is_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "log.csv").write_text(text)
    with pytest.raises(EctypeError, match=message):
        read_training_log(Log(path=tmp_path / "log.csv"))


@pytest.mark.parametrize(
    "entries",
    [
        [{"step": 1}],
        {"step": 1},
        [{"step": 1, "index": [1]}, {"step": 1, "index": [2]}],
        [{"step": 1, "index": [-1]}],
        [{"step": 1, "index": [4294967296]}],
        [{"step": 1, "index": [[1]]}],
        [{"step": 1, "index": 1}],
        3,
        "x",
    ],
)
def test_broken_batches_are_refused(tmp_path: Path, entries: Any) -> None:
    (tmp_path / "batches.json").write_text(json.dumps(entries))
    with pytest.raises(EctypeError, match="batches"):
        read_batches(tmp_path / "batches.json")


WANDB = (
    '"Step","calm-7b - train/CE loss","calm-7b - train/CE loss__MIN","calm-7b - train/CE loss__MAX"\n'
    '"1","11.5","11.5","11.5"\n"2","11.25","11.25","11.25"\n"3","10.5","10.25","10.75"\n"4","10","10","10"\n'
)


def test_an_export_of_wandb_is_read_by_the_names_that_one_sees_there(tmp_path: Path) -> None:
    """Step 3 is a mean of several steps, as its lowest and highest differ: it says nothing of step 3."""
    path = tmp_path / "wandb.csv"
    path.write_text(WANDB)
    for loss in ("train/CE loss", "calm-7b - train/CE loss"):
        log = read_training_log(Log(path=path, step="step", loss=loss))
        assert (log.steps.tolist(), log.loss.tolist()) == ([1, 2, 4], [11.5, 11.25, 10.0])
        assert log.aggregated_rows == 1


def test_an_export_of_several_runs_or_of_means_alone_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "wandb.csv"
    path.write_text("Step,a - loss,b - loss\n1,2,3\n")
    with pytest.raises(EctypeError, match="has 2 columns for 'loss': a - loss, b - loss"):
        read_training_log(Log(path=path, step="Step"))
    assert read_training_log(Log(path=path, step="Step", loss="b - loss")).loss.tolist() == [3.0]
    path.write_text("Step,a - loss,a - loss__MIN,a - loss__MAX\n1,2,1,3\n2,2,1,3\n")
    with pytest.raises(EctypeError, match="2 rows, each a mean of several steps"):
        read_training_log(Log(path=path))
