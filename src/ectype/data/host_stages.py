"""Host counts over a run, as people write them: `64 hosts to step 1050000, then 16`."""

import re
from dataclasses import dataclass

from ectype.errors import EctypeError


@dataclass(frozen=True)
class HostStage:
    """Batches [first_batch, end_batch) are read by `hosts` hosts."""

    hosts: int
    first_batch: int
    end_batch: int


def parse_host_stages(text: str, duration_steps: int) -> tuple[HostStage, ...]:
    """Stages of `N hosts to step S, then M hosts to step T, then K`; the last may omit its step and runs to the end.

    Raises:
        EctypeError: another grammar, steps that do not rise, or an end that is not `duration_steps`.
    """
    stages: list[HostStage] = []
    parts = re.split(r"\s*(?:,\s*then|,|\bthen\b)\s*", text.strip())
    for number, part in enumerate(parts):
        match = re.fullmatch(r"([0-9]+)(?:\s+hosts?)?(?:\s+(?:to|until)\s+(?:step\s+)?([0-9][0-9_]*))?", part)
        if match is None or (match.group(2) is None and number < len(parts) - 1):
            raise EctypeError(
                f"schedule {text!r}: {part!r}",
                "for example `64 hosts to step 1050000, then 16`",
                "correct the schedule",
            )
        first = stages[-1].end_batch if stages else 0
        end = duration_steps if match.group(2) is None else int(match.group(2))
        hosts = int(match.group(1))
        if hosts < 1 or not first < end <= duration_steps:
            raise EctypeError(
                f"schedule {text!r}: {hosts} hosts from step {first} to {end}",
                f"at least one host, and steps that rise to {duration_steps}, the recipe's duration", "correct it",
            )  # fmt: skip
        stages.append(HostStage(hosts, first, end))
    if stages[-1].end_batch != duration_steps:
        raise EctypeError(
            f"schedule {text!r} ends at step {stages[-1].end_batch}", f"step {duration_steps}, the recipe's duration",
            "leave out the last `to step`, or change duration_steps",
        )  # fmt: skip
    return tuple(stages)
