"""The landmark matrix: each cell holds the measured value, its tolerance and the outcome, in words and by a sign."""

import math
import re
from collections.abc import Callable
from dataclasses import replace
from html import unescape
from pathlib import Path

import pytest
from fabricated_run import make_run

from ectype.compare.criteria import Outcome
from ectype.compare.held_out_criteria import LOSS, LOSS_BY_DOMAIN, LOSS_BY_SET, TOP1
from ectype.compare.runner import compare_run
from ectype.compare.twins import no_noise
from ectype.recipe.reference import load_reference
from ectype.report.markup import bound, number, percent
from ectype.report.matrix import matrix
from ectype.report.records import RunRecords, load_records
from ectype.run.manifest import Manifest
from ectype.tasks.record import Metric, TaskEvaluation, TaskProtocol, TaskResult

STEPS = (0, 80, 240, 400, 640)


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory, make_manifest: Callable[..., Manifest]) -> RunRecords:
    """A run with a verdict."""
    run: Path = make_run(tmp_path_factory.mktemp("matrix") / "run", make_manifest)
    compare_run(run, load_reference("package:demo/bundle"), no_noise())
    return load_records(run)


def _plain(markup: str) -> str:
    return re.sub(r"\s+", " ", unescape(re.sub(r"<[^>]+>", " ", markup))).strip()


def _cells(records: RunRecords, steps: tuple[int, ...] = STEPS) -> dict[str, list[str]]:
    """Row name -> markup of its cells."""
    rows = re.findall(r"<tr><th[^>]*>(.*?)</th>(.*?)</tr>", matrix(records, steps).split("<tbody>")[1], re.DOTALL)
    return {_plain(head.split("<small>")[0]): re.findall(r"<td[^>]*>(.*?)</td>", rest) for head, rest in rows}


def test_each_cell_holds_value_tolerance_and_outcome(records: RunRecords) -> None:
    assert records.verdict is not None
    cells = _cells(records)
    for place, step in enumerate(STEPS):
        loss = next(c for c in records.verdict.criteria if (c.name, c.landmark) == (LOSS, step))
        said = _plain(cells["Held-out loss"][place])
        assert said == _plain(f"{number(loss.measured)} holds, ≤ {bound(loss.tolerance)}")
        assert 'class="mark good"' in cells["Held-out loss"][place]
        top1 = next(c for c in records.verdict.criteria if (c.name, c.landmark) == (TOP1, step))
        assert _plain(percent(top1.measured, 3)) in _plain(cells["Top-1 agreement"][place])
        assert "holds, ≥ 99.9 %" in _plain(cells["Top-1 agreement"][place]).replace("\u00a0", " ")


def test_a_broken_criterion_is_broken_in_every_unit_of_the_loss(records: RunRecords) -> None:
    assert records.verdict is not None
    criteria = tuple(
        replace(c, outcome=Outcome.BROKEN, measured=0.5, tolerance=0.25) if (c.name, c.landmark) == (LOSS, 240) else c
        for c in records.verdict.criteria
    )
    broken = replace(records, verdict=records.verdict.model_copy(update={"criteria": criteria}))
    cells, summary = _cells(broken), records.evaluations[240].overall
    assert summary.bytes is not None
    bits = summary.targets / (summary.bytes * math.log(2))
    for name, value, limit in (
        ("Held-out loss", 0.5, 0.25),
        ("Perplexity", math.exp(0.5) - 1, math.exp(0.25) - 1),
        ("Bits per byte", 0.5 * bits, 0.25 * bits),
    ):
        assert _plain(cells[name][2]) == _plain(f"{number(value)} broken, ≤ {bound(limit)}")
        assert 'class="mark bad"' in cells[name][2]
        assert "--used:1.000" in cells[name][2]
        assert 'class="mark good"' in cells[name][1]


def test_the_worst_domain_is_named(records: RunRecords) -> None:
    assert records.verdict is not None
    criteria = tuple(
        replace(c, outcome=Outcome.UNCLEAR) if (c.name, c.landmark, c.domain) == (LOSS_BY_DOMAIN, 80, "devil") else c
        for c in records.verdict.criteria
    )
    cells = _cells(replace(records, verdict=records.verdict.model_copy(update={"criteria": criteria})))
    assert "unclear" in cells["Held-out loss, worst domain"][1]
    assert "devil" in cells["Held-out loss, worst domain"][1]
    assert 'class="mark open"' in cells["Held-out loss, worst domain"][1]


def test_nothing_is_judged_without_a_verdict_that_stands(records: RunRecords) -> None:
    for unjudged in (replace(records, verdict=None), replace(records, changed_since_verdict=("metrics.jsonl",))):
        cells = _cells(unjudged)
        assert all("not judged" in cell for row in cells.values() for cell in row)
        assert not any("holds" in cell or "mark good" in cell for row in cells.values() for cell in row)
        overall = records.evaluations[640].overall
        assert _plain(number(overall.kl_mean)) in _plain(cells["Token KL, mean"][4])


def test_a_landmark_without_an_evaluation_is_an_empty_column(records: RunRecords) -> None:
    cells = _cells(records, (*STEPS, 900))
    assert [_plain(row[5]) for row in cells.values()] == ["not evaluated"] * len(cells)


def test_tasks_are_shown_and_not_judged(records: RunRecords) -> None:
    protocol = TaskProtocol(
        harness="lm_eval 0.4", ectype="0", weights_sha256="a", tokenizer_sha256="b", max_length=64, prefix_id=0,
        compute_dtype="float32", vocabulary_rows=1000, limit=None, fewshot_seed=1234,
    )  # fmt: skip
    metrics = {
        "acc": Metric(value=0.25, standard_error=0.01, higher_is_better=True),
        "acc_norm": Metric(value=0.375, standard_error=0.02, higher_is_better=True),
    }
    result = TaskResult(version="1", definition_sha256="c", shots=0, items=1200, metrics=metrics)
    tasks = {640: TaskEvaluation(step=640, protocol=protocol, tasks={"arc_easy": result})}
    row = _cells(replace(records, tasks=tasks))["Task arc_easy"]
    assert _plain(row[4]) == "0.375 ± 0.020 of 1,200 items, not judged"
    assert _plain(row[0]) == "not evaluated"


def test_a_set_is_judged_only_where_the_verdict_judged_it(records: RunRecords) -> None:
    assert records.verdict is not None
    loss = next(c for c in records.verdict.criteria if (c.name, c.landmark) == (LOSS, 640))
    judged = replace(loss, name=LOSS_BY_SET, domain="paloma/c4_en", outcome=Outcome.BROKEN, measured=0.125)
    verdict = records.verdict.model_copy(update={"criteria": (*records.verdict.criteria, judged)})
    sets = {name: {640: records.evaluations[640]} for name in ("paloma.c4_en", "given by hand")}
    cells = _cells(replace(records, sets=sets, verdict=verdict))
    assert _plain(cells["Held-out loss, paloma.c4_en"][4]).startswith("0.125 broken")
    assert "not judged" in cells["Held-out loss, given by hand"][4]
    assert _plain(cells["Held-out loss, given by hand"][0]) == "not evaluated"
