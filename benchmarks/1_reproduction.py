"""The bundled calm run, reproduced by `ectype demo` in a process of its own: time, memory, and how near it came.

    python benchmarks/1_reproduction.py [--out DIR]

Two minutes on an idle machine of two cores. One JSON line per figure; exit 1 on a miss.
"""

import argparse
import csv
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from figures import Figures


def trajectory(run: Path, log: Path) -> tuple[float, float, set[int]]:
    """Largest loss difference, largest relative norm difference, steps skipped on one side only."""
    ours = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    with open(log) as stream:
        theirs = list(csv.DictReader(stream))
    pairs = list(zip(ours, theirs, strict=True))
    loss = max(abs(a["loss"] - float(b["ce_loss"])) for a, b in pairs)
    norm = max(abs(a["grad_norm"] / float(b["grad_norm"]) - 1) for a, b in pairs)
    return loss, norm, {a["step"] for a, b in pairs if a["skipped"] != (float(b["step_skipped"]) == 1)}


def main() -> None:
    from ectype.artifacts import package_path

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    out = parser.parse_args().out or Path(tempfile.mkdtemp()) / "demo"
    figures, began = Figures(), time.perf_counter()
    done = subprocess.run([sys.executable, "-m", "ectype.cli", "demo", "--out", str(out)], stdout=subprocess.PIPE)
    seconds = time.perf_counter() - began
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024 / 1e9
    load = os.getloadavg()[0]
    figures.at_most("demo: exit code (0 is `same model`)", done.returncode, "code", 0)
    figures.at_most("demo: time after install", round(seconds, 1), "seconds", 300, load_average=load)
    figures.at_most("demo: peak resident memory", round(peak, 2), "GB", 3)
    loss, norm, skipped = trajectory(out / "run", package_path("package:demo/bundle/log.csv"))
    figures.at_most("calm run: largest training-loss difference of 640 steps", loss, "nats per token", 1e-5)
    figures.at_most("calm run: largest gradient-norm difference of 640 steps", norm, "relative", 2e-4)
    figures.at_most("calm run: steps skipped on one side only", len(skipped), "steps", 0)
    records = [json.loads(path.read_text()) for path in sorted((out / "run/evaluations").glob("step-*.json"))]
    overall = [record["overall"] for record in records]
    figures.at_least("calm run: landmarks evaluated", len(records), "landmarks", 5)
    held_out = max(abs(o["loss"]["ours"] - o["loss"]["reference"]) for o in overall)
    figures.at_most("calm run: largest held-out loss difference", held_out, "nats per token", 1e-5)
    figures.at_most("calm run: largest mean token KL", max(o["kl_mean"] for o in overall), "nats per token", 1e-6)
    figures.at_least("calm run: lowest top-1 agreement", min(o["top1_agreement"] for o in overall), "fraction", 0.999)
    figures.finish()


if __name__ == "__main__":
    main()
