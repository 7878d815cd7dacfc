"""The plans of the published runs beside MaxText compiled for the same slices, and the plans of the longer stages.

    python benchmarks/5_plan.py [--case v5p|tpu7x|stage3|32b ...] [--cache DIR]

Needs the extra `plan`. Compiles 7B steps for 128 v5p chips (stage 2's batch) and 256 Ironwood chips (stage 1's), stage
3 and the 32B; allow 10 minutes each on two cores. Keeps each record in benchmarks/plan/. One JSON line per figure; exit
1 on a miss.
"""

import argparse
import sys
from dataclasses import dataclass
from typing import Any

import plans
from figures import Figures


@dataclass(frozen=True)
class Peer:
    """MaxText `e591f30` compiled with the case study's own flags, remat set and attention blocks.

    Peak bytes of a device, and compiler cycles with attention kernels left out, both loops counted by their trips.
    """

    peak_bytes: float
    cycles: float
    compile_seconds: float
    compile_peak_bytes: float


PEERS = {"v5p": Peer(51.77e9, 3.977e9, 404, 6.4e9), "tpu7x": Peer(29.58e9, 1.375e9, 555, 6.3e9)}
ALONE = ("stage3", "32b")
"""Plans without a peer: that they fit is what counts."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", choices=(*PEERS, *ALONE), action="append", help="default: all")
    parser.add_argument("--cache", default="~/.cache/ectype/plan", help="folder of compiled programs")
    options = parser.parse_args()
    figures = Figures()
    for name in options.case or (*PEERS, *ALONE):
        record = plans.make(name, options.cache)
        title = f"{record['recipe']} on {record['topology']}"
        memory = record["memory"]
        peak = memory["peak"] or memory["refused_at"]
        figures.at_most(f"{title}: peak memory of a device", peak, "bytes", memory["limit"], mesh=record["mesh"])
        if record["step"] is None:
            sys.exit(f"{name}: the program does not fit")
        kernels, layers = record["step"]["attention_kernels"], layers_run(record)
        figures.at_most(
            f"{title}: forward attention kernels a pass", kernels.get("splash_mha_fwd", 0) / layers, "calls", 1
        )
        if name in PEERS:
            judge(title, PEERS[name], peak, record, figures)
    figures.finish()


def layers_run(record: dict[str, Any]) -> int:
    """How often a step runs a layer forward: the backward kernel runs once each time."""
    return record["step"]["attention_kernels"]["splash_mha_dq"]


def judge(title: str, peer: Peer, peak: float, record: dict[str, Any], figures: Figures) -> None:
    """Memory and cycles beside the peer's."""
    step = record["step"]
    figures.at_most(
        f"{title}: peak memory over MaxText's", peak / peer.peak_bytes, "ratio", 0.8, peak_bytes=peak,
        compile_seconds=round(record["compile_seconds"]), compile_peak_bytes=record["compile_peak_bytes"],
        peer_compile_seconds=peer.compile_seconds, peer_compile_peak_bytes=peer.compile_peak_bytes,
    )  # fmt: skip
    figures.at_most(
        f"{title}: compiler cycles over MaxText's", step["compute_cycles"] / peer.cycles, "ratio", 0.9,
        cycles=step["compute_cycles"], unknown=step["unknown_cycles"], seconds=step["seconds"],
    )  # fmt: skip


if __name__ == "__main__":
    main()
