"""The audit of the whole stage-1 plan: 724 million windows, 64 hosts to step 1,050,000, then 16.

    python benchmarks/2_audit_plan.py [--windows N] [--cache DIR]

The order is built first, if the cache folder lacks it, and not counted. Prints one JSON line per figure; exit 1 on a
miss.
"""

import argparse
import json
import resource
import sys
import tempfile
import time
from pathlib import Path


def main() -> int:
    """Measure, print the lines, return the exit code."""
    from ectype.data.audit import audit_plan
    from ectype.data.host_stages import parse_host_stages
    from ectype.data.order import make_order
    from ectype.recipe.spec import Data, Order

    parser = argparse.ArgumentParser()
    parser.add_argument("--windows", type=int, default=724_000_000)
    parser.add_argument("--cache", type=Path)
    options = parser.parse_args()
    data = Data(
        sequence_length_tokens=8192, global_batch_windows=512, eos_id=100_257, pad_id=100_277, order=Order(seed=34521)
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        order = make_order(options.windows, data, options.cache or Path(folder))
        order.batch_ids(0)
        steps = order.steps_per_epoch
        stages = parse_host_stages(f"64 hosts to step {int(0.743 * steps)}, then 16", steps)
        wall, cpu = time.perf_counter(), time.process_time()
        audit = audit_plan(order, stages)
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    (epoch,) = audit.epochs
    exact = audit.clean and epoch.read_once == steps * 512 and epoch.unread == options.windows - epoch.read_once
    peak_gb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
    print(
        json.dumps(
            {"name": "plan audit of 724M windows", "value": round(wall, 2), "unit": "s", "target": "< 60",
             "holds": wall < 60, "cpu_seconds": round(cpu, 2), "peak_gb_with_mapped_order": round(peak_gb, 2)}
        )
    )  # fmt: skip
    verdict = {"name": "plan audit: windows read exactly once", "value": epoch.read_once, "unit": "windows"}
    print(json.dumps(verdict | {"target": f"== {steps * 512}", "holds": exact}))
    return 0 if exact and wall < 60 else 1


if __name__ == "__main__":
    sys.exit(main())
