"""The page as a whole: what it says for each verdict and for each missing input, and that it stands alone."""

import json
import os
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from fabricated_run import make_run
from typer.testing import CliRunner

from ectype.artifacts import package_path, write_json
from ectype.cli.main import app
from ectype.compare.record import changed_since, read_verdict
from ectype.compare.runner import compare_run
from ectype.compare.trajectory_criteria import STEP_LOSS
from ectype.compare.twins import no_noise
from ectype.compare.verdict import DIFFERENT, SAME, UNDECIDED
from ectype.errors import EctypeError
from ectype.evaluate.record import read_evaluation, write_evaluation
from ectype.recipe.reference import load_reference
from ectype.report.build import render, write_report
from ectype.report.records import load_records
from ectype.report.training import training_part
from ectype.run.manifest import Manifest
from ectype.run.paths import RunFolder

VOID = {"meta", "link", "br", "path", "input"}


class _Outline(HTMLParser):
    """Checks that tags nest, and collects headings, anchors, links and what the page would load."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.loads: list[str] = []
        self.headings: list[int] = []
        self.plots: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {key: value or "" for key, value in attrs}
        if tag not in VOID:
            self.open.append(tag)
        if re.fullmatch(r"h[1-6]", tag):
            self.headings.append(int(tag[1]))
        self.ids += [values["id"]] if "id" in values else []
        self.plots += [values["data-figure"]] if "data-figure" in values else []
        if tag == "a":
            self.links.append(values["href"])
        else:
            self.loads += [values[key] for key in ("src", "href") if key in values]

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag


def _outline(page: str) -> _Outline:
    outline = _Outline()
    outline.feed(page)
    outline.close()
    assert outline.open == []
    return outline


def _visible(page: str) -> str:
    """The page's text without scripts, styles and tags."""
    body = re.sub(r"<(script|style)\b.*?</\1>", " ", page, flags=re.DOTALL)
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", body))


@pytest.fixture(scope="module")
def compared(run_dir: Path) -> Path:
    """The finished run with its verdict."""
    verdict, _ = compare_run(run_dir, load_reference("package:demo/bundle"), no_noise())
    assert verdict.answer == SAME
    return run_dir


@pytest.fixture(scope="module")
def page(compared: Path) -> str:
    """Its report."""
    return render(load_records(compared))


def test_the_verdict_and_what_stands_behind_it_are_on_top(page: str) -> None:
    text = _visible(page)
    order = ["Same model", "Worst case of each kind", "All domains together", "Loss per update", "Recipe hash"]
    places = [text.index(said) for said in order]
    assert places == sorted(places)
    assert "Nearest to its limit" in text
    assert "Updates 640 of 640" in text


def test_the_page_needs_nothing_else(page: str) -> None:
    outline = _outline(page)
    assert outline.loads == ["data:,"]
    assert "default-src 'none'" in page


def test_every_link_has_its_place_and_every_plot_its_figure(page: str) -> None:
    outline = _outline(page)
    assert len(outline.ids) == len(set(outline.ids))
    assert {link.removeprefix("#") for link in outline.links} <= set(outline.ids)
    drawn = json.loads(re.findall(r'id="figures">(.*?)</script>', page, re.DOTALL)[0])
    assert set(drawn) == set(outline.plots)
    assert len(drawn) >= 5


def test_headings_do_not_skip_a_level(page: str) -> None:
    levels = _outline(page).headings
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))


def test_each_measure_is_printed_as_it_was_recorded(compared: Path, page: str) -> None:
    records = load_records(compared)
    text = _visible(page)
    for evaluation in records.evaluations.values():
        assert f"{evaluation.overall.loss.ours:.6f}" in text
    for domain in records.evaluations[640].domains.values():
        assert f"{domain.summary.loss.reference:.6f}" in text
        assert f"{domain.summary.bits_per_byte.ours:.4f}" in text
    assert "the same in both: 238, 282, 434" in text


def test_the_inputs_the_environment_and_the_sessions_are_named(compared: Path, page: str) -> None:
    records = load_records(compared)
    assert records.run is not None
    assert records.verdict is not None
    text, inputs = _visible(page), records.evaluations[640].inputs
    hashes = [inputs.ours, inputs.reference, inputs.tokenizer, *inputs.held_out.values()]
    for known in (
        *hashes,
        records.run.index_fingerprint,
        records.verdict.recipe_hash,
        *records.verdict.evidence.values(),
    ):
        if known is not None:
            assert known in text
    assert f"Evaluated by Ectype {inputs.ectype}" in text
    for value in records.run.environment.model_dump().values():
        if isinstance(value, str):
            assert value in text
    assert ("Starts of the program" in text) == bool(records.run.sessions)


def test_the_drawn_limit_is_the_one_that_judged(compared: Path) -> None:
    records = load_records(compared)
    assert records.verdict is not None
    criteria = [replace(c, tolerance=2e-5) if c.name == STEP_LOSS else c for c in records.verdict.criteria]
    judged = replace(records, verdict=records.verdict.model_copy(update={"criteria": tuple(criteria)}))
    for shown, name, limit in ((judged, "tolerance", 2e-5), (replace(records, verdict=None), "float32 floor", 1e-5)):
        lines = training_part(shown).figures["training"]["data"]
        assert [line["y"] for line in lines if line["name"] == name] == [[limit, limit]]


def test_a_broken_run_says_so(tmp_path: Path, make_manifest: Callable[..., Manifest]) -> None:
    run = make_run(tmp_path / "run", make_manifest, loss_scale=1e-2, offset=0.6)
    compare_run(run, load_reference("package:demo/bundle"), no_noise())
    records = load_records(run)
    assert records.verdict is not None
    different = replace(records, verdict=records.verdict.model_copy(update={"verdict": DIFFERENT}))
    assert 'class="verdict bad"' in render(different)
    assert "Not the same model" in _visible(render(different))
    undecided = render(replace(records, verdict=records.verdict.model_copy(update={"verdict": UNDECIDED})))
    assert 'class="verdict open"' in undecided
    assert "Nearest to its limit" not in _visible(undecided)


@pytest.mark.filterwarnings("error")
def test_a_log_without_the_gradient_norm_has_no_difference_of_it(run_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_bytes((run_dir / "recipe.yaml").read_bytes())
    rows = [{"step": step, "loss": 2.0} for step in (1, 2)]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert "Largest difference of the gradient norm – relative" in _visible(render(load_records(tmp_path)))


def _with_another_epsilon(recipe: Path) -> None:
    text = recipe.read_text()
    assert "epsilon: 1.0e-08" in text
    recipe.write_text(text.replace("epsilon: 1.0e-08", "epsilon: 1.0e-05"))
    recipe.with_name("run.json").unlink()  # Beside it the change is refused.


def test_a_verdict_on_records_that_changed_since_is_no_verdict(compared: Path, tmp_path: Path) -> None:
    """A run that is trained, evaluated or recorded anew keeps its old verdict.json until it is compared again."""
    for name, change in (
        ("metrics.jsonl", lambda path: path.write_bytes(path.read_bytes().replace(b'"step": 640', b'"step": 641'))),
        ("evaluations/step-00000400.json", lambda path: path.write_bytes(path.read_bytes() + b"\n")),
        ("evaluations/step-00000640.json", lambda path: path.unlink()),
        ("ledger/process-00000.ledger", lambda path: path.write_bytes(path.read_bytes()[:-32])),
        ("recipe.yaml", _with_another_epsilon),
    ):
        run = tmp_path / name.replace("/", "-")
        shutil.copytree(compared, run)
        assert load_records(run).changed_since_verdict == ()
        change(run / name)
        records = load_records(run)
        assert records.changed_since_verdict == (name,)
        page = render(records)
        assert 'class="verdict none"' in page
        assert "The verdict is out of date" in _visible(page)
        assert f"of records that have changed since: {name}." in _visible(page)


def test_a_verdict_on_a_reference_that_changed_since_is_no_verdict(compared: Path, tmp_path: Path) -> None:
    """Weights, held-out text, log and batches, whether or not their sizes change; a touched file is the same file."""
    run, bundle = tmp_path / "run", tmp_path / "bundle"
    shutil.copytree(compared, run)
    shutil.copytree(package_path("package:demo/bundle"), bundle)
    compare_run(run, load_reference(bundle), no_noise())
    judged = read_verdict(run).inputs
    assert all((bundle / name).is_file() for name in ("log.csv", "batches.json", "hf/step640/model.safetensors"))
    for name in ("log.csv", "batches.json", "hf/step640/model.safetensors", "tokens/heldout/kjv.npy"):
        file = bundle / name
        assert str(file) in judged
        before = file.read_bytes()
        os.utime(file, ns=(1, 1))
        assert load_records(run).changed_since_verdict == ()
        for after in (before[:-2] + bytes(byte ^ 1 for byte in before[-2:]), before + b"\n"):
            file.write_bytes(after)
            os.utime(file, ns=(2, 2))
            assert changed_since(run, read_verdict(run), read_verdict(run).recipe_hash) == (str(file),)
        file.write_bytes(before)
        assert load_records(run).changed_since_verdict == ()
    assert str(bundle / "noise.json") not in judged, "no tolerance came from it"
    shutil.rmtree(bundle)
    assert load_records(run).changed_since_verdict == (), "of what is not here nothing is said"


def test_what_is_missing_is_said_plainly(run_dir: Path, tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    bare.mkdir()
    (bare / "recipe.yaml").write_bytes((run_dir / "recipe.yaml").read_bytes())
    page = render(load_records(bare))
    text = _visible(page)
    for said in (
        "No verdict yet", "There are no criteria without a comparison", "No landmark was evaluated",
        "This run has logged no update", "run.json is not there",
    ):  # fmt: skip
        assert said in text, said
    _outline(page)
    assert "Updates 0 of 640" in text


def test_a_landmark_that_was_not_evaluated_keeps_its_row(run_dir: Path) -> None:
    records = load_records(run_dir)
    partly = {step: evaluation for step, evaluation in records.evaluations.items() if step != 240}
    text = _visible(render(replace(records, evaluations=partly)))
    assert "240 not evaluated" in text


def test_a_reference_that_is_elsewhere_is_said_and_the_rest_shown(compared: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(compared, run)
    recipe = (run / "recipe.yaml").read_text()
    (run / "recipe.yaml").write_text(recipe.replace("package:demo/bundle\n", "nowhere/bundle\n"))
    text = _visible(render(load_records(run)))
    assert "There is no log of the reference to lay it over: reference: no file nowhere/bundle" in text
    assert "Same model" in text
    assert CliRunner().invoke(app, ["report", str(run), "--reference", "nowhere"]).exit_code == 2


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["report", str(tmp_path)])
    assert result.exit_code == 2
    assert "holds no recipe.yaml" in result.stderr


@pytest.mark.parametrize("name", ["run.json", "verdict.json", "audit.json", "parity.json", "plan.json"])
@pytest.mark.parametrize(
    ("content", "found"),
    [
        ("", "Expecting value"),
        ('{"format": ', "Expecting value"),
        ("[]", "holds no mapping"),
        ("{}", "has no format version"),
        ('{"format": 99}', "has format 99"),
        ('{"error": {"found": "no ledger of process 0", "expected": "", "mend": ""}}', "no ledger of process 0"),
    ],
)
def test_a_damaged_or_foreign_record_is_one_clear_error(
    run_dir: Path, tmp_path: Path, name: str, content: str, found: str
) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "recipe.yaml").write_bytes((run_dir / "recipe.yaml").read_bytes())
    (run / name).write_text(content)
    result = CliRunner().invoke(app, ["report", str(run)])
    assert result.exit_code == 2
    for said in (str(run / name), found, "expected: ", "to mend: "):
        assert said in result.stderr
    assert not (run / "report.html").exists()


@pytest.mark.parametrize("name", ["run.json", "verdict.json"])
@pytest.mark.parametrize(
    ("change", "found"), [({"formt": 1}, "unknown key 'formt' (did you mean 'format'?)"), ({"recipe": 7}, "recipe: ")]
)
def test_a_record_with_a_field_that_is_wrong_names_the_field(
    compared: Path, tmp_path: Path, name: str, change: dict[str, Any], found: str
) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "recipe.yaml").write_bytes((compared / "recipe.yaml").read_bytes())
    (run / name).write_text(json.dumps(json.loads((compared / name).read_text()) | change))
    with pytest.raises(EctypeError) as failure:
        load_records(run)
    assert str(run / name) in failure.value.found
    assert found in failure.value.found


def test_text_from_files_cannot_become_markup(compared: Path) -> None:
    records = load_records(compared)
    assert records.verdict is not None
    evil = "</script><script>alert(1)</script>"
    recipe = records.recipe.model_copy(update={"name": evil, "description": evil})
    horizon = records.verdict.horizon.model_copy(update={"text": evil})
    verdict = records.verdict.model_copy(update={"reason": evil, "horizon": horizon})
    page = render(replace(records, recipe=recipe, verdict=verdict))
    assert "<script>alert" not in page


def test_the_command_writes_the_file_and_names_it(compared: Path, tmp_path: Path) -> None:
    out = tmp_path / "deep" / "report.html"
    result = CliRunner().invoke(app, ["report", str(compared), "--out", str(out), "--json"])
    assert result.exit_code == 0
    assert json.loads(result.stdout) == {"report": str(out)}
    assert out.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert write_report(compared) == compared / "report.html"


def test_further_sets_and_the_search_of_training_are_shown(
    tmp_path: Path, make_manifest: Callable[..., Manifest]
) -> None:
    run = make_run(tmp_path / "run", make_manifest)
    folder = RunFolder(run)
    plain = render(load_records(run))
    assert "Further held-out text" not in plain
    assert "Training was not searched" in plain
    record = read_evaluation(folder.evaluation(640))
    rolling = {"stride_tokens": 512, "prefix_id": 0, "windows": "rolling, documents one by one"}
    write_evaluation(
        folder.set_evaluation("paloma/c4_en", 640),
        record.model_copy(update={"protocol": record.protocol.model_copy(update=rolling)}),
    )
    found = {"sha256": {"kjv": "a"}, "block_tokens": 128, "blocks": 9, "unchecked_texts": 0, "windows_searched": 77}
    write_json(
        folder.disjoint, {"format": 1, "index_fingerprint": "f", "windows": 99, "sets": {"held-out": found}}
    )  # fmt: skip
    page = render(load_records(run))
    assert "paloma.c4_en, after update 640" in page
    assert "512 new ones each, rolling, documents one by one, behind id 0" in page
    assert "held-out: blocks of 128 tokens in 77 windows" in page
