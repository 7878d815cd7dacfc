"""Five faults and an honest run, from training to the table: the real thing, on a smaller model and a few updates."""

import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest

from ectype.artifacts import lock, package_path, write_json
from ectype.cli.main import app
from ectype.compare import held_out_criteria, trajectory_criteria
from ectype.errors import EctypeError
from ectype.faults import matrix as module
from ectype.faults.catalogue import FAULTS as ALL_FAULTS
from ectype.faults.detect import MEASURE_OF
from ectype.faults.matrix import fault_matrix
from ectype.faults.record import MEASURES, READ_ONCE, FaultMatrix, Finding, Row, read_matrix, write_matrix
from ectype.faults.regimes import DETAILS, Details, Run, details, stages
from ectype.faults.runs import main
from ectype.faults.table import in_short, missed, sound, text_lines
from ectype.recipe.reference import load_reference
from ectype.report.faults import faults_part

FAULTS = ("sharded-twice", "held-out-leaked", "norm-per-head", "gate-up-swapped", "epsilon")
SMALL = (
    "model.d_model=16", "model.head_dim=4", "model.d_ffn=24", "model.n_layers=2", "model.window_pattern=[32, null]",
    "duration_steps=12", "landmarks=[0, 6, 12]", "schedule.warmup_steps=2",
)  # fmt: skip
HELD_OUT = {"held-out loss", "loss by domain", "token KL", "top-1 agreement"}


def _little_text(folder: Path) -> Path:
    """A reference with the first windows of two of the bundled domains."""
    bundle = package_path("package:demo/bundle")
    domains = {}
    for name in ("kjv", "pycode"):
        tokens = np.fromfile(bundle / "tokens" / "heldout" / f"{name}.npy", np.uint16)[: 24 * 128]
        domains[name] = folder / f"{name}.npy"
        tokens.tofile(domains[name])
    found = load_reference(bundle)
    held_out = found.held_out.model_copy(update={"domains": domains})
    write_json(folder / "reference.json", found.model_copy(update={"held_out": held_out}).model_dump(mode="json"))
    return folder


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Details]:
    """All runs, made in this process, which saves a start of the program for each."""
    out = tmp_path_factory.mktemp("faults")
    chosen = details(("replay",), FAULTS, 1, (*SMALL, f"inputs.reference={_little_text(out)}"))
    write_json(out / DETAILS, chosen.model_dump(mode="json"))
    for stage in stages(chosen):
        for run in stage:
            run.folder(out).parent.mkdir(exist_ok=True)
            main(out, run.name)
    return out, chosen


@pytest.fixture(scope="module")
def made(finished: tuple[Path, Details]) -> FaultMatrix:
    """The matrix of those runs."""
    out, chosen = finished
    return fault_matrix(out, chosen, jobs=1)


def _row(made: FaultMatrix, name: str) -> Row:
    return next(row for row in made.regimes[0].faults if row.name == name)


@pytest.mark.parametrize("name", FAULTS)
def test_each_fault_is_caught_by_more_than_the_training_loss(made, name) -> None:
    row = _row(made, name)
    assert row.weights_differ
    assert set(row.caught_by) & (HELD_OUT | {"data order"})
    assert row.verdict == "not the same model"


def test_an_honest_run_raises_no_alarm(made) -> None:
    (honest,) = made.regimes[0].honest
    assert honest.caught_by == ()
    assert honest.verdict == "same model"
    assert sound(made)
    assert missed(made) == []


def test_the_step_of_a_catch_is_where_the_fault_begins_to_show(made) -> None:
    sharded, swapped = _row(made, "sharded-twice").findings, _row(made, "gate-up-swapped").findings
    assert (sharded["data order"].step, sharded["exactly once"].step) == (1, 1)
    assert {swapped[name].step for name in HELD_OUT if swapped[name].said == "broken"} <= {6, 12}
    assert swapped["data order"].said == swapped["exactly once"].said == "holds"
    assert _row(made, "epsilon").findings["token KL"].step == 6


def test_checks_that_refuse_a_fault_before_training_are_named(made) -> None:
    assert {row.name: row.refused_by for row in made.regimes[0].faults if row.refused_by} == {
        "held-out-leaked": "held-out text in training", "norm-per-head": "weights of another model",
    }  # fmt: skip


def test_leaked_text_keeps_the_order_and_lowers_the_loss_on_it(made) -> None:
    row = _row(made, "held-out-leaked")
    assert row.findings["data order"].said == "holds"
    assert row.held_out_loss_last is not None
    assert row.held_out_loss_last < 0


def test_sharding_twice_leaves_more_than_a_third_unread(made) -> None:
    reading = _row(made, "sharded-twice").reading
    assert reading is not None
    assert reading.unread / reading.windows == pytest.approx(0.362, abs=0.01)
    assert reading.read_again / reading.windows == pytest.approx(0.265, abs=0.01)


def test_the_table_names_every_measure_and_every_fault(made) -> None:
    text = "\n".join(text_lines(made))
    assert all(f"| {row.title} |" in text for row in made.regimes[0].faults)
    assert all(f"| {measure} |" in text for measure in made.regimes[0].measures)
    assert set(MEASURES) - set(made.regimes[0].measures) == {"loss by set"}
    assert "1 honest run, false alarms: none (1 'same model')." in text


def test_the_report_shows_when_each_measure_called_a_fault_broken(made) -> None:
    markup = faults_part(made).markup
    assert "5 of 5 faults are caught within 12 updates. Of 1 honest runs, 0 are called broken." in markup
    assert markup.count('scope="row"') == 2 * len(FAULTS)


def test_a_fault_is_told_in_short_by_what_catches_it_first(made) -> None:
    first, others = in_short(_row(made, "sharded-twice"))
    assert first.startswith("1: ")
    assert others == f"{len(_row(made, 'sharded-twice').caught_by) - 1} other measures"
    quiet = {"token KL": Finding(said="unclear")}
    assert in_short(_row(made, "epsilon").model_copy(update={"findings": quiet})) == ("not caught", "")


def test_the_page_names_every_fault() -> None:
    page = (Path(__file__).parents[2] / "docs" / "faults.md").read_text()
    named = dict(re.findall(r"^\| `([a-z0-9-]+)` \| ([^|]+) \|", page, re.MULTILINE))
    assert named == {fault.name: fault.title for fault in ALL_FAULTS}


def test_a_missed_fault_and_a_false_alarm_are_told(made) -> None:
    (regime,) = made.regimes
    quiet = {name: Finding(said="holds") for name in MEASURES} | {"training loss": Finding(said="broken", step=3)}
    faults = (regime.faults[0].model_copy(update={"findings": quiet}), *regime.faults[1:])
    blind = made.model_copy(update={"regimes": (regime.model_copy(update={"faults": faults}),)})
    assert missed(blind) == ["sharded-twice"]
    assert not sound(blind)
    alarm = regime.honest[0].model_copy(update={"findings": {"token KL": Finding(said="broken", step=6)}})
    loud = made.model_copy(update={"regimes": (regime.model_copy(update={"honest": (alarm,)}),)})
    assert not sound(loud)
    assert "1 honest run, false alarms: honest run 1 by token KL" in "\n".join(text_lines(loud))


def test_a_fault_that_changes_no_bit_counts_as_not_made(made) -> None:
    (regime,) = made.regimes
    faults = (regime.faults[0].model_copy(update={"weights_differ": False}), *regime.faults[1:])
    idle = made.model_copy(update={"regimes": (regime.model_copy(update={"faults": faults}),)})
    assert not sound(idle)
    assert "Changed no bit, and so was not made: data sharded twice." in "\n".join(text_lines(idle))
    assert "was not made: data sharded twice" in faults_part(idle).markup


def test_every_criterion_has_its_column() -> None:
    assert set(MEASURE_OF) == {*held_out_criteria.NAMES, *trajectory_criteria.NAMES}
    assert {*MEASURE_OF.values(), READ_ONCE} == set(MEASURES)


def test_a_matrix_is_read_back_as_it_was_written(made, tmp_path) -> None:
    write_matrix(tmp_path, made)
    assert read_matrix(tmp_path) == made


def test_finished_runs_are_not_made_again(finished, monkeypatch) -> None:
    out, chosen = finished
    monkeypatch.setattr(module.subprocess, "Popen", None)
    assert fault_matrix(out, chosen, jobs=1).regimes == read_matrix(out).regimes


def test_a_folder_of_another_matrix_is_refused(tmp_path) -> None:
    write_json(tmp_path / DETAILS, details(("replay",), (), 0, SMALL).model_dump(mode="json"))
    with pytest.raises(EctypeError, match="name another folder"):
        fault_matrix(tmp_path, details(("replay",), (), 0, ()), jobs=1)


@pytest.mark.parametrize("other", [{"ectype": "0.0.1"}, {"recipe_hashes": {"replay": "f" * 64}}])
def test_rows_of_another_version_or_recipe_are_refused(other, tmp_path) -> None:
    chosen = details(("replay",), (), 0, SMALL)
    write_json(tmp_path / DETAILS, chosen.model_copy(update=other).model_dump(mode="json"))
    with pytest.raises(EctypeError, match="name another folder"):
        fault_matrix(tmp_path, chosen, jobs=1)


def test_a_process_of_an_earlier_call_is_not_run_into(tmp_path) -> None:
    chosen = details(("replay",), ("epsilon",), 0, SMALL)
    write_json(tmp_path / DETAILS, chosen.model_dump(mode="json"))
    run = Run("replay", "fault", "epsilon")
    kept = run.folder(tmp_path) / "kept"
    kept.mkdir(parents=True)
    with (
        lock(run.folder(tmp_path).with_suffix(".lock")),
        pytest.raises(EctypeError, match=r"replay/fault-epsilon of .* is being made by a process of an earlier call"),
    ):
        main(tmp_path, run.name)
    assert kept.is_dir()


def test_a_run_that_fails_is_named_with_the_end_of_its_log(tmp_path, monkeypatch) -> None:
    program = tmp_path / "python"
    program.write_text("#!/bin/sh\necho it broke here >&2\nexit 3\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    with pytest.raises(EctypeError, match=r"run replay/reference ended with exit code 3(.|\n)*it broke here"):
        fault_matrix(tmp_path / "out", details(("replay",), ("epsilon",), 0, SMALL), jobs=1)


@pytest.mark.parametrize(("given", "said"), [(["--fault", "epsilonn"], "epsilon"), (["--regime", "rerun"], "re-run")])
def test_unknown_names_end_with_two_and_the_nearest_one(given, said, tmp_path) -> None:
    from typer.testing import CliRunner

    result = CliRunner().invoke(app, ["faults", str(tmp_path / "out"), *given])
    assert result.exit_code == 2
    assert said in result.output
    assert not (tmp_path / "out").exists()


def test_a_folder_that_cannot_be_made_ends_with_two(tmp_path) -> None:
    from typer.testing import CliRunner

    (tmp_path / "file").touch()
    result = CliRunner().invoke(app, ["faults", str(tmp_path / "file" / "sub"), "--json"])
    assert result.exit_code == 2
    assert "Not a directory" in json.loads(result.stdout)["error"]["found"]


@pytest.mark.long
def test_the_verb_makes_the_matrix_in_processes_of_their_own(tmp_path) -> None:
    from typer.testing import CliRunner

    arguments = ["faults", str(tmp_path), "--regime", "replay", "--fault", "epsilon", "--honest", "1", "--json"]
    result = CliRunner().invoke(app, [*arguments, *(part for item in SMALL for part in ("--set", item))])
    assert result.exit_code == 0, result.output
    found = FaultMatrix.model_validate(json.loads(result.stdout))
    assert [row.name for row in found.regimes[0].faults] == ["epsilon"]
    assert Path(tmp_path / "faults.json").is_file()
