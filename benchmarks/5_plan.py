"""The plans of the published runs beside MaxText compiled for the same slices, and beside the published step times.

    python benchmarks/5_plan.py [--case v5p|tpu7x ...] [--cache DIR]

Needs the extra `plan`. Compiles the 7B step for 128 v5p chips (stage 2's batch) and 256 Ironwood chips (stage 1's);
allow 10 to 20 minutes each on two cores. Writes each plan to benchmarks/plan/. One JSON line per figure; exit 1 on a
miss.
"""

import argparse
import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from figures import Figures

PLANS = Path(__file__).parent / "plan"


@dataclass(frozen=True)
class Case:
    """One slice, and what others got on it.

    MaxText `e591f30` compiled with the case study's own flags, remat set and attention blocks: peak bytes of a device,
    and compiler cycles with attention kernels left out, both loops counted by their trips. The published step time is
    the case study's throughput turned into seconds.
    """

    recipe: str
    topology: str
    placement: str
    peer_peak_bytes: float
    peer_cycles: float
    published_seconds: float


CASES = {
    "v5p": Case("olmo3-7b-stage2", "v5p:4x4x8", "v5p-4x4x8", 51.77e9, 3.977e9, 2.96),
    "tpu7x": Case("olmo3-7b-stage1", "tpu7x:4x8x8", "tpu7x-4x8x8", 29.58e9, 1.375e9, 0.764),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", choices=CASES, action="append", help="default: all")
    parser.add_argument("--cache", default="~/.cache/ectype/plan", help="folder of compiled programs")
    options = parser.parse_args()
    figures = Figures()
    for name in options.case or CASES:
        judge(name, CASES[name], plan(CASES[name], options.cache), figures)
    figures.finish()


def plan(case: Case, cache: str) -> dict[str, Any]:
    """The record of `ectype plan`, kept in benchmarks/plan/."""
    command = [sys.executable, "-m", "ectype.cli", "plan", case.recipe, "--topology", case.topology]
    command += ["--placement", case.placement, "--cache", cache, "--json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=False)
    if done.returncode not in (0, 1):
        sys.exit(f"no plan for {case.recipe} on {case.topology}")
    record = json.loads(done.stdout)
    PLANS.mkdir(exist_ok=True)
    path = PLANS / f"{case.recipe}-{case.topology.replace(':', '-')}.json"
    path.write_text(json.dumps(record, indent=2) + "\n")
    return record


def judge(name: str, case: Case, record: dict[str, Any], figures: Figures) -> None:
    """Memory and cycles beside the peer's, the predicted step beside the published one."""
    title = f"{case.recipe} on {case.topology}"
    memory, step = record["memory"], record["step"]
    peak = memory["peak"] or memory["refused_at"]
    figures.at_most(
        f"{title}: peak memory over MaxText's", peak / case.peer_peak_bytes, "ratio", 0.8, peak_bytes=peak,
        compile_seconds=round(record["compile_seconds"] or 0), compile_peak_bytes=record["compile_peak_bytes"],
    )  # fmt: skip
    if step is None:
        sys.exit(f"{name}: the program does not fit")
    cycles = step["compute_cycles"]
    figures.at_most(
        f"{title}: compiler cycles over MaxText's", cycles / case.peer_cycles, "ratio", 0.9, cycles=cycles,
        unknown=step["unknown_cycles"],
    )  # fmt: skip
    kernels = step["attention_kernels"].get("splash_mha_fwd", 0)
    figures.at_most(f"{title}: forward attention kernels a step", kernels, "calls", 32)
    # The published run's program is another one: this says how far ours is predicted to be from it, not an error.
    seconds = step["seconds"]
    figures.at_most(
        f"{title}: predicted step over the published one", seconds["expected"] / case.published_seconds, "ratio", 1.12,
        seconds=seconds, published_seconds=case.published_seconds,
    )  # fmt: skip


if __name__ == "__main__":
    main()
