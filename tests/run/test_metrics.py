"""Rows of metrics are read strictly, and opening the file never drops one that still counts."""

import json
from pathlib import Path
from typing import Any

import pytest

from ectype.errors import EctypeError
from ectype.run.goodput import read_goodput
from ectype.run.metrics import MetricsFile, parse_row, read_metrics, read_rows, rows_after

BROKEN = {
    "torn": '{"step": 3, "lo',
    "a list": "[1]",
    "no step": '{"loss": 1.0}',
    "a step in words": '{"step": "3", "loss": 1.0}',
    "half a step": '{"step": 3.5, "loss": 1.0}',
    "a step that is true": '{"step": true, "loss": 1.0}',
    "a negative step": '{"step": -3, "loss": 1.0}',
    "a step beyond counting": '{"step": 1180591620717411303424, "loss": 1.0}',
    "a loss in words": '{"step": 3, "loss": "low"}',
    "a list as loss": '{"step": 3, "loss": [1.0]}',
    "a loss beyond floats": '{"step": 3, "loss": 1' + "0" * 400 + "}",
    "too deep": "[" * 100_000,
}


def _write(run: Path, lines: list[str]) -> Path:
    (run / "metrics.jsonl").write_text("".join(f"{line}\n" for line in lines))
    return run


def _row(step: int, **more: Any) -> str:
    return json.dumps({"step": step, "loss": 1.0, "step_seconds": 0.5} | more)


@pytest.mark.parametrize("line", BROKEN.values(), ids=BROKEN)
def test_a_row_that_no_training_writes_is_refused(tmp_path: Path, line: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        parse_row(line)
    run = _write(tmp_path, [_row(1), _row(2), line, _row(4)])
    with pytest.raises(EctypeError, match="line 3: no metrics row"):
        read_rows(run)
    assert read_goodput(run)[0].productive_seconds == 0.0  # No session is recorded: the rows belong to none.
    assert [row["step"] for row in rows_after(run, 0)] == [1, 2]


@pytest.mark.parametrize("line", BROKEN.values(), ids=BROKEN)
def test_a_last_row_may_be_torn(tmp_path: Path, line: str) -> None:
    assert list(read_rows(_write(tmp_path, [_row(1), _row(2), line]))) == [1, 2]


def test_numbers_that_are_not_finite_are_kept(tmp_path: Path) -> None:
    log = read_metrics(
        _write(tmp_path, ['{"step": 1, "loss": NaN}', '{"step": 2, "loss": null}', '{"step": 3, "loss": -Infinity}'])
    )
    assert [str(loss) for loss in log.loss.tolist()] == ["nan", "nan", "-inf"]


def test_opening_cuts_later_rows_and_a_torn_end(tmp_path: Path) -> None:
    run = _write(tmp_path, [_row(1), _row(2), _row(3), BROKEN["torn"]])
    with MetricsFile(run, 2, writes=True) as file:
        file.write({"step": 3, "loss": 2.0})
    assert [row["loss"] for row in read_rows(run).values()] == [1.0, 1.0, 2.0]


def test_opening_refuses_to_cut_rows_that_count(tmp_path: Path) -> None:
    run = _write(tmp_path, [_row(1), BROKEN["torn"], _row(3), _row(4)])
    before = (run / "metrics.jsonl").read_bytes()
    with pytest.raises(EctypeError, match="line 2: no metrics row"):
        MetricsFile(run, 3, writes=True)
    assert (run / "metrics.jsonl").read_bytes() == before


@pytest.mark.parametrize(
    "line",
    ["[]", "3", "{}", '{"what": "lost"}', '{"what": "save_stall", "seconds": "2"}',
     '{"what": "lost_steps", "seconds": 2}', '{"what": "begin"}', '{"what": ["begin"]}',
     '{"what": "other", "seconds": NaN}', "[" * 100_000],
)  # fmt: skip
def test_damaged_lines_of_goodput_count_for_nothing(tmp_path: Path, line: str) -> None:
    events = ['{"what": "begin", "from_step": 0}', line, '{"what": "compile", "seconds": 3.0}']
    (tmp_path / "goodput.jsonl").write_text("\n".join(events))
    whole, sessions = read_goodput(_write(tmp_path, [_row(1), _row(2)]))
    assert (whole.productive_seconds, whole.compile_seconds, whole.total_seconds, len(sessions)) == (1.0, 3.0, 4.0, 1)


def test_a_file_without_any_row_is_no_log_to_go_on_with(tmp_path: Path) -> None:
    """A CSV file written over the log, say: cut to nothing, ten updates' rows would be gone for good."""
    run = _write(tmp_path, ["step,loss", "1,2.0"])
    before = (run / "metrics.jsonl").read_bytes()
    with pytest.raises(EctypeError, match="line 1"):
        MetricsFile(run, 10, writes=True)
    assert (run / "metrics.jsonl").read_bytes() == before
