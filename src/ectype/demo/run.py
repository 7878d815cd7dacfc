"""`ectype demo`: the whole walk on the bundled run, from published weights to a verdict and a report."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ectype.artifacts import package_path
from ectype.compare.runner import compare_run
from ectype.compare.twins import no_noise, reference_noise
from ectype.compare.verdict import Verdict
from ectype.data.audit import Audit, audit_plan
from ectype.data.audit_run import record_audit
from ectype.data.host_stages import parse_host_stages
from ectype.data.index import load_index, write_index
from ectype.data.order import Order
from ectype.data.source import open_order
from ectype.data.tokenindex import TokenIndex
from ectype.errors import EctypeError
from ectype.evaluate.runner import evaluate_run
from ectype.progress import Progress, silent
from ectype.recipe.load import load_placement, load_recipe, with_inputs
from ectype.recipe.reference import load_reference
from ectype.recipe.spec import Recipe
from ectype.report.build import write_report
from ectype.run.paths import DEMO_RUN_NAME
from ectype.train.loop import train_run
from ectype.train.sharding import prepare_devices
from ectype.weights.hf_import import import_weights

RECIPE, PLACEMENT = "toy-calm", "cpu"

Say = Callable[[str], None]


@dataclass(frozen=True)
class Demo:
    """What the demo ended with."""

    verdict: Verdict
    run_dir: Path
    report: Path
    seconds: float


def run_demo(
    out: Path, *, recipe: Recipe | None = None, say: Say = lambda line: None, progress: Progress = silent
) -> Demo:
    """Reproduce the bundled run in `out`, or go on with a demo that was stopped there.

    Args:
        out: holds weights/, index.json and run/ afterwards.
        recipe: the shipped recipe, or one like it whose inputs are bundled; None for the shipped one.
        say: called with one line when a stage has ended.
        progress: told how far the stage in work is.

    Raises:
        EctypeError: `out` holds something else, or an audit found windows that are not read exactly once.
        Stopped: interrupted; the same call goes on.
    """
    began = time.monotonic()
    shipped, placement = recipe or load_recipe(RECIPE), load_placement(PLACEMENT)
    prepare_devices(placement)
    reference = load_reference(str(shipped.inputs.reference))
    run_dir = out / DEMO_RUN_NAME
    with _stage(say) as done:
        weights = _import(shipped, out / "weights" / "step-0", progress)
        done(f"imported step-0 weights of {reference.name} ({reference.framework})")
    with _stage(say) as done:
        order, index = _index(shipped, out / "index.json", progress)
        done(f"indexed {index.windows:,} windows of {shipped.data.sequence_length_tokens} tokens")
    with _stage(say) as done:
        plan = audit_plan(order, parse_host_stages("1 host", shipped.duration_steps), progress)
        _require_clean(plan, "the plan")
        done(f"plan of {plan.steps:,} updates: every window exactly once per pass")
    imported = with_inputs(shipped, index=str(out / "index.json"), weights=str(weights), padded_rows=None)
    with _stage(say) as done:
        result = train_run(imported, placement, run_dir, progress=progress)
        done(f"trained {result.step:,} updates")
    with _stage(say) as done:
        evaluations = evaluate_run(run_dir, reference, progress=progress)
        done(f"evaluated {len(evaluations)} landmarks on held-out text")
    with _stage(say) as done:
        audit = record_audit(run_dir, order, index, shipped.data, progress)
        done(f"audited what was read: {'every window' if audit.clean else 'NOT every window'} exactly once per pass")
    with _stage(say) as done:
        verdict, _ = compare_run(run_dir, reference, reference_noise(reference, shipped) or no_noise())
        report = write_report(run_dir)
        done("compared with the reference and wrote the report")
    return Demo(verdict, run_dir, report, time.monotonic() - began)


def _import(recipe: Recipe, checkpoint: Path, progress: Progress) -> Path:
    """The step-0 weights as a checkpoint; one that an earlier call finished is kept."""
    if not checkpoint.is_dir():
        import_weights(
            package_path(str(recipe.inputs.weights)),
            checkpoint,
            padded_rows=package_path(str(recipe.inputs.padded_rows)),
            progress=progress,
        )
    return checkpoint


def _index(recipe: Recipe, path: Path, progress: Progress) -> tuple[Order, TokenIndex]:
    """Write the index of the bundled token files, and open the order that it and the recipe give."""
    index = load_index(str(recipe.inputs.index), recipe.data, recipe.model.vocab_size, progress=progress)
    write_index(index, path)
    return open_order(index, recipe.data), index


def _require_clean(audit: Audit, what: str) -> None:
    if not audit.clean:
        raise EctypeError(
            f"{what} reads some windows twice or never: {audit.faults[:3]}", "every window exactly once per pass",
            "this is a fault of Ectype; report it with `ectype data audit`",
        )  # fmt: skip


@contextmanager
def _stage(say: Say) -> Iterator[Callable[[str], None]]:
    """Times a stage; the body calls what it yields with one line on what was done."""
    began = time.monotonic()
    lines: list[Any] = []
    yield lines.append
    for line in lines:
        say(f"{time.monotonic() - began:6.1f} s  {line}")
