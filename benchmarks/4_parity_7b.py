"""Parity of a synthetic OLMo 3 7B with transformers, layer by layer: agreement, peak memory and time.

    python benchmarks/4_parity_7b.py [--size 7b|1b|tiny] [--folder DIR] [--dtype float32|bfloat16] [--length 1024]

Needs the extra `reference`. Uses the Hugging Face folder and the checkpoint that `4_weights_7b.py` left in --folder, or
makes them (7b: 30 GB of disk). Both element types unless one is named. One JSON line per figure; exit 1 on a miss.
"""

import argparse
import json
import math
import tempfile
from pathlib import Path

import synthetic
from figures import Figures

LARGEST_PEAK_BYTES = 8_000_000_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=synthetic.SIZES, default="7b")
    parser.add_argument("--folder", type=Path, help="where to work; default: a temporary folder")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), help="default: both, in turn")
    parser.add_argument("--length", type=int, default=1024, help="tokens")
    options = parser.parse_args()
    size, figures = synthetic.SIZES[options.size], Figures()
    with tempfile.TemporaryDirectory() as temporary:
        folder = (options.folder or Path(temporary)) / options.size
        hf, checkpoint = folder / "hf", folder / "checkpoint"
        missing = (not synthetic.is_written(hf)) + (not checkpoint.exists())
        synthetic.require_space(folder, missing * synthetic.total_bytes(size) + 500_000_000)
        synthetic.write_checkpoint(hf, size)
        if not checkpoint.exists():
            synthetic.run_child(["weights", "import", str(hf), str(checkpoint)])
        for dtype in (options.dtype,) if options.dtype else ("float32", "bfloat16"):
            title = f"parity of synthetic {options.size}, {dtype}, {options.length} tokens"
            measure(title, folder, dtype, options.length, figures)
    figures.finish()


def measure(title: str, folder: Path, dtype: str, length: int, figures: Figures) -> None:
    """Run `ectype weights parity` on random tokens and print its figures."""
    arguments = ["weights", "parity", str(folder / "checkpoint"), str(folder / "hf"), "--dtype", dtype]
    child = synthetic.run_child([*arguments, "--length", str(length)])
    found = json.loads(child.output)
    figures.at_most(
        f"{title}: peak memory", child.peak_bytes, "bytes", LARGEST_PEAK_BYTES, seconds=round(child.seconds)
    )
    drift = [row["relative_error"] for row in found["layers"]]
    rows = {"first_layer_drift": drift[0], "last_layer_drift": drift[-1], "largest_drift": max(map(known, drift))}
    if dtype == "float32":
        largest, tolerances = known(found["logit_difference_max"]), found["tolerances"]
        rounding = found["reference_rounding_max"] or 0.0
        limit = max(tolerances["logit_difference_max"], tolerances["float32_rounding_ratio"] * rounding)
        figures.at_most(f"{title}: largest logit difference", largest, "logits", limit, **rows)
        figures.at_most(f"{title}: largest token KL", known(found["kl_max"]), "nats", 1e-8)
        figures.at_least(f"{title}: top-1 agreement", known(found["top1_agreement"]), "fraction", 1.0)
        return
    kl, own = known(found["kl_mean"]), known(found["reference_kl_mean"])
    figures.at_most(
        f"{title}: our KL over transformers' own, both to float32", round(kl / own, 3), "ratio", 1.1,
        kl_mean=kl, reference_kl_mean=own, top1_agreement=found["top1_agreement"], **rows,
    )  # fmt: skip


def known(value: float | None) -> float:
    """NaN, which misses every target, where a NaN spoilt the figure."""
    return math.nan if value is None else value


if __name__ == "__main__":
    main()
