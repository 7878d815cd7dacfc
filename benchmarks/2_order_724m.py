"""The order of 724 million windows (OLMo 3 7B stage 1): time and memory to build it, to read from it, to start with it.

    python benchmarks/2_order_724m.py [--windows N] [--cache DIR]

Needs 3.5 GB of memory and 3 GB of disk; token files are sparse. Prints one JSON line per figure; exit 1 on a miss.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

WINDOWS, FILES, LENGTH, BATCH, SEED = 724_000_000, 1016, 8192, 512, 34521


def data_section():
    """Stage 1's data section."""
    from ectype.recipe.spec import Data, Order

    order = Order(seed=SEED)
    return Data(sequence_length_tokens=LENGTH, global_batch_windows=BATCH, eos_id=100_257, pad_id=100_277, order=order)


def peak_gb() -> float:
    """Peak resident memory of this process so far, in GB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9


def build(windows: int, cache: Path) -> dict[str, float]:
    """Build the order and read one batch of it."""
    from ectype.data.order import make_order

    started = time.perf_counter()
    make_order(windows, data_section(), cache).batch_ids(0)
    seconds = time.perf_counter() - started
    return {"seconds": seconds, "cpu_seconds": time.process_time(), "peak_gb": peak_gb()}


def read(windows: int, cache: Path) -> dict[str, float]:
    """Open the stored order and read a batch far inside."""
    from ectype.data.order import make_order

    started = time.perf_counter()
    make_order(windows, data_section(), cache).batch_ids(min(1_000_000, windows // BATCH - 1))
    return {"seconds": time.perf_counter() - started}


def start(windows: int, cache: Path) -> dict[str, float]:
    """What a start or restart does: check every file against the index, open the loader, get a batch far inside."""
    from ectype.data.index import load_index
    from ectype.data.loader import open_loader

    started = time.perf_counter()
    index = load_index(cache / "index.json", data_section(), 100_278)
    first = min(1_000_000, windows // BATCH - 1)
    with open_loader(index, data_section(), first_batch=first, cache_dir=cache) as loader:
        next(loader)
    return {"seconds": time.perf_counter() - started, "peak_gb": peak_gb()}


def write_sparse_index(windows: int, cache: Path) -> None:
    """Index sparse token files of the stage's size: holes read as zeros and take no disk."""
    from ectype.data.index import write_index
    from ectype.data.manifest import Entry
    from ectype.data.tokenindex import build_index

    entries = []
    for number in range(FILES):
        path = cache / f"{number:04}.npy"
        share = windows // FILES + (number < windows % FILES)
        with open(path, "wb") as stream:
            stream.truncate(4 * LENGTH * share)
        entries.append(Entry(str(path), "web", path.name))
    write_index(build_index(entries, sequence_length_tokens=LENGTH, vocab_size=100_278), cache / "index.json")


def in_a_process_of_its_own(what: str, windows: int, cache: Path) -> dict[str, float]:
    """Run one of the measurements in a fresh process and return its figures."""
    command = [sys.executable, __file__, "--windows", str(windows), "--cache", str(cache), "--only", what]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True, env=os.environ).stdout)


def main() -> int:
    """Measure all, print the lines, return the exit code."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--windows", type=int, default=WINDOWS)
    parser.add_argument("--cache", type=Path)
    parser.add_argument("--only", choices=("build", "read", "start"))
    options = parser.parse_args()
    if options.only:
        print(json.dumps({"build": build, "read": read, "start": start}[options.only](options.windows, options.cache)))
        return 0
    with tempfile.TemporaryDirectory() as folder:
        cache = options.cache or Path(folder)
        built = in_a_process_of_its_own("build", options.windows, cache)
        opened = in_a_process_of_its_own("read", options.windows, cache)
        write_sparse_index(options.windows, Path(folder))
        for path in cache.glob("order-*.u32") if cache != Path(folder) else ():
            (Path(folder) / path.name).symlink_to(path)
        started = in_a_process_of_its_own("start", options.windows, Path(folder))
    figures = (
        ("order of 724M windows: build", built["seconds"], "s", 120, {"cpu_seconds": round(built["cpu_seconds"], 1)}),
        ("order of 724M windows: peak memory", built["peak_gb"], "GB", 3.5, {}),
        ("order of 724M windows: open and read batch 1,000,000", opened["seconds"], "s", 1, {}),
        ("start at batch 1,000,000 with 1,016 files checked", started["seconds"], "s", 5, {}),
        ("start at batch 1,000,000: peak memory", started["peak_gb"], "GB", 0.5, {}),
    )
    for name, value, unit, most, more in figures:
        line = {"name": name, "value": round(value, 3), "unit": unit, "target": f"< {most}", "holds": value < most}
        print(json.dumps(line | more))
    return 0 if all(value < most for _, value, _, most, _ in figures) else 1


if __name__ == "__main__":
    sys.exit(main())
