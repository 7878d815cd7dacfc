"""Predictions beside the five published measurements of the case study.

    python benchmarks/5_calibration.py [--cache DIR]

Needs the extra `plan`, and compiles six 7B steps unless the cache has them: allow 10 minutes each on two cores.

The two step times and the gain of wider heads belong to MaxText's program, so they are predicted for it: the compiler's
cycles of that program (taken as the same for both shapes of heads), and our models of its kernels and collectives. The
other two ratios are those of Ectype's own plans. One JSON line per figure; exit 1 on a miss.
"""

import argparse
import sys
from dataclasses import dataclass, replace

import plans
from figures import Figures

from ectype.model.parameters import parameter_count
from ectype.plan.attention_cost import FORWARD_PRODUCTS, AttentionShape, kernel_seconds
from ectype.plan.hardware import parse_slice
from ectype.plan.predict import load_assumptions
from ectype.recipe.load import load_recipe

FUSED_BACKWARD_PRODUCTS = 5
"""Scores, gradients of the weights, of the values, of the keys and of the queries, in one kernel."""
LARGEST_ERROR, LARGEST_ERROR_POINTS = 12.0, 3.0


@dataclass(frozen=True)
class Published:
    """A step of the case study, and the cycles of the same program compiled by MaxText `e591f30` with its flags.

    Its collectives: parameters gathered in bfloat16 for both passes, gradients summed in float32 by all-reduces (its
    compiled text has no reduce-scatter). On Ironwood its flags give them to the SparseCores, so the step takes the
    longer of both; on v5p it waits for them.
    """

    recipe: str
    topology: str
    windows_a_device: int
    cycles: float
    offloaded: bool
    seconds: float


STEPS = {
    "v5p stage 2": Published("olmo3-7b-stage2", "v5p:4x4x8", 2, 3.977e9, False, 2.96),
    "Ironwood stage 1": Published("olmo3-7b-stage1", "tpu7x:4x8x8", 1, 1.375e9, True, 0.764),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cache", default="~/.cache/ectype/plan", help="folder of compiled programs")
    options = parser.parse_args()
    figures = Figures()
    for name, step in STEPS.items():
        predicted, parts = published_step(step)
        error = 100 * (predicted / step.seconds - 1)
        figures.at_most(
            f"{name}, MaxText's program: error of the predicted step", abs(error), "percent", LARGEST_ERROR,
            error=error, predicted_seconds=predicted, published_seconds=step.seconds, **parts,
        )  # fmt: skip
    rate = {
        name: plans.make(name, options.cache)["step"]["tokens_per_second"]["expected"]
        for name in ("tpu7x", "tpu7x-wide-heads", "tpu7x-128", "v5p-4x32", "v5p-8x16")
    }
    ratios = {
        "heads 16x256 over 32x128, MaxText's program": (100 * (wider_heads() - 1), 12.4),
        "512 over 128 devices, of four times": (100 * rate["tpu7x"] / (4 * rate["tpu7x-128"]), 100 * 3.99 / 4),
        "FSDP 4x32 over 8x16": (100 * (rate["v5p-4x32"] / rate["v5p-8x16"] - 1), 0.0),
    }
    for name, (predicted, published) in ratios.items():
        figures.at_most(
            f"{name}: distance from the published gain", abs(predicted - published), "percentage points",
            LARGEST_ERROR_POINTS, predicted_percent=predicted, published_percent=published,
        )  # fmt: skip
    own = 100 * (rate["tpu7x-wide-heads"] / rate["tpu7x"] - 1)
    print(f"heads 16x256 over 32x128, Ectype's own plans: {own:.1f} %", file=sys.stderr)
    figures.finish()


def wider_heads() -> float:
    """Steps of 32 heads of 128 over steps of 16 heads of 256, all else the same."""
    narrow = STEPS["Ironwood stage 1"]
    return published_step(narrow)[0] / published_step(replace(narrow, recipe="olmo3-7b-stage1-heads16x256"))[0]


def published_step(step: Published) -> tuple[float, dict[str, float]]:
    """Seconds of the step; of compute by the compiler's cycles, of the attention kernels, and of the links."""
    recipe, where = load_recipe(step.recipe), parse_slice(step.topology)
    hardware, assumptions = where.hardware, load_assumptions()
    model, length = recipe.model, recipe.data.sequence_length_tokens
    attention = sum(
        kernel_seconds(shape, products, hardware, assumptions.kernel_efficiency.expected)
        for layer in range(model.n_layers)
        for shape in [
            AttentionShape(
                step.windows_a_device, length, model.layer_window(layer), model.n_heads, model.head_dim, 2048
            )
        ]
        for products in (FORWARD_PRODUCTS, FUSED_BACKWARD_PRODUCTS)
    )
    share = (where.devices - 1) / where.devices
    received = parameter_count(model) * share * (2 * 2 + 2 * 4)
    rate = hardware.ici_bytes_per_second / hardware.chip.devices_per_chip * assumptions.link_efficiency.expected
    parts = {"compute": step.cycles / hardware.clock_hz, "attention": attention, "links": received / rate}
    units = parts["compute"] + parts["attention"]
    return max(units, parts["links"]) if step.offloaded else units + parts["links"], parts


if __name__ == "__main__":
    main()
