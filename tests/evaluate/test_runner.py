"""Evaluation of whole landmarks: against OLMo-core's own numbers, and what is reused, refused and resumed."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from typer.testing import CliRunner

from ectype.artifacts import package_path
from ectype.cli.main import app
from ectype.errors import EctypeError
from ectype.evaluate.engine import Settings
from ectype.evaluate.held_out import load_held_out
from ectype.evaluate.landmarks import find_landmarks
from ectype.evaluate.record import read_evaluation
from ectype.evaluate.runner import default_settings, evaluate_pair, evaluate_run
from ectype.evaluate.sides import weights_sha256
from ectype.recipe.load import load_recipe
from ectype.recipe.placement import Placement
from ectype.recipe.reference import HeldOut, LandmarkWeights, Reference, load_reference
from ectype.run.manifest import Manifest, write_manifest
from ectype.run.paths import RunFolder

FEW = Settings(batch_windows=4, devices=1)


def tiny_text(reference: Reference, tmp_path: Path, windows: int = 5) -> Reference:
    """The reference with one short held-out domain, for tests that need no numbers."""
    path = tmp_path / "text.npy"
    np.fromfile(reference.held_out.domains["tz"], "<u2")[: 256 * windows + 9].tofile(path)
    held_out = HeldOut(dtype="uint16", domains={"tz": path})
    return reference.model_copy(update={"held_out": held_out})


@pytest.mark.parametrize(("name", "steps"), [("calm", (0, 640)), ("tiny", (40, 400))])
def test_losses_equal_those_that_olmo_core_and_transformers_computed(
    shared: Path, tmp_path: Path, name: str, steps: tuple[int, ...]
) -> None:
    folder, tiny = shared / "reference" / f"olmocore_{name}", shared / "reference" / "olmocore_tiny"
    domains = {domain: str(tiny / f"tokens/heldout/{domain}.npy") for domain in ("devil", "tz", "pycode")}
    weights = {
        str(step): {"weights": f"{folder}/hf/step{step}", "padded_rows": f"{folder}/padded_rows/step{step}.safetensors"}
        for step in steps
    }
    values = {"format": 1, "name": name, "framework": "OLMo-core", "landmarks": weights}
    (tmp_path / "reference.json").write_text(
        json.dumps(values | {"held_out": {"dtype": "uint16", "domains": domains}})
    )  # fmt: skip
    reference = load_reference(tmp_path)
    held_out = load_held_out(reference, 256, 1000)
    expected = {row["step"]: row for row in json.loads((folder / "heldout_losses.json").read_text())}
    for step in steps:
        side = reference.landmarks[step]
        [found] = evaluate_pair(step, side, side, [(held_out, tmp_path / f"{step}.json")], Settings(devices=1))
        for domain, evaluated in found.domains.items():
            summary, row = evaluated.summary, expected[step]
            assert summary.loss.ours == pytest.approx(row[f"{domain}/hf"], abs=1e-6)
            assert summary.loss.reference == pytest.approx(row[f"{domain}/hf"], abs=1e-6)
            assert summary.loss_all_rows.ours == pytest.approx(row[f"{domain}/core_padded_vocab"], abs=1e-6)
            assert summary.bits_per_byte.ours is None
        assert (found.overall.kl_max, found.overall.top1_agreement) == (0.0, 1.0)


def test_every_available_landmark_is_evaluated_and_the_lost_one_is_missing(
    copy_run: Path, reference: Reference, tmp_path: Path
) -> None:
    found = find_landmarks(copy_run, load_recipe("toy-calm"), reference)
    assert (found.due, found.missing) == ((0, 80, 240, 400, 640), (400,))
    results = evaluate_run(copy_run, tiny_text(reference, tmp_path), settings=FEW)
    assert list(results) == [0, 80, 240, 640]
    for step, evaluation in results.items():
        assert read_evaluation(RunFolder(copy_run).evaluation(step)) == evaluation
        # Heads of 1,000 and 1,024 rows round their products differently; nothing else does.
        assert (evaluation.overall.kl_max or 0.0) < 1e-11
        assert evaluation.overall.targets == 5 * 255
        assert evaluation.protocol.all_rows == (1000, 1024)


def test_a_record_is_reused_until_its_inputs_change(
    copy_run: Path, reference: Reference, tmp_path: Path, imported: Callable[[int], Path]
) -> None:
    small = tiny_text(reference, tmp_path)

    def written(changed: Reference) -> int:
        evaluate_run(copy_run, changed, landmarks=[80], settings=FEW)
        return RunFolder(copy_run).evaluation(80).stat().st_mtime_ns

    first = written(small)
    assert written(small) == first
    checkpoint = copy_run / "checkpoints" / "00000080"
    source = checkpoint.resolve()
    checkpoint.unlink()
    shutil.copytree(source, checkpoint)
    assert written(small) == first
    shutil.rmtree(checkpoint / "weights")
    shutil.copytree(imported(240) / "weights", checkpoint / "weights")
    assert (second := written(small)) > first
    assert (third := written(tiny_text(reference, tmp_path, windows=4))) > second
    RunFolder(copy_run).evaluation(80).write_text("{")
    assert written(tiny_text(reference, tmp_path, windows=4)) > third


def test_the_batch_size_is_the_runs_placements(copy_run: Path, make_manifest: Callable[..., Manifest]) -> None:
    assert default_settings(copy_run) == Settings()
    write_manifest(copy_run, make_manifest(placement=Placement(name="small", evaluation_batch_windows=3)))
    assert default_settings(copy_run) == Settings(batch_windows=3, compute_dtype="float32")


def test_results_do_not_depend_on_the_batch_size(reference: Reference, tmp_path: Path) -> None:
    held_out = load_held_out(tiny_text(reference, tmp_path), 256, 1000)
    sides = reference.landmarks[400], reference.landmarks[640]
    [one], [other] = (
        evaluate_pair(640, *sides, [(held_out, tmp_path / f"{size}.json")], Settings(batch_windows=size))
        for size in (2, 5)
    )
    assert one.domains["tz"].windows.loss == pytest.approx(other.domains["tz"].windows.loss, rel=1e-7)
    assert one.domains["tz"].windows.kl == pytest.approx(other.domains["tz"].windows.kl, rel=1e-5)
    assert one.overall.kl_mean > 0.01


@pytest.mark.parametrize("landmark", [400, 7])
def test_a_landmark_that_is_not_there_is_refused(copy_run: Path, reference: Reference, landmark: int) -> None:
    with pytest.raises(EctypeError, match=f"landmark {landmark} is not there"):
        evaluate_run(copy_run, reference, landmarks=[landmark])
    assert not (copy_run / "evaluations").exists()


def test_ids_outside_the_vocabulary_are_refused(reference: Reference, tmp_path: Path) -> None:
    path = tmp_path / "text.npy"
    tokens = np.fromfile(reference.held_out.domains["devil"], "<u2")
    tokens[1000] = 1001
    tokens.tofile(path)
    np.testing.assert_array_less(np.delete(tokens, 1000), 1000)
    broken = reference.model_copy(update={"held_out": HeldOut(dtype="uint16", domains={"x": path})})
    with pytest.raises(EctypeError, match=r"text\.npy"):
        load_held_out(broken, 256, 1000)


def test_a_domain_without_a_window_is_refused(reference: Reference, tmp_path: Path) -> None:
    path = tmp_path / "text.npy"
    np.full(200, 7, "<u2").tofile(path)
    short = HeldOut(dtype="uint16", domains={"x": path})
    with pytest.raises(EctypeError, match="at least one window of 256"):
        load_held_out(reference.model_copy(update={"held_out": short}), 256, 1000)
    scored = short.model_copy(update={"remainder": "score"})
    text = load_held_out(reference.model_copy(update={"held_out": scored}), 256, 1000)
    assert [block.rows.scored.sum() for block in text.stream()] == [text.targets] == [199]


def test_a_real_npy_header_is_no_text(reference: Reference, tmp_path: Path) -> None:
    path = tmp_path / "text.npy"
    tokens = np.fromfile(reference.held_out.domains["tz"], "<u2")
    np.save(path, tokens)
    held_out = HeldOut(dtype="uint16", domains={"tz": path})
    with_header = load_held_out(reference.model_copy(update={"held_out": held_out}), 256, 1000)
    without = load_held_out(reference, 256, 1000)
    assert with_header.sha256["tz"] == without.sha256["tz"]


def test_other_vocabularies_have_no_divergence(reference: Reference, tmp_path: Path) -> None:
    shutil.copytree(reference.landmarks[0].weights, tmp_path / "other")
    config = json.loads((tmp_path / "other" / "config.json").read_text())
    tensors = safetensors.numpy.load_file(tmp_path / "other" / "model.safetensors")
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        tensors[name] = tensors[name][:990]
    safetensors.numpy.save_file(tensors, tmp_path / "other" / "model.safetensors")
    (tmp_path / "other" / "config.json").write_text(json.dumps(config | {"vocab_size": 990}))
    held_out = load_held_out(tiny_text(reference, tmp_path), 256, 1000)
    with pytest.raises(EctypeError, match="990 ids in ours"):
        evaluate_pair(
            0, LandmarkWeights(weights=tmp_path / "other"), reference.landmarks[0],
            [(held_out, tmp_path / "out.json")], FEW,
        )  # fmt: skip
    assert not (tmp_path / "out.json").exists()


def test_weights_are_known_by_their_content(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name / "weights").mkdir(parents=True)
        (tmp_path / name / "weights" / "chunk").write_bytes(b"abc")
        (tmp_path / name / "ectype").mkdir()
        (tmp_path / name / "optimizer").mkdir()
        (tmp_path / name / "optimizer" / "chunk").write_text(name)
    assert weights_sha256(tmp_path / "one") == weights_sha256(tmp_path / "two")
    (tmp_path / "two" / "weights" / "chunk").write_bytes(b"abd")
    assert weights_sha256(tmp_path / "one") != weights_sha256(tmp_path / "two")
    with pytest.raises(EctypeError, match="no weights"):
        weights_sha256(tmp_path / "three")


def test_the_command_evaluates_named_sets_and_refuses_what_training_reads(
    copy_run: Path, reference: Reference, tmp_path: Path
) -> None:
    (tmp_path / "ref").mkdir()
    given = tiny_text(reference, tmp_path, windows=2).model_dump(mode="json")
    np.fromfile(reference.held_out.domains["devil"], "<u2")[:600].tofile(tmp_path / "devil.npy")
    given["sets"] = {"more": {"tokens": {"devil": str(tmp_path / "devil.npy")}, "dtype": "uint16", "stride_tokens": 64}}
    (tmp_path / "ref" / "reference.json").write_text(json.dumps(given))
    (tmp_path / "sets.yaml").write_text("rest: {tokens: devil.npy, dtype: uint16, remainder: score}\n")

    def evaluate(*held_out: str) -> Any:
        options = [option for name in held_out for option in ("--held-out", name)]
        arguments = [str(copy_run), "--reference", str(tmp_path / "ref"), "--landmark", "80", *options, "--json"]
        return CliRunner().invoke(app, ["evaluate", *arguments])

    training = next((package_path("package:demo/bundle/tokens") / "kjv").glob("*.npy"))
    (tmp_path / "leak.yaml").write_text(f"leak: {{tokens: {training}, dtype: uint16}}\n")
    refused = evaluate(str(tmp_path / "leak.yaml"))
    assert refused.exit_code == 2
    assert "'leak'" in json.loads(refused.stdout)["error"]["found"]
    assert not RunFolder(copy_run).evaluation(80).exists()

    done = evaluate(str(tmp_path / "sets.yaml"))
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert {name: each["80"]["overall"]["targets"] for name, each in found["sets"].items()} == {
        "more": 599,
        "rest": 597,
    }
    assert found["sets"]["more"]["80"]["protocol"]["stride_tokens"] == 64
    assert found["disjoint"]["sets"].keys() == {"held-out", "more", "rest"}
    written = RunFolder(copy_run).set_evaluation("rest", 80).stat().st_mtime_ns
    assert evaluate(str(tmp_path / "sets.yaml")).exit_code == 0
    assert RunFolder(copy_run).set_evaluation("rest", 80).stat().st_mtime_ns == written
