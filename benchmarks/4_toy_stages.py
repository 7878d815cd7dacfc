"""Stage 1, its extension, stages 2 and 3 at toy size through every hand-over, each judged against OLMo-core's own run.

    python benchmarks/4_toy_stages.py [--out DIR]

Needs ai2-olmo-core, torch and transformers. Makes the references with `peers/olmo_core_stages.py`, trains each stage
from the one before it, evaluates it, and compares it with one twin. One JSON line per figure; exit 1 on a miss.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from figures import Figures

STAGES = ("stage1", "stage1-extension", "stage2", "stage3")
UNITS = {"training loss, each step": "nats per token", "gradient norm, each step": "relative",
         "held-out loss": "nats per token", "token KL": "nats per token"}  # fmt: skip


def ectype(*arguments: str) -> subprocess.CompletedProcess:
    """Run one verb in a process of its own."""
    return subprocess.run([sys.executable, "-m", "ectype.cli", *arguments], stdout=subprocess.PIPE, text=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    out = parser.parse_args().out or Path(tempfile.mkdtemp())
    script = Path(__file__).parent / "peers/olmo_core_stages.py"
    subprocess.run([sys.executable, str(script), str(out / "references")], check=True, stdout=subprocess.DEVNULL)
    figures, source = Figures(), []
    for stage in STAGES:
        run, reference = str(out / stage), ("--reference", str(out / "references" / stage))
        ectype("train", f"toy-{stage}", "--run", run, *source).check_returncode()
        ectype("evaluate", run, *reference).check_returncode()
        compared = ectype("compare", run, *reference, "--twins", "1", "--json")
        for criterion in json.loads(compared.stdout)["criteria"]:
            if criterion["name"] in UNITS:
                name = f"toy {stage}: {criterion['name']}"
                if criterion["landmark"] is not None:
                    name += f" at step {criterion['landmark']}"
                figures.at_most(name, abs(criterion["measured"]), UNITS[criterion["name"]], criterion["tolerance"])
        figures.at_most(f"toy {stage}: exit code of compare (0 is `same model`)", compared.returncode, "code", 0)
        source = ["--from", run]
    figures.finish()


if __name__ == "__main__":
    main()
