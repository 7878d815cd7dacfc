"""Logits of the bundled weights beside those of transformers, in float32 and in bfloat16, at over twice the window.

    python benchmarks/1_parity.py [--length 256]

Needs the extra `reference`. Held-out text of the bundle through the first and the last landmark. One JSON line per
figure; exit 1 on a miss.
"""

import argparse
import math
import tempfile
from pathlib import Path

import numpy as np
from figures import Figures

LANDMARKS = (0, 640)


def main() -> None:
    from ectype.artifacts import package_path
    from ectype.weights.hf_import import import_weights
    from ectype.weights.parity import measure_parity

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--length", type=int, default=256)
    length = parser.parse_args().length
    text = sorted(package_path("package:demo/bundle/tokens/heldout").glob("*.npy"))[0]
    tokens = np.fromfile(text, np.uint16, length).astype(np.int32)
    figures = Figures()
    for step in LANDMARKS:
        folder = package_path(f"package:demo/bundle/hf/step{step}")
        with tempfile.TemporaryDirectory() as work:
            import_weights(folder, Path(work) / "checkpoint")
            single = measure_parity(Path(work) / "checkpoint", folder, tokens)
            half = measure_parity(Path(work) / "checkpoint", folder, tokens, dtype="bfloat16")
        name = f"parity of landmark {step}"
        shape = {"length_tokens": single.length_tokens, "window_tokens": single.window_tokens}
        figures.at_most(
            f"{name}: largest logit difference", _known(single.logit_difference_max), "logits", 1e-4, **shape
        )
        figures.at_most(f"{name}: largest token KL", _known(single.kl_max), "nats", 1e-8)
        figures.at_least(f"{name}: top-1 agreement", _known(single.top1_agreement), "fraction", 1.0)
        ratio = _known(half.kl_mean) / _known(half.reference_kl_mean)
        figures.at_most(f"{name}: bfloat16 KL over transformers' own", round(ratio, 3), "ratio", 1.1)
    figures.finish()


def _known(value: float | None) -> float:
    """NaN, which misses every target, where a NaN spoilt the figure."""
    return math.nan if value is None else value


if __name__ == "__main__":
    main()
