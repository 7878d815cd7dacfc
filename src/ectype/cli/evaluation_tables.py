"""Evaluations as tables for people."""

from typing import TYPE_CHECKING, Any

from ectype.cli.output import console, number, plain_table, share

if TYPE_CHECKING:
    from ectype.evaluate.record import Evaluation
    from ectype.tasks.record import TaskEvaluation


_WIDE_CHARACTERS = 112
"""What a table of domains takes that names each side's loss and their divergence."""


def show_landmarks(evaluations: "dict[int, Evaluation]", missing: tuple[int, ...]) -> None:
    """One row for each landmark, of all domains together."""
    table = plain_table(
        "step", "targets", "loss", "reference", "difference", "KL mean", "KL p99", "top-1", numbers_from=0
    )
    for step, evaluation in evaluations.items():
        table.add_row(*landmark_row(step, evaluation))
    console().print(table)
    if missing:
        console().print(f"no checkpoint yet for the landmarks {', '.join(map(str, missing))}")


def landmark_row(step: int, evaluation: "Evaluation") -> list[str]:
    """The cells of one landmark."""
    overall = evaluation.overall
    loss = overall.loss
    return [
        f"{step}", f"{overall.targets:,}", number(loss.ours, ".4f"), number(loss.reference, ".4f"),
        number(loss.difference, "+.1e"),
        number(overall.kl_mean, ".1e"), number(overall.kl_p99, ".1e"), share(overall.top1_agreement),
    ]  # fmt: skip


def show_domains(title: str, evaluation: "Evaluation") -> None:
    """One row for each domain, and how the numbers came about."""
    protocol, paired = evaluation.protocol, evaluation.inputs.reference is not None
    texts = ("domain", "targets", "loss", "perplexity", "bits/byte")
    pairs = ("reference", "KL mean", "KL p99", "KL max", "top-1") if paired else ()
    out = console()
    # What does not fit would be cut off: two tables then.
    split = paired and out.width < _WIDE_CHARACTERS
    table = plain_table(*texts, *(() if split else pairs), numbers_from=1)
    divergence = plain_table("domain", *pairs, numbers_from=1)
    for name, summary in [
        *((name, domain.summary) for name, domain in evaluation.domains.items()), ("all", evaluation.overall)
    ]:  # fmt: skip
        bits = "" if summary.bytes is None else number(summary.bits_per_byte.ours, ".4f")
        cells = [name, f"{summary.targets:,}", number(summary.loss.ours, ".4f"), number(summary.perplexity.ours, ".3f")]
        divergences = (summary.kl_mean, summary.kl_p99, summary.kl_max)
        beside = [
            number(summary.loss.reference, ".4f"), *(number(value, ".1e") for value in divergences),
            share(summary.top1_agreement),
        ]  # fmt: skip
        table.add_row(*cells, bits, *(beside if paired and not split else ()))
        divergence.add_row(name, *beside)
    out.print(title)
    out.print(table)
    if split:
        out.print(divergence)
    stride = "" if protocol.stride_tokens is None else f", {protocol.stride_tokens} new ones each"
    prefix = "" if protocol.prefix_id is None else f", behind id {protocol.prefix_id}"
    out.print(
        f"windows of {protocol.window_tokens} tokens{stride}, {protocol.windows}{prefix}; scored: {protocol.scored}; "
        f"{protocol.compute_dtype}",
        soft_wrap=True,
    )
    if paired:
        out.print(protocol.kl, soft_wrap=True)
    if protocol.top_ids is not None:
        overall = evaluation.overall
        out.print(
            f"mean KL between {number(overall.kl_mean, '.3e')} and {number(overall.kl_upper_mean, '.3e')} nats; the "
            f"reference gave {number(overall.tail_mass_mean, '.1e')} to ids beyond its top {protocol.top_ids}",
            soft_wrap=True,
        )


def show_tasks(evaluations: "dict[str, TaskEvaluation]") -> None:
    """One row for each metric of each task."""
    for name, evaluation in evaluations.items():
        console().print(f"{name}, {evaluation.protocol.harness}")
        console().print(_task_table(evaluation))


def _task_table(evaluation: "TaskEvaluation") -> Any:
    table = plain_table("task", "version", "shots", "items", "metric", "value", "std. error", numbers_from=5)
    for task, result in evaluation.tasks.items():
        shots = "differ" if result.shots is None else str(result.shots)
        for metric, measured in result.metrics.items():
            error = "" if measured.standard_error is None else f"{measured.standard_error:.4f}"
            value = number(measured.value, ".4f")
            table.add_row(task, result.version, shots, f"{result.items:,}", metric, value, error)
    return table
