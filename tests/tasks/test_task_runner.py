"""`ectype evaluate --tasks` and the record that it writes."""

import json
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from ectype.cli.main import app
from ectype.errors import EctypeError
from ectype.recipe.load import load_recipe, to_yaml
from ectype.run.paths import RunFolder
from ectype.tasks.presets import PRESETS, chosen_tasks
from ectype.tasks.record import Metric, TaskEvaluation, TaskProtocol, TaskResult, merged, read_tasks, write_tasks
from ectype.tasks.runner import task_results

PROTOCOL = TaskProtocol(
    harness="lm_eval 0", ectype="0", weights_sha256="a", tokenizer_sha256="b", max_length=4, prefix_id=0,
    compute_dtype="float32", vocabulary_rows=8, limit=None, fewshot_seed=1,
)  # fmt: skip


def _record(value, protocol=PROTOCOL, **tasks):
    metric = Metric(value=value, standard_error=None, higher_is_better=True)
    result = TaskResult(version="1", definition_sha256=None, shots=0, items=1, metrics={"acc": metric})
    return TaskEvaluation(step=4, protocol=protocol, tasks=dict.fromkeys(tasks, result))


def test_the_preset_names_eight_tasks_with_their_shots():
    assert PRESETS["eight"] == {"mmlu": 5} | dict.fromkeys(
        ["hellaswag", "arc_easy", "arc_challenge", "piqa", "winogrande", "boolq", "openbookqa"], 0
    )
    assert chosen_tasks(["eight", "mine"], None) == {5: ["mmlu"], 0: list(PRESETS["eight"])[1:], None: ["mine"]}
    assert chosen_tasks(["eight", "piqa"], 2) == {2: list(PRESETS["eight"])}


def test_results_of_one_protocol_stay_together():
    old, new = _record(0.1, a=1, b=1), _record(0.2, b=1, c=1)
    values = {name: result.metrics["acc"].value for name, result in merged(old, new).tasks.items()}
    assert values == {"a": 0.1, "b": 0.2, "c": 0.2}
    other = _record(0.2, PROTOCOL.model_copy(update={"limit": 3}), c=1)
    assert merged(old, other) == other
    assert merged(None, new) == new


def test_a_record_is_read_back_strictly(tmp_path):
    path = tmp_path / "tasks.json"
    write_tasks(path, _record(0.5, a=1))
    assert read_tasks(path) == _record(0.5, a=1)
    path.write_text(path.read_text().replace('"items"', '"item"'))
    with pytest.raises(EctypeError, match=r"tasks\.a\.item"):
        read_tasks(path)


def test_groups_count_the_items_of_their_tasks():
    """As lm-evaluation-harness gives them; a metric without a standard error says N/A."""
    values = {"alias": "x", "acc,none": 0.5, "acc_stderr,none": 0.1, "exact,strict": 0.25, "exact_stderr,strict": "N/A"}
    found = {
        "results": {"both": {"acc,none": 0.6, "acc_stderr,none": 0.2}, "x": values, "y": values, "tag": {"alias": "t"}},
        "group_subtasks": {"both": ["x", "y"], "tag": ["x"]},
        "configs": {"x": {"task": "x", "f": len}, "y": {"task": "y"}}, "versions": {"both": 2, "x": 1.0, "y": 1.0},
        "n-shot": {"x": 5, "y": 0}, "higher_is_better": {"x": {"acc": True, "exact": True}},
        "n-samples": {"x": {"original": 9, "effective": 4}, "y": {"original": 9, "effective": 3}},
    }  # fmt: skip
    results = task_results(found)
    assert set(results) == {"both", "x", "y"}
    assert (results["both"].items, results["both"].shots, results["x"].items, results["x"].shots) == (7, None, 4, 5)
    assert results["x"].metrics["acc"] == Metric(value=0.5, standard_error=0.1, higher_is_better=True)
    assert results["x"].metrics["exact,strict"] == Metric(value=0.25, standard_error=None, higher_is_better=True)
    assert results["x"].definition_sha256 != results["y"].definition_sha256


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--tasks", "piqa"], "--tasks without --tokenizer"),
        (["--limit", "3"], "--limit without --tasks"),
        (["--tasks", "x", "--reference", "r"], "--reference with --tasks"),
        (["--tasks", "x", "--tokenizer", "t.json", "--landmark", "4"], "--landmark for"),
    ],
)
def test_options_that_do_not_fit_are_refused(words, named, tmp_path):
    result = CliRunner().invoke(app, ["evaluate", str(tmp_path), *words])
    assert (result.exit_code, named in result.stderr) == (2, True)


@pytest.mark.reference
def test_tasks_of_a_run_are_recorded_and_added_to(tmp_path, imported, toy_tokenizer, offline_tasks):
    pytest.importorskip("lm_eval")
    run = RunFolder(tmp_path)
    run.checkpoints.mkdir()
    run.recipe.write_text(to_yaml(load_recipe("toy-calm")))
    run.checkpoint(640).symlink_to(imported(640), target_is_directory=True)
    fixed = ["--tokenizer", str(toy_tokenizer), "--task-path", str(offline_tasks), "--limit", "2", "--json"]
    fixed += ["--max-length", "64"]
    for words in (["--tasks", "fx_piqa"], ["--tasks", "fx_openbookqa,fx_arc_easy", "--shots", "1"]):
        result = CliRunner().invoke(app, ["evaluate", str(tmp_path), *words, *fixed])
        assert result.exit_code == 0, result.stderr
    record = read_tasks(run.task_evaluation(640))
    assert json.loads(result.stdout)["evaluations"]["640"] == record.model_dump(mode="json")
    assert run.task_evaluations() == [run.task_evaluation(640)]
    assert run.evaluations() == []
    assert {name: (task.shots, task.items, task.version) for name, task in record.tasks.items()} == {
        "fx_piqa": (0, 2, "1.0"), "fx_openbookqa": (1, 2, "1.0"), "fx_arc_easy": (1, 2, "1.0"),
    }  # fmt: skip
    accuracy = record.tasks["fx_piqa"].metrics["acc"]
    assert 0 <= (accuracy.value or 0) <= 1
    assert accuracy.standard_error is not None
    assert (record.step, record.protocol.max_length, record.protocol.limit) == (640, 64, 2)
    assert record.protocol.harness.startswith("lm_eval 0.")


@pytest.mark.reference
@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--tasks", "fx_piqua"], "unknown task fx_piqua"),
        (["--tasks", "fx_piqa", "--task-path", "nowhere"], "no folder nowhere"),
        (["--tasks", "piqa"], "task items on this machine or within its reach"),
    ],
)
def test_tasks_that_can_not_be_run_are_named(words, named, toy, toy_tokenizer, offline_tasks):
    pytest.importorskip("lm_eval")
    fixed = ["--tokenizer", str(toy_tokenizer), "--task-path", str(offline_tasks)]
    result = CliRunner().invoke(app, ["evaluate", str(toy), *fixed, *words])
    assert (result.exit_code, named in result.stderr) == (2, True), result.stderr


@pytest.mark.reference
def test_the_harness_own_command_knows_the_model(tmp_path, toy, toy_tokenizer, offline_tasks):
    pytest.importorskip("lm_eval")
    command = [
        sys.executable, "-m", "ectype.tasks", "run", "--model", "ectype", "--model_args",
        f"checkpoint={toy},tokenizer={toy_tokenizer}", "--tasks", "fx_piqa", "--include_path", str(offline_tasks),
        "--limit", "2", "--batch_size", "2", "--output_path", str(tmp_path / "out.json"),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    [written] = tmp_path.rglob("*.json")
    results = json.loads(written.read_text())
    assert results["n-samples"]["fx_piqa"]["effective"] == 2
    assert results["config"]["model"] == "ectype"
