"""Whole comparisons on copies of the bundled run, through the runner and the command line."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from ectype.cli.main import app
from ectype.compare.inputs import consumed_digests, reference_digests
from ectype.compare.noise import read_noise, write_noise
from ectype.compare.record import read_verdict
from ectype.compare.runner import compare_run
from ectype.compare.twins import finished_twins, no_noise, reference_noise, twins_noise
from ectype.errors import EctypeError
from ectype.evaluate.engine import Settings
from ectype.evaluate.runner import evaluate_run
from ectype.recipe.load import load_recipe, recipe_hash, to_yaml
from ectype.recipe.placement import Placement
from ectype.recipe.reference import Reference
from ectype.recipe.spec import HandOver
from ectype.run.manifest import HandOverRecord, Manifest, Perturbation, write_manifest
from ectype.run.metrics import read_metrics
from ectype.run.paths import RunFolder

Copy = Callable[..., Path]
Imported = Callable[[int], Path]
FAST = Settings(batch_windows=8)


def add_twins(run: Path, copy: Copy, count: int, make_manifest: Callable[..., Manifest]) -> None:
    """Twins that did exactly what the run did: a machine without any noise."""
    write_manifest(run, make_manifest())
    for number in range(1, count + 1):
        twin = copy(f"{run.name}/twins/{number}")
        write_manifest(twin, make_manifest(perturbation=Perturbation(scale=1e-6, seed=number)))


def taken_over(step: int) -> HandOverRecord:
    """What an extension's manifest says that goes on from `step`."""
    return HandOverRecord(
        given="source", source="source/checkpoints", source_step=step, source_recipe_hash="a", source_ledger_digest="b",
        switches=HandOver(schedule="keep", data_position="keep"), changed={}, first_step=step, schedule_offset_steps=0,
    )  # fmt: skip


def judged(run: Path, reference: Reference, count: int = 0) -> dict[str, Any]:
    evaluate_run(run, reference, settings=FAST)
    noise = twins_noise(run, reference, range(1, count + 1)) if count else no_noise()
    verdict, record = compare_run(run, reference, noise)
    assert read_verdict(run) == record
    assert record.verdict == verdict.answer
    return json.loads((run / "verdict.json").read_text())


def test_a_perfect_copy_is_the_same_model(copy: Copy, reference: Reference) -> None:
    record = judged(copy(), reference)
    assert record["verdict"] == "same model"
    assert {criterion["outcome"] for criterion in record["criteria"]} == {"holds"}
    assert {criterion["name"] for criterion in record["criteria"]} >= {"held-out loss", "token KL", "data order"}
    assert record["overlay"]["largest"] == 0.0
    assert record["landmarks"] == {"due": [0, 640], "evaluated": [0, 640], "stale": [], "missing": []}


def test_swapped_weights_are_not_the_same_model(
    copy: Copy, reference: Reference, make_manifest: Callable[..., Manifest]
) -> None:
    run = copy(final_weights=400)
    assert judged(run, reference)["verdict"] == "not enough evidence"
    add_twins(run, copy, 3, make_manifest)
    for number in (1, 2, 3):
        checkpoint = RunFolder(run).twin(number).checkpoint(640)
        checkpoint.unlink()
        checkpoint.symlink_to(run / "checkpoints" / "00000640")
    record = judged(run, reference, 3)
    assert record["verdict"] == "not the same model"
    assert "at step 640" in record["decided_by"][0]
    assert "held-out loss" in record["decided_by"][0]
    assert record["horizon"]["first_step_beyond"] is None
    assert record["horizon"]["twins"] == 3


def test_a_lost_landmark_is_not_enough_evidence(copy: Copy, reference: Reference) -> None:
    run = copy(evaluated=False)
    (run / "checkpoints" / "00000640").unlink()
    record = judged(run, reference)
    assert record["verdict"] == "not enough evidence"
    assert record["landmarks"]["missing"] == [640]


def test_an_evaluation_outlives_its_checkpoint(copy: Copy, reference: Reference) -> None:
    run = copy()
    (run / "checkpoints" / "00000640").unlink()
    _, record = compare_run(run, reference, no_noise())
    assert (record.verdict, record.landmarks.missing) == ("same model", ())


def test_an_evaluation_of_other_weights_does_not_count(copy: Copy, reference: Reference, imported: Imported) -> None:
    run = copy()
    evaluate_run(run, reference, settings=FAST)
    checkpoint = run / "checkpoints" / "00000640"
    checkpoint.unlink()
    checkpoint.symlink_to(imported(400))
    _, record = compare_run(run, reference, no_noise())
    assert record.verdict == "not enough evidence"
    assert record.landmarks.stale == (640,)
    assert "the record of landmark 640 does not count: our weights changed since it was measured" in record.reason


@pytest.mark.parametrize(
    ("section", "field", "value"),
    [
        ("protocol", "window_tokens", 17),
        ("protocol", "kl", "another"),
        ("inputs", "tokenizer", None),
        ("inputs", "held_out", {}),
    ],
)
def test_an_evaluation_of_other_text_or_protocol_does_not_count(
    copy: Copy, reference: Reference, section: str, field: str, value: object
) -> None:
    run = copy()
    evaluate_run(run, reference, settings=FAST)
    path = RunFolder(run).evaluation(640)
    stored = json.loads(path.read_text())
    stored[section][field] = value
    path.write_text(json.dumps(stored))
    _, record = compare_run(run, reference, no_noise())
    assert record.verdict == "not enough evidence"
    assert record.landmarks.stale == (640,)


def test_another_data_order_is_not_the_same_run(
    copy: Copy, reference: Reference, make_manifest: Callable[..., Manifest]
) -> None:
    run = copy(swap_batch=17)
    add_twins(run, copy, 1, make_manifest)
    record = judged(run, reference, 1)
    assert record["verdict"] == "not the same model"
    assert record["decided_by"] == ["data order"]
    assert "step 17" in record["reason"]


def test_digests_of_the_run_and_of_the_reference_agree(copy: Copy, reference: Reference) -> None:
    run = copy()
    found, expected = consumed_digests(run, 8), reference_digests(reference)
    assert found is not None
    assert found.keys() == expected.keys()
    assert all((found[step] == expected[step]).all() for step in found)
    assert consumed_digests(run, 9) == {}
    shutil.rmtree(run / "ledger")
    assert consumed_digests(run, 8) is None


def test_metrics_of_rolled_back_steps_and_a_torn_line_do_not_count(tmp_path: Path) -> None:
    rows = [{"step": 1, "loss": 3.0}, {"step": 2, "loss": 2.0}, {"step": 2, "loss": 1.0, "skipped": True}]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (tmp_path / "metrics.jsonl").write_text(text + '{"step": 3, "lo')
    log = read_metrics(tmp_path)
    assert (log.steps.tolist(), log.loss.tolist()) == ([1, 2], [3.0, 1.0])
    (tmp_path / "metrics.jsonl").write_text('{"step": 3, "lo\n' + text)
    with pytest.raises(EctypeError, match="line 1"):
        read_metrics(tmp_path)
    (tmp_path / "metrics.jsonl").write_text("")
    with pytest.raises(EctypeError, match="no rows"):
        read_metrics(tmp_path)


def test_noise_of_the_reference_is_used_for_its_own_recipe_only(
    copy: Copy, reference: Reference, tmp_path: Path, make_manifest: Callable[..., Manifest]
) -> None:
    run = copy()
    add_twins(run, copy, 2, make_manifest)
    evaluate_run(run, reference, settings=FAST)
    write_noise(tmp_path / "noise.json", twins_noise(run, reference, [1, 2]).record)  # type: ignore[arg-type]
    named = reference.model_copy(update={"noise": tmp_path / "noise.json"})
    found = reference_noise(named, load_recipe("toy-calm"))
    assert found is not None
    assert (found.is_of_this_run, found.record) == (False, read_noise(tmp_path / "noise.json"))
    assert reference_noise(named, load_recipe("toy-calm", ["schedule.peak=1e-3"])) is None
    assert reference_noise(reference, load_recipe("toy-calm")) is None


def test_a_twin_of_another_recipe_is_refused_and_a_short_one_is_not_finished(
    copy: Copy, make_manifest: Callable[..., Manifest]
) -> None:
    run = copy()
    add_twins(run, copy, 2, make_manifest)
    recipe = load_recipe("toy-calm")
    assert finished_twins(run, recipe) == [1, 2]
    metrics = RunFolder(run).twin(2).metrics
    metrics.write_text("".join(metrics.read_text().splitlines(keepends=True)[:600]))
    assert finished_twins(run, recipe) == [1]
    with pytest.raises(EctypeError, match="another recipe"):
        finished_twins(run, load_recipe("toy-calm", ["schedule.peak=1e-3"]))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"perturbation": None}, "no twin: its step-0 weights were changed by none"),
        ({"perturbation": Perturbation(scale=1e-2, seed=2)}, "changed by 0.01 with seed 2"),
        ({"perturbation": Perturbation(scale=1e-6, seed=1)}, "changed by 1e-06 with seed 1"),
        ({"index_fingerprint": "f" * 64}, "read the index ffffffffffffffff"),
        ({"hand_over": taken_over(80)}, "took over other state"),
    ],
)
def test_what_is_no_twin_of_the_run_is_no_noise(
    copy: Copy, make_manifest: Callable[..., Manifest], change: dict[str, Any], message: str
) -> None:
    """A run from quite other weights, or on other data, would make room for any difference."""
    run = copy()
    add_twins(run, copy, 2, make_manifest)
    twin = make_manifest(**{"perturbation": Perturbation(scale=1e-6, seed=2)} | change)
    write_manifest(RunFolder(run).twin(2).path, twin)
    with pytest.raises(EctypeError, match=message):
        finished_twins(run, load_recipe("toy-calm"))


@pytest.mark.parametrize("series", ["z_loss", "grad_norm", "learning_rate", "skipped"])
@pytest.mark.parametrize("rows", [1, 640])
def test_a_log_that_leaves_a_series_out_is_not_enough_evidence(
    copy: Copy, reference: Reference, series: str, rows: int
) -> None:
    run = copy()
    lines = RunFolder(run).metrics.read_text().splitlines()
    bare = [json.dumps({name: value for name, value in json.loads(line).items() if name != series}) for line in lines]
    RunFolder(run).metrics.write_text("\n".join(bare[:rows] + lines[rows:]) + "\n")
    record = judged(run, reference)
    assert record["verdict"] == "not enough evidence"
    assert len(record["decided_by"]) == 1


def test_a_recipe_that_leaves_out_the_last_landmark_gets_no_verdict_on_the_run(
    copy: Copy, reference: Reference
) -> None:
    run = copy()
    changes = ["landmarks=[0]", "evaluation.bootstrap_samples=300"]
    (run / "recipe.yaml").write_text(to_yaml(load_recipe("toy-calm", changes)))
    RunFolder(run).evaluation(640).unlink()
    record = judged(run, reference)
    assert record["verdict"] == "not enough evidence"
    assert record["landmarks"]["missing"] == [640]
    assert "no held-out evidence at landmark 640" in record["reason"]


def test_a_stage_that_counts_on_is_compared_from_its_first_step(
    copy: Copy, reference: Reference, make_manifest: Callable[..., Manifest]
) -> None:
    """The reference holds the whole run, steps 1 to 640 and landmark 0; the stage has those after 80 alone."""
    run = copy()
    write_manifest(run, make_manifest(hand_over=taken_over(80)))
    lines = RunFolder(run).metrics.read_text().splitlines()
    RunFolder(run).metrics.write_text("\n".join(lines[80:]) + "\n")
    record = judged(run, reference)
    assert record["verdict"] == "same model"
    assert (record["landmarks"]["due"], record["overlay"]["steps_compared"]) == ([640], 560)
    write_manifest(run, make_manifest(hand_over=taken_over(79)))
    assert judged(run, reference)["verdict"] == "not enough evidence"


def command(*arguments: Any) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_the_command_line_ends_in_the_verdicts_exit_code(copy: Copy, reference_folder: Path) -> None:
    run = copy(evaluated=False)
    given = ("--reference", reference_folder)
    assert command("compare", run, *given, "--no-twins").exit_code == 3
    done = command("evaluate", run, *given, "--json")
    assert done.exit_code == 0
    result = json.loads(done.stdout)
    assert (list(result["landmarks"]), result["missing"]) == (["0", "640"], [])
    done = command("compare", run, *given, "--no-twins", "--json")
    assert done.exit_code == 0
    assert json.loads(done.stdout)["verdict"] == "same model"
    done = command("compare", run, *given, "--no-twins")
    assert "same model: all" in done.stdout
    assert command("compare", copy("other", swap_batch=3), *given, "--no-twins").exit_code == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("evaluate", "RUN", "--landmark", 7), "landmark 7"),
        (("evaluate", "RUN", "--compute", "float16"), "float16"),
        (("evaluate", "nowhere"), "recipe.yaml"),
        (("compare", "RUN", "--no-twins", "--write-noise", "noise.json"), "no noise was measured"),
        (("compare", "RUN", "--reference", "nowhere"), "no file"),
    ],
)
def test_bad_input_ends_in_exit_2(copy: Copy, reference_folder: Path, arguments: tuple, message: str) -> None:
    run = copy()
    words = [run if word == "RUN" else word for word in arguments]
    if "--reference" not in words:
        words += ["--reference", reference_folder]
    done = command(*words)
    assert done.exit_code == 2
    assert message in done.stderr
    assert not (run / "verdict.json").exists()


def test_missing_twins_are_trained_where_the_run_was(
    copy: Copy, reference_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    make_manifest: Callable[..., Manifest],
) -> None:  # fmt: skip
    run = copy()
    given = ("--reference", reference_folder)
    write_manifest(run, make_manifest(placement=Placement(name="here", devices=2)))
    assert command("evaluate", run, *given).exit_code == 0
    asked = []

    def train_run(recipe: Any, placement: Any, run_dir: Path, *, perturb: Perturbation, **_: Any) -> None:
        asked.append((recipe.name, placement.devices, run_dir, perturb))
        twin = copy(str(run_dir.relative_to(tmp_path)))
        write_manifest(twin, make_manifest(perturbation=perturb))

    monkeypatch.setattr("ectype.train.loop.train_run", train_run)
    done = command("compare", run, *given, "--write-noise", tmp_path / "noise.json")
    assert done.exit_code == 0
    assert asked == [
        ("toy-calm", 2, RunFolder(run).twin(seed).path, Perturbation(scale=1e-6, seed=seed)) for seed in (1, 2, 3)
    ]
    assert read_noise(tmp_path / "noise.json").twins == 3
    assert command("compare", run, *given).exit_code == 0
    assert command("compare", run, *given, "--twins", 4).exit_code == 0
    assert [change.seed for *_, change in asked] == [1, 2, 3, 4]


def test_no_twin_is_trained_for_a_run_that_was_never_evaluated(
    copy: Copy, reference_folder: Path, monkeypatch: pytest.MonkeyPatch, make_manifest: Callable[..., Manifest]
) -> None:
    run = copy(evaluated=False)
    write_manifest(run, make_manifest())
    monkeypatch.setattr("ectype.train.loop.train_run", lambda *_, **__: pytest.fail("a twin was trained"))
    for twins in ((), ("--twins", 2)):
        done = command("compare", run, "--reference", reference_folder, *twins)
        assert done.exit_code == 2
        assert "no evaluation of a landmark" in done.stderr
        assert "ectype evaluate" in done.stderr
    assert not RunFolder(run).verdict.exists()


def test_twins_of_a_stage_begin_from_the_checkpoint_that_it_took_over(
    copy: Copy, reference_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    make_manifest: Callable[..., Manifest],
) -> None:  # fmt: skip
    run, given = copy(), ("--reference", reference_folder)
    write_manifest(run, make_manifest(hand_over=taken_over(0)))
    assert command("evaluate", run, *given).exit_code == 0
    sources = []

    def train_run(recipe: Any, placement: Any, run_dir: Path, *, perturb: Perturbation, **_: Any) -> None:
        sources.append(recipe.inputs.source)
        twin = copy(str(run_dir.relative_to(tmp_path)))
        write_manifest(twin, make_manifest(perturbation=perturb, hand_over=taken_over(0)))

    monkeypatch.setattr("ectype.train.loop.train_run", train_run)
    assert command("compare", run, *given, "--twins", 1).exit_code == 0
    assert [Path(source).parts[-2:] for source in sources] == [("source", "checkpoints")]


def test_long_runs_are_not_trained_again_unasked(copy: Copy, reference_folder: Path) -> None:
    run = copy()
    rows = [json.loads(line) | {"step_seconds": 2.0} for line in (run / "metrics.jsonl").read_text().splitlines()]
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert command("evaluate", run, "--reference", reference_folder).exit_code == 0
    done = command("compare", run, "--reference", reference_folder)
    assert done.exit_code == 0
    assert "no twins were trained" in " ".join(done.stdout.split())


def add_reseeded_twins(run: Path, copy: Copy, count: int, make_manifest: Callable[..., Manifest]) -> None:
    """Twins whose recipes have other data seeds and whose checkpoints are the run's."""
    write_manifest(run, make_manifest())
    for number in range(1, count + 1):
        twin = copy(f"{run.name}/twins/seed-{number}")
        changes = ["landmarks=[0,640]", "evaluation.bootstrap_samples=300", f"data.order.seed={34521 + number}"]
        recipe = load_recipe("toy-calm", changes)
        (twin / "recipe.yaml").write_text(to_yaml(recipe))
        write_manifest(twin, make_manifest(recipe_hash=recipe_hash(recipe)))


def test_twins_of_other_data_seeds_judge_a_reference_that_read_another_order(
    copy: Copy, reference: Reference, make_manifest: Callable[..., Manifest]
) -> None:
    """The run read one batch in another order: with its own seed that is a broken criterion, here it is no question."""
    run, recipe = copy(swap_batch=3), load_recipe("toy-calm")
    evaluate_run(run, reference, settings=FAST)
    add_reseeded_twins(run, copy, 3, make_manifest)
    assert (finished_twins(run, recipe), finished_twins(run, recipe, reseeded=True)) == ([], [1, 2, 3])
    noise = twins_noise(run, reference, [1, 2, 3], reseeded=True)
    assert noise.record is not None
    assert (noise.record.reseeded, noise.record.perturbation) == (True, 0.0)
    verdict, record = compare_run(run, reference, noise)
    assert "data order" not in {criterion.name for criterion in record.criteria}
    assert record.horizon.first_step_beyond == 1
    assert "3 twins of this run that read the data in other orders" in record.horizon.text
    assert record.horizon.noise_source == "3 twins of this run with other data seeds"
    assert verdict.answer == "same model"
    assert compare_run(run, reference, no_noise())[0].answer == "not the same model"


def test_a_twin_of_another_data_seed_than_its_folder_says_is_refused(
    copy: Copy, make_manifest: Callable[..., Manifest]
) -> None:
    run = copy()
    add_reseeded_twins(run, copy, 2, make_manifest)
    twins = RunFolder(run).twins
    (twins / "seed-2").rename(twins / "seed-3")
    with pytest.raises(EctypeError, match="seed-3 ran another recipe"):
        finished_twins(run, load_recipe("toy-calm"), reseeded=True)


def test_twins_of_other_data_seeds_are_trained_when_asked_for(
    copy: Copy, reference_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    make_manifest: Callable[..., Manifest],
) -> None:  # fmt: skip
    run, given = copy(), ("--reference", reference_folder)
    write_manifest(run, make_manifest())
    assert command("evaluate", run, *given).exit_code == 0
    asked = []

    def train_run(recipe: Any, placement: Any, run_dir: Path, *, perturb: Perturbation | None, **_: Any) -> None:
        asked.append((recipe.data.order.seed, run_dir.name, perturb))
        twin = copy(str(run_dir.relative_to(tmp_path)))
        (twin / "recipe.yaml").write_text(to_yaml(recipe))
        write_manifest(twin, make_manifest(recipe_hash=recipe_hash(recipe)))

    monkeypatch.setattr("ectype.train.loop.train_run", train_run)
    done = command("compare", run, *given, "--reseeded", "--twins", 2, "--json")
    assert done.exit_code == 0, done.output
    assert asked == [(34522, "seed-1", None), (34523, "seed-2", None)]
    assert json.loads(done.stdout)["horizon"]["twins"] == 2
