"""A held-out evaluation of 16 million tokens through the command line: its memory beside one of a million, and speed.

    python benchmarks/6_held_out_16m.py [--folder FOLDER]

Two small models are compared on the preset `c4-16m`, whose text is made up: 16,777,216 ids in windows of 8,192, with
loss, KL and top-1 of every token. Each evaluation is a process of its own, and its peak memory is the kernel's figure.
One JSON line per figure; exit 1 on a miss.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from figures import Figures

from ectype.model.parameters import init_parameters
from ectype.recipe.spec import Model
from ectype.run.checkpoints import WEIGHTS_ITEM, description_file
from ectype.weights import store, tree
from ectype.weights.checkpoint import describe, expected_leaves

TOKENS, WINDOW = 2048 * 8192, 8192
FEWER = TOKENS // 16
GROWTH_TARGET_MEGABYTES, PEAK_TARGET_GIGABYTES = 48, 1.5
MODEL = Model(
    d_model=16, n_layers=1, n_heads=1, n_kv_heads=1, head_dim=16, d_ffn=32, vocab_size=256, window_pattern=(64,),
    rope_theta=1e4,
)  # fmt: skip


def write_checkpoint(path: Path, seed: int) -> None:
    """A checkpoint of freshly drawn weights."""
    weights = path / WEIGHTS_ITEM
    weights.mkdir(parents=True)
    for leaf, values in tree.flatten(init_parameters(MODEL, seed)).items():
        store.write_array(weights, leaf, np.asarray(values))
    store.describe_to_orbax(weights, expected_leaves(MODEL, "float32"))
    file = description_file(path)
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps(describe(MODEL, "float32", kind="weights", source={"kind": "drawn"})))


def write_tokens(path: Path, tokens: int) -> None:
    """Ids drawn from a skewed distribution, a million at a time."""
    with path.open("wb") as stream:
        for start in range(0, tokens, 1 << 20):
            ids = np.random.default_rng(start).geometric(0.02, min(1 << 20, tokens - start)) % MODEL.vocab_size
            stream.write(ids.astype("<u1").tobytes())


def evaluate(folder: Path, held_out: str) -> tuple[dict, float, float]:
    """The evaluation, its seconds, and its peak memory in bytes."""
    command = [
        sys.executable, "-m", "ectype.cli", "evaluate", str(folder / "ours"), "--against", str(folder / "reference"),
        "--held-out", held_out, "--batch-windows", "4", "--json",
    ]  # fmt: skip
    began = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as child:
        assert child.stdout is not None
        output = child.stdout.read()
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        sys.exit(output)
    (found,) = json.loads(output)["evaluations"].values()
    return found, time.perf_counter() - began, usage.ru_maxrss * 1024


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, help="where weights and text are made; default: a temporary one")
    arguments = parser.parse_args()
    figures = Figures()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as name:
        folder = Path(name)
        write_checkpoint(folder / "ours", 1)
        write_checkpoint(folder / "reference", 2)
        write_tokens(folder / "c4.npy", TOKENS)
        (folder / "fewer.yaml").write_text(
            f"tokens: {{c4: c4.npy}}\ndtype: uint8\nwindow_tokens: {WINDOW}\nfirst_tokens: {FEWER}\n"
        )
        _, _, few_bytes = evaluate(folder, f"fewer={folder / 'fewer.yaml'}")
        found, seconds, peak_bytes = evaluate(folder, f"c4-16m={folder / 'c4.npy'}")
    targets = found["overall"]["targets"]
    assert targets == TOKENS // WINDOW * (WINDOW - 1)
    figures.at_most(
        "held-out evaluation of 16 M tokens: peak memory over that of 1 M", (peak_bytes - few_bytes) / 1e6, "MB",
        GROWTH_TARGET_MEGABYTES, peak_gigabytes=round(peak_bytes / 1e9, 3),
    )  # fmt: skip
    figures.at_most("held-out evaluation of 16 M tokens: peak memory", peak_bytes / 1e9, "GB", PEAK_TARGET_GIGABYTES)
    figures.at_most(
        "held-out evaluation of 16 M tokens: time", seconds, "s", 600, tokens_per_second=round(targets / seconds)
    )
    figures.finish()


if __name__ == "__main__":
    main()
