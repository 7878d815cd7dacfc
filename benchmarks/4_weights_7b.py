"""Import and export of a synthetic OLMo 3 7B: memory, rate beside a plain file copy, a kill, and the round trip.

    python benchmarks/4_weights_7b.py [--size 7b|1b|tiny] [--folder DIR]

Writes random weights in real shapes (7b: 14.6 GB, at most 50 GB of disk in all; 1b: 3 GB and 12 GB), and everything
else beside them. With --folder the Hugging Face folder and the checkpoint are kept there, for `4_parity_7b.py`; without
it all is removed. Every reader starts without its input in the page cache, every writer ends with its output on the
disk; a file is copied before, between and after, since a shared disk changes its speed. Rates count whole processes,
start included. One JSON line per figure; exit 1 on a miss.
"""

import argparse
import json
import shutil
import tempfile
import time
from pathlib import Path

import synthetic
from figures import Figures

LARGEST_PEAK_BYTES = 3_000_000_000
SMALLEST_SHARE = 0.5
PARTIAL = ".checkpoint.ectype-partial"
KILL_AT = 0.5
"""Share of the bytes that the journal holds when the import is killed."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=synthetic.SIZES, default="7b")
    parser.add_argument("--folder", type=Path, help="where to work; default: a temporary folder")
    options = parser.parse_args()
    size, figures = synthetic.SIZES[options.size], Figures()
    with tempfile.TemporaryDirectory() as temporary:
        folder = (options.folder or Path(temporary)) / options.size
        synthetic.remove(folder / "checkpoint", folder / "back", folder / "copy", folder / PARTIAL)
        written = synthetic.is_written(folder / "hf")
        synthetic.require_space(folder, (2 if written else 3) * synthetic.total_bytes(size) + synthetic.SHARD_BYTES)
        measure(options.size, folder, synthetic.write_checkpoint(folder / "hf", size), figures)
    figures.finish()


def measure(name: str, folder: Path, digests: dict[str, str], figures: Figures) -> None:
    """All figures of one size, from a written Hugging Face folder."""
    size = synthetic.SIZES[name]
    hf, checkpoint, back = folder / "hf", folder / "checkpoint", folder / "back"
    total, copies = synthetic.total_bytes(size), [copy_rate(hf, folder / "copy")]
    synthetic.forget(hf)
    arguments = ["weights", "import", str(hf), str(checkpoint)]
    first = synthetic.run_child(arguments, lambda: journalled_bytes(folder, size) >= KILL_AT * total)
    finished = journalled_bytes(folder, size)
    synthetic.forget(hf)
    second = synthetic.run_child(arguments)
    copies.append(copy_rate(hf, folder / "copy"))
    synthetic.forget(checkpoint)
    export = synthetic.run_child(["weights", "export", str(checkpoint), str(back)])
    copies.append(copy_rate(back, folder / "copy"))
    copy, title = len(copies) / sum(1 / rate for rate in copies), f"synthetic {name}"
    for what, parts in (("import", (first, second)), ("export", (export,))):
        peak, rate = max(part.peak_bytes for part in parts), total / sum(part.seconds for part in parts)
        figures.at_most(f"{title}: peak memory of {what}", peak, "bytes", LARGEST_PEAK_BYTES)
        figures.at_least(
            f"{title}: rate of {what} over a file copy's", round(rate / copy, 3), "ratio", SMALLEST_SHARE,
            bytes_per_second=round(rate), copies_bytes_per_second=[round(rate) for rate in copies],
            starts=len(parts), cpu_seconds=round(sum(part.cpu_seconds for part in parts), 1),
        )  # fmt: skip
    figures.at_most(
        f"{title}: share of the import that its second start wrote, after a kill",
        round(second.written_bytes / total, 3), "fraction", round(1 - finished / total + 0.05, 3),
        exit_code=first.code, finished_before_kill=round(finished / total, 3),
        seconds=[round(first.seconds, 1), round(second.seconds, 1)],
    )  # fmt: skip
    found = synthetic.read_digests(back)
    same = sum(found.get(tensor) == digest for tensor, digest in digests.items())
    figures.at_least(f"{title}: tensors with their own SHA-256 after the round trip", same, "tensors", len(digests))
    synthetic.remove(back)


def copy_rate(source: Path, target: Path) -> float:
    """Bytes per second of a plain copy of the folder's first file, its input cold, its output synced."""
    synthetic.forget(source)
    target.mkdir()
    file = min(source.glob("*.safetensors"))
    started = time.monotonic()
    shutil.copyfile(file, target / file.name)
    synthetic.sync(target)
    seconds = time.monotonic() - started
    synthetic.remove(target)
    return file.stat().st_size / seconds


def journalled_bytes(folder: Path, size: synthetic.Size) -> int:
    """Bytes of the tensors that an unfinished import has recorded as being on the disk."""
    journal = folder / PARTIAL / "journal.jsonl"
    if not journal.is_file():
        return 0
    shapes, found = synthetic.shapes_of(size), 0
    for line in journal.read_text().splitlines():
        try:
            names = json.loads(line).get("value", {})
        except ValueError:
            break
        found += sum(2 * synthetic.elements(shapes[name]) for name in names)
    return found


if __name__ == "__main__":
    main()
