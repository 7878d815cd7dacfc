"""Every item of every offline task, at three batch sizes and in three orders, beside the harness's own model class.

What `test_harness.py` holds for some items, for all of them: each sample's log-likelihood to 1e-4 nats in float32, its
greediness, the accuracies, and every greedy answer, whatever the batch size and the order of the requests.

The other class adds up an answer's log-probabilities in float32. Two answers of PIQA, of 330 and 453 tokens and near
-1,802 and -2,293 nats, where float32 numbers lie 1.2e-4 and 2.4e-4 apart, it thereby misses by more than the tolerance.
Such a sample is compared with the same log-probabilities added up in float64.
"""

import json
import random

import pytest

pytest.importorskip("lm_eval")
pytest.importorskip("torch")
pytest.importorskip("transformers")

from lm_eval import simple_evaluate
from lm_eval.api.instance import Instance
from lm_eval.tasks import TaskManager

pytestmark = [pytest.mark.reference, pytest.mark.long]

BATCH_SIZES = (1, 3, 8)
TOLERANCE_NATS = 1e-4
FLOAT32_SUMS_NATS = 1024.0
"""From here on float32 numbers lie more than 1e-4 apart."""
LONGEST_TOKENS = 768
"""Some answers are longer than the model was trained for, and the harness's own class refuses those that do not fit."""


@pytest.fixture(scope="module")
def theirs(toy, toy_tokenizer):
    """The harness's own model class on the same weights."""
    pytest.importorskip("accelerate")
    from lm_eval.models.huggingface import HFLM

    return HFLM(
        pretrained=str(toy), tokenizer=str(toy_tokenizer.parent), device="cpu", dtype="float32", batch_size=8,
        max_length=LONGEST_TOKENS,
    )  # fmt: skip


@pytest.fixture(scope="module")
def whole(theirs, offline_tasks):
    """Task manager, names of all tasks, and what the harness's own model makes of all items."""
    manager = TaskManager(include_path=str(offline_tasks))
    names = sorted(path.stem for path in offline_tasks.glob("*.yaml"))
    results = simple_evaluate(model=theirs, tasks=names, task_manager=manager, bootstrap_iters=0)
    assert sum(len(samples) for samples in results["samples"].values()) > 3900
    return manager, names, results


def _shuffled(asked, seed):
    """A method of requests that sees them in another order and answers in the order of its caller."""

    def answer(requests, **options):
        order = random.Random(seed).sample(range(len(requests)), len(requests))
        found = asked([requests[place] for place in order], **options)
        answers = dict(zip(order, found, strict=True))
        return [answers[place] for place in range(len(requests))]

    return answer


@pytest.mark.parametrize("batch_size", BATCH_SIZES)
def test_every_sample_of_every_task_in_any_order(batch_size, ours, theirs, whole):
    manager, names, wanted = whole
    model = ours(batch_size=batch_size, max_length=LONGEST_TOKENS)
    model.loglikelihood = _shuffled(model.loglikelihood, batch_size)
    found = simple_evaluate(model=model, tasks=names, task_manager=manager, bootstrap_iters=0)
    assert set(found["samples"]) == set(names)
    largest, compared, summed_anew, differing = 0.0, 0, 0, []
    for name in names:
        for mine, other in zip(found["samples"][name], wanted["samples"][name], strict=True):
            assert mine["arguments"] == other["arguments"]
            for place, ([ours_said], [theirs_said]) in enumerate(zip(mine["resps"], other["resps"], strict=True)):
                difference = abs(float(ours_said[0]) - float(theirs_said[0]))
                if difference > TOLERANCE_NATS and abs(float(theirs_said[0])) > FLOAT32_SUMS_NATS:
                    asked = mine["arguments"][place]
                    difference, summed_anew = (
                        abs(float(ours_said[0]) - _summed_in_float64(theirs, *asked)),
                        summed_anew + 1,
                    )
                largest = max(largest, difference)
                compared += 1
                if str(ours_said[1]) != str(theirs_said[1]):
                    differing.append((name, mine["doc_id"]))
        for metric in ("acc,none", "acc_norm,none"):
            assert found["results"][name].get(metric) == wanted["results"][name].get(metric), (name, metric)
    print(f"batch size {batch_size}: {compared:,} requests, largest difference {largest:.2e} nats")
    assert largest <= TOLERANCE_NATS
    assert summed_anew <= 4
    assert differing == []


def _summed_in_float64(model, context, answer):
    """The log-probability of an answer, token by token from the model itself."""
    import torch

    given, wanted = model._encode_pair(context, answer)
    tokens = (given + wanted)[-(LONGEST_TOKENS + 1) :]
    logits = model._model_call(torch.tensor([tokens[:-1]]))[0, -len(wanted) :]
    return float(torch.log_softmax(logits, -1).gather(1, torch.tensor(wanted)[:, None]).double().sum())


@pytest.fixture(scope="module")
def answers(theirs, shared):
    """Every question of GSM8K, and the harness's own greedy answers."""
    lines = (shared / "eval_tasks/data/gsm8k.jsonl").read_text().splitlines()
    given = {"until": ["\n\n", "Question:"], "max_gen_toks": 24, "do_sample": False}
    asked = [(f"Question: {json.loads(line)['question']}\nAnswer:", given) for line in lines]
    return asked, theirs.generate_until(_instances(asked), disable_tqdm=True)


def _instances(asked):
    return [Instance(request_type="generate_until", doc={}, arguments=each, idx=0) for each in asked]


@pytest.mark.parametrize("batch_size", BATCH_SIZES)
def test_every_greedy_answer_in_any_order(batch_size, ours, answers):
    asked, wanted = answers
    found = _shuffled(ours(batch_size=batch_size, max_length=LONGEST_TOKENS).generate_until, batch_size)(
        _instances(asked)
    )
    print(f"batch size {batch_size}: {sum(f == w for f, w in zip(found, wanted, strict=True))} of {len(wanted)} equal")
    assert found == wanted
