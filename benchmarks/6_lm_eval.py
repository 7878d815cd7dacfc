"""Downstream tasks by `ectype` beside lm-evaluation-harness's own Hugging Face model on the same weights, float32.

    python benchmarks/6_lm_eval.py TASK_DIR HF_DIR TOKENIZER_JSON [--limit 40] [--batch-size 8] [--turns 3]

Needs the extra `tasks`. TASK_DIR holds task definitions whose items lie on this machine. Both score the same requests
of all tasks, tokenisation included, once to compile and to compare, then in turns; the figure is the median over turns
of the ratio of their times. One JSON line per figure; exit 1 on a miss.
"""

import argparse
import os
import statistics
import time
from pathlib import Path

from figures import Figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task_dir", type=Path)
    parser.add_argument("weights", type=Path)
    parser.add_argument("tokenizer", type=Path)
    parser.add_argument("--limit", type=int, default=40)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--turns", type=int, default=3)
    given = parser.parse_args()
    os.environ |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    from lm_eval.models.huggingface import HFLM

    from ectype.tasks.harness import EctypeLM
    from ectype.tasks.scoring import hidden_states, target_scores

    models = {
        "ectype": EctypeLM(str(given.weights), str(given.tokenizer), batch_size=given.batch_size),
        "hf": HFLM(
            pretrained=str(given.weights), tokenizer=str(given.tokenizer.parent), device="cpu", dtype="float32",
            batch_size=given.batch_size,
        ),
    }  # fmt: skip
    requests = task_requests(given.task_dir, given.limit)
    first = {name: model.loglikelihood(requests, disable_tqdm=True) for name, model in models.items()}
    programs = hidden_states._cache_size(), target_scores._cache_size()
    seconds: dict[str, list[float]] = {name: [] for name in models}
    for turn in range(given.turns):
        for name in sorted(models, reverse=bool(turn % 2)):
            began = time.monotonic()
            models[name].loglikelihood(requests, disable_tqdm=True)
            seconds[name].append(time.monotonic() - began)
    pairs = list(zip(first["ectype"], first["hf"], strict=True))
    figures, kind = Figures(), {"requests": len(requests), "batch_size": given.batch_size}
    worst = max(abs(ours[0] - theirs[0]) for ours, theirs in pairs)
    figures.at_most("lm-eval: largest difference of a sample's log-likelihood", worst, "nats", 1e-4, **kind)
    other = sum(ours[1] != theirs[1] for ours, theirs in pairs)
    figures.at_most("lm-eval: samples whose greediness differs", other, "samples", 0)
    ratio = statistics.median(h / e for e, h in zip(seconds["ectype"], seconds["hf"], strict=True))
    rates = {f"{name}_requests_per_second": round(len(requests) / min(times), 1) for name, times in seconds.items()}
    figures.at_least("lm-eval: throughput over HFLM's", round(ratio, 3), "ratio", 0.8, **rates)
    figures.at_most("lm-eval: programs compiled", sum(programs), "programs", 2 * 15, layers=programs[0])
    again = hidden_states._cache_size() + target_scores._cache_size() - sum(programs)
    figures.at_most("lm-eval: programs compiled after the first pass", again, "programs", 0)
    figures.finish()


def task_requests(task_dir: Path, limit: int) -> list:
    """Log-likelihood requests of the first `limit` items of each task that `task_dir` defines."""
    from lm_eval.tasks import TaskManager

    names = sorted(path.stem for path in task_dir.glob("*.yaml"))
    tasks = TaskManager(include_path=str(task_dir)).load(names)["tasks"]
    requests = []
    for task in tasks.values():
        task.set_config(key="num_fewshot", value=0)
        task.build_all_requests(limit=limit, rank=0, world_size=1)
        requests += task.instances
    return requests


if __name__ == "__main__":
    main()
