"""Tokens a second through the loader: one process, 20 files of 4 M tokens in page cache, length 8,192, batch 8.

    python benchmarks/2_loader_throughput.py [--seconds S]

The filter is OLMo-core's (13, 1, 32). Tokens are Zipf-distributed; one window in fifty holds a long repetition.
Prints one JSON line per figure; exit 1 on a miss.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

FILES, FILE_TOKENS, LENGTH, BATCH, VOCAB = 20, 4_000_000, 8192, 8, 100_278
PEER_FILTER_ON, PEER_FILTER_OFF = 1.47e6, 8.65e6
"""Tokens a second of the peer's loader on the same kind of machine."""


def write_files(folder: Path) -> None:
    """Zipf-distributed ids, and repetitions of periods 1 to 13 in some windows."""
    generator = np.random.default_rng(0)
    for number in range(FILES):
        tokens = np.minimum(generator.zipf(1.2, FILE_TOKENS), VOCAB - 1).astype("<u4")
        for _ in range(FILE_TOKENS // LENGTH // 50):
            period, place = int(generator.integers(1, 14)), int(generator.integers(0, FILE_TOKENS - 1000))
            tokens[place : place + 40 * period] = np.resize(tokens[place : place + period], 40 * period)
        tokens.tofile(folder / f"{number:02}.npy")


def measure(folder: Path, filtered: bool, seconds: float) -> dict[str, float]:
    """Read batches for some seconds, after a pass that warms the page cache."""
    from ectype.data.index import load_index
    from ectype.data.loader import open_loader
    from ectype.recipe.spec import Data, Order, RepetitionFilter

    data = Data(
        sequence_length_tokens=LENGTH, global_batch_windows=BATCH, eos_id=100_257, pad_id=100_277,
        order=Order(seed=34521), repetition_filter=RepetitionFilter() if filtered else None,
    )  # fmt: skip
    index = load_index(folder, data, VOCAB)
    steps = index.windows // BATCH
    batches = rejected = 0
    with open_loader(index, data, first_batch=0) as loader:
        for _ in range(steps):
            next(loader)
        wall, cpu = time.perf_counter(), time.process_time()
        while time.perf_counter() - wall < seconds:
            batch = next(loader)
            batches += 1
            rejected += int((~batch.keep).sum())
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    tokens = batches * BATCH * LENGTH
    peak_gb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
    return {
        "rate": tokens / wall,
        "cpu_rate": tokens / cpu,
        "rejected": rejected / (batches * BATCH),
        "peak_gb": peak_gb,
    }


def main() -> int:
    """Measure with the filter on and off, each in a process of its own."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--only", choices=("on", "off"))
    parser.add_argument("--folder", type=Path)
    options = parser.parse_args()
    if options.only:
        print(json.dumps(measure(options.folder, options.only == "on", options.seconds)))
        return 0
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        write_files(Path(folder))
        for state in ("on", "off"):
            command = [sys.executable, __file__, "--only", state, "--folder", folder, "--seconds", str(options.seconds)]
            found[state] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    good = True
    for state, least in (("on", 5 * PEER_FILTER_ON), ("off", PEER_FILTER_OFF)):
        figures = found[state]
        rate, peak_gb = figures["rate"], figures["peak_gb"]
        lines = (
            (f"loader, filter {state}", rate / 1e6, "M tokens/s", f">= {least / 1e6:.2f}", rate >= least),
            (f"loader, filter {state}: peak memory", peak_gb, "GB", "< 0.5", peak_gb < 0.5),
        )
        more = {"per_cpu_second": round(figures["cpu_rate"] / 1e6, 2), "rejected": round(figures["rejected"], 4)}
        for name, value, unit, target, holds in lines:
            good &= holds
            line = {"name": name, "value": round(value, 3), "unit": unit, "target": target, "holds": holds}
            print(json.dumps(line | more))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
