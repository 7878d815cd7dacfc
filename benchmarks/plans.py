"""The plans that benchmarks judge, each by one command of the product, and where their records are kept."""

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PLANS = Path(__file__).parent / "plan"


@dataclass(frozen=True)
class Plan:
    """The arguments of one `ectype plan`."""

    recipe: str
    topology: str
    placement: str
    settings: tuple[str, ...] = ()

    @property
    def arguments(self) -> list[str]:
        """What follows `ectype plan`."""
        return [self.recipe, "--topology", self.topology, "--placement", self.placement, *self.settings]


def _staged(stages: str) -> Plan:
    return Plan("olmo3-7b-stage2", "v5p:4x4x8", "v5p-4x4x8", ("--placement-set", f"gather_stages={stages}"))


CASES = {
    "v5p": Plan("olmo3-7b-stage2", "v5p:4x4x8", "v5p-4x4x8"),
    "tpu7x": Plan("olmo3-7b-stage1", "tpu7x:4x8x8", "tpu7x-4x8x8"),
    "tpu7x-wide-heads": Plan("olmo3-7b-stage1-heads16x256", "tpu7x:4x8x8", "tpu7x-4x8x8"),
    # As many windows a device as on 512.
    "tpu7x-128": Plan(
        "olmo3-7b-stage1", "tpu7x:4x4x4", "tpu7x-4x8x8", ("--set", "data.global_batch_windows=128")
    ),
    "v5p-4x32": _staged("[4, 32]"),
    "v5p-8x16": _staged("[8, 16]"),
    "stage3": Plan("olmo3-7b-stage3", "v5p:4x4x8", "v5p-4x4x8-context"),
    "32b": Plan("olmo3-32b-stage1", "tpu7x:4x8x8", "tpu7x-4x8x8", ("--placement-set", "micro_batch_windows=1")),
}  # fmt: skip


def make(name: str, cache: str) -> dict[str, Any]:
    """The record of a plan, compiled or from the cache, kept in benchmarks/plan/."""
    command = [sys.executable, "-m", "ectype.cli", "plan", *CASES[name].arguments, "--cache", cache, "--json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=False)
    if done.returncode not in (0, 1):
        sys.exit(f"no plan {name}: ectype plan {' '.join(CASES[name].arguments)}")
    record = {"command": ["ectype", "plan", *CASES[name].arguments], **json.loads(done.stdout)}
    PLANS.mkdir(exist_ok=True)
    (PLANS / f"{name}.json").write_text(json.dumps(record, indent=2) + "\n")
    return record
