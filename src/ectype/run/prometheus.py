"""A run's status in Prometheus' text exposition format, version 0.0.4: base units, one HELP and TYPE for each name.

https://prometheus.io/docs/instrumenting/exposition_formats/
"""

import typing
from collections.abc import Iterator
from dataclasses import dataclass

from ectype.run.health import FindingKind, Sign, State
from ectype.run.status import RunStatus

Labels = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Family:
    """All samples of one gauge. A value of None is a sample that is not there."""

    name: str
    meaning: str
    samples: tuple[tuple[Labels, float | int | None], ...]


def exposition(status: RunStatus) -> str:
    """What a scrape, or the node exporter's textfile collector, takes; each sample carries the run as a label."""
    own = (("run", status.run),)
    lines = []
    for family in (*_of_run(status), *_of_last_row(status), *_of_processes(status)):
        there = [(labels, value) for labels, value in family.samples if value is not None]
        if there:
            lines += [f"# HELP {family.name} {_escaped(family.meaning)}", f"# TYPE {family.name} gauge"]
            lines += [f"{family.name}{_braces(own + labels)} {_number(value)}" for labels, value in there]
    return "\n".join(lines) + "\n"


def _of_run(status: RunStatus) -> Iterator[Family]:
    info = (("recipe", status.recipe), ("recipe_hash", status.recipe_hash))
    yield Family("ectype_run_info", "What is trained; always 1.", ((info, 1),))
    states, kinds = typing.get_args(State), typing.get_args(FindingKind)
    found = [finding.kind for finding in status.findings]
    yield Family(
        "ectype_state", "1 for the state that the run is in.",
        tuple(((("state", name),), int(name == status.state)) for name in states),
    )  # fmt: skip
    yield Family(
        "ectype_findings", "What is not as it should be, counted by kind.",
        tuple(((("kind", name),), found.count(name)) for name in kinds),
    )  # fmt: skip
    for name, meaning, value in (
        ("well", "1 if nobody need look at the run.", int(status.well)),
        ("completed_updates", "Updates done, by the metrics.", status.completed_updates),
        ("saved_updates", "Updates in the newest complete checkpoint.", status.saved_updates),
        ("target_updates", "Updates that the recipe asks for.", status.target_updates),
        ("starts", "Starts of the program so far.", status.starts),
        ("step_seconds", "Median of recent updates, without waits for data.", status.step_seconds),
        ("settled_step_seconds", "The session's own usual step time.", status.settled_step_seconds),
        ("data_wait_ratio", "Share of recent updates spent on waiting for data.", status.data_wait_share),
        ("skipped_updates_ratio", "Share of recent updates that were skipped.", status.skipped_share),
        ("session_goodput_ratio", "Share of the session spent in updates.", status.session_goodput),
        ("left_seconds", "Until the target, at the session's pace.", status.left_seconds),
        ("observed_timestamp_seconds", "When these numbers were taken.", status.at_unix_seconds),
    ):
        yield Family(f"ectype_{name}", meaning, (((), value),))


def _of_last_row(status: RunStatus) -> Iterator[Family]:
    for field, name, meaning in (
        ("loss", "loss_nats", "Training loss of the last update."),
        ("z_loss", "z_loss_nats", "Auxiliary loss of the last update."),
        ("grad_norm", "gradient_norm", "Before clipping, of the last update."),
        ("learning_rate", "learning_rate", "Of the last update."),
        ("tokens_seen", "seen_tokens", "Tokens of all updates done."),
        ("tokens_per_second", "tokens_per_second", "Of the last update, its wait for data included."),
        ("mfu", "model_flops_utilization_ratio", "Of the last update, by the window-aware count."),
        ("device_memory_peak_bytes", "device_memory_peak_bytes", "The most that a device of process 0 has held."),
        ("process_memory_peak_bytes", "process_memory_peak_bytes", "The most that process 0 has held."),
    ):
        yield Family(f"ectype_{name}", meaning, (((), (status.last or {}).get(field)),))


def _of_processes(status: RunStatus) -> Iterator[Family]:
    def family(name: str, meaning: str, value: typing.Callable[[Sign], float | int | None]) -> Family:
        samples = ((_of(sign), value(sign)) for sign in status.processes)
        return Family(f"ectype_process_{name}", meaning, tuple(samples))

    yield family("heartbeat_age_seconds", "Since the process's last sign of life.", lambda sign: sign.age_seconds)
    yield family("phase_seconds", "How long it has been in its phase.", lambda sign: sign.phase_seconds)
    yield family("completed_updates", "Updates that it has done.", lambda sign: sign.step)
    yield family("own_seconds", "Median of its own work between two updates.", lambda sign: sign.own_seconds)
    yield family("probe_seconds", "Median of its slowest device's probes.", lambda sign: sign.probe_seconds)


def _of(sign: Sign) -> Labels:
    return (("process", str(sign.process)), ("host", sign.host))


def _braces(labels: Labels) -> str:
    return "{" + ",".join(f'{name}="{_escaped(value, quotes=True)}"' for name, value in labels) + "}"


def _escaped(text: str, *, quotes: bool = False) -> str:
    text = text.replace("\\", "\\\\").replace("\n", "\\n")
    return text.replace('"', '\\"') if quotes else text


def _number(value: float | int) -> str:
    """As Go's parser takes it: `nan` and `inf` are read in any case."""
    return repr(float(value)) if isinstance(value, float) else str(int(value))
