"""The hot run (peak rate 3e-3), which nobody can follow step by step: its first steps, then statistics against twins.

    python benchmarks/1_hot_run.py REFERENCE_FOLDER [--out DIR]

REFERENCE_FOLDER holds the reference run in the layout of `docs/reference-folder.md`, its `reference.json` included.
Trains the run and three twins (ten minutes on two idle cores), evaluates and compares. One JSON line per figure; exit 1
on a miss.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from figures import Figures


def ectype(*arguments: str) -> subprocess.CompletedProcess:
    """Run one verb in a process of its own."""
    return subprocess.run([sys.executable, "-m", "ectype.cli", *arguments], stdout=subprocess.PIPE, text=True)


def main() -> None:
    from ectype.recipe.reference import load_reference, read_training_log

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("reference")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    reference = load_reference(options.reference)
    if reference.log is None:
        parser.error(f"{options.reference} names no training log")
    log = read_training_log(reference.log)
    run = str((options.out or Path(tempfile.mkdtemp())) / "run")
    ectype("train", "toy-hot", "--run", run).check_returncode()
    ectype("evaluate", run, "--reference", options.reference).check_returncode()
    compared = ectype("compare", run, "--reference", options.reference, "--twins", "3", "--json")
    verdict = json.loads(compared.stdout)
    ours = [json.loads(line) for line in Path(run, "metrics.jsonl").read_text().splitlines()]
    early = max(abs(a["loss"] - b) for a, b in zip(ours[:40], log.loss[:40], strict=True))
    figures = Figures()
    figures.at_most("hot run: largest training-loss difference of 40 steps", early, "nats per token", 1e-5)
    for criterion in verdict["criteria"]:
        if criterion["domain"] is None and criterion["tolerance"] is not None and criterion["measured"] is not None:
            place = "" if criterion["landmark"] is None else f" at step {criterion['landmark']}"
            at = figures.at_least if criterion["name"].startswith("top-1") else figures.at_most
            measured = criterion["measured"] if at == figures.at_least else abs(criterion["measured"])
            at(f"hot run: {criterion['name']}{place}", measured, "see verdict.json", criterion["tolerance"])
    figures.at_most("hot run: exit code of compare (0 is `same model`)", compared.returncode, "code", 0)
    figures.finish()


if __name__ == "__main__":
    main()
