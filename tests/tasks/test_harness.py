"""The model class `ectype` beside lm-evaluation-harness's own on the same weights, float32: sample by sample.

Tolerance 1e-4 nats per sample. The rolling log-likelihood of a long text is a sum near 1,000, which the other model
takes in float32, where numbers of that size lie up to 1.2e-4 apart. There, 1e-4 holds against its own
log-probabilities summed in float64, and its sums are met to the spacing.
"""

import json
import random

import pytest

pytest.importorskip("lm_eval")
pytest.importorskip("torch")
pytest.importorskip("transformers")

from lm_eval import simple_evaluate
from lm_eval.api.instance import Instance
from lm_eval.api.registry import get_model
from lm_eval.tasks import TaskManager
from lm_eval.utils import get_rolling_token_windows

from ectype.errors import EctypeError
from ectype.tasks.requests import rolling_requests

pytestmark = pytest.mark.reference

TASKS = [
    "fx_arc_challenge", "fx_arc_easy", "fx_boolq", "fx_hellaswag", "fx_lambada_openai", "fx_mmlu", "fx_openbookqa",
    "fx_piqa", "fx_winogrande",
]  # fmt: skip
ITEMS = 4
LONG = pytest.mark.long
TOLERANCE = 1e-4


def _instances(kind, arguments):
    return [Instance(request_type=kind, doc={}, arguments=each, idx=0) for each in arguments]


def _close(found, wanted):
    assert [greedy for _, greedy in found] == [greedy for _, greedy in wanted]
    assert max(abs(f - w) for (f, _), (w, _) in zip(found, wanted, strict=True)) <= TOLERANCE


@pytest.fixture(scope="module")
def evaluated(hugging_face, ours, offline_tasks):
    """Results of all offline tasks by both, samples included."""
    manager = TaskManager(include_path=str(offline_tasks))
    return [
        simple_evaluate(model=model, tasks=TASKS, task_manager=manager, limit=ITEMS, bootstrap_iters=0)
        for model in (ours(batch_size=8), hugging_face)
    ]


@pytest.fixture(scope="module")
def pairs(evaluated, hugging_face):
    """Requests of all tasks, and others: no context, spaces at its end, a lone token, far too long."""
    long = " ".join(str(number) for number in range(400))
    odd = [
        ("", "The end"), ("Once upon a time ", "there was"), ("The answer is ", "7"), (long, " 401"), ("a", long[:90]),
        ("line\n", "next"), ("<|endoftext|>In the", " beginning"), ("", "<|endoftext|>word"),
    ]  # fmt: skip
    samples = [sample for own in evaluated[0]["samples"].values() for sample in own]
    asked = [pair for sample in samples for pair in sample["arguments"]] + odd
    return asked, hugging_face.loglikelihood(_instances("loglikelihood", asked), disable_tqdm=True)


def test_every_sample_of_every_task_and_its_accuracy(evaluated):
    ours, theirs = evaluated
    assert set(ours["samples"]) == set(TASKS)
    for name in TASKS:
        assert len(ours["samples"][name]) == ITEMS
        for mine, other in zip(ours["samples"][name], theirs["samples"][name], strict=True):
            assert mine["arguments"] == other["arguments"]
            _close(*([(float(r[0]), str(r[1])) for [r] in sample["resps"]] for sample in (mine, other)))
        found, wanted = (
            {key: value for key, value in results["results"][name].items() if key in ("acc,none", "acc_norm,none")}
            for results in (ours, theirs)
        )
        assert found == wanted
        assert found


@pytest.mark.parametrize("batch_size", [pytest.param(1, marks=LONG), 3, 8])
def test_any_batch_size_and_order(batch_size, ours, pairs):
    asked, wanted = pairs
    order = random.Random(batch_size).sample(range(len(asked)), len(asked))
    found = ours(batch_size=batch_size).loglikelihood(_instances("loglikelihood", [asked[place] for place in order]))
    _close(found, [wanted[place] for place in order])


def test_rolling_log_likelihood(hugging_face, ours, shared):
    lines = (shared / "eval_tasks/data/lambada_openai.jsonl").read_text().splitlines()
    texts = [json.loads(line)["text"] for line in lines[:6]]
    texts += ["", "a", " ".join(texts)]
    asked = _instances("loglikelihood_rolling", [(text,) for text in texts])
    wanted = hugging_face.loglikelihood_rolling(asked, disable_tqdm=True)
    found = ours(batch_size=8).loglikelihood_rolling(asked)
    assert found == pytest.approx(wanted, abs=TOLERANCE, rel=2**-23)
    assert found == pytest.approx([_summed_in_float64(hugging_face, text) for text in texts], abs=TOLERANCE)


def _summed_in_float64(model, text):
    """The model's own log-probabilities of the harness's windows."""
    import torch

    total = 0.0
    tokens = model.tok_encode(text)
    for inputs, targets in get_rolling_token_windows(tokens, model.prefix_token_id, model.max_length, 1):
        logits = model._model_call(torch.tensor([inputs]))[0, -len(targets) :]
        chosen = torch.log_softmax(logits, -1).gather(1, torch.tensor(targets)[:, None])
        total += float(chosen.double().sum())
    return total


@pytest.mark.parametrize("length", [0, 1, 3, 4, 5, 8, 10, 17])
def test_rolling_windows_are_the_harness_own(length):
    """C48."""
    theirs = list(get_rolling_token_windows(list(range(length)), 99, 4, 1))
    ours = [(list(request.inputs), list(request.targets)) for request in rolling_requests(range(length), 99, 4)]
    assert ours == theirs


def test_context_boundaries_are_the_harness_own(hugging_face, ours):
    """C50: for every split of a sentence, spaces and all."""
    from ectype.tasks.requests import encode_pair

    text = ours().text
    sentence = "In the beginning  God created the heaven, and \n the earth."
    for place in range(1, len(sentence)):
        context, continuation = sentence[:place], sentence[place:]
        theirs = hugging_face._encode_pair(context, continuation)
        assert encode_pair(context, continuation, text.encode, text.prefix_id) == tuple(theirs)


@pytest.fixture(scope="module")
def generated(hugging_face, shared):
    """What is asked, and what the other model makes of it; that does not depend on the order."""
    lines = (shared / "eval_tasks/data/gsm8k.jsonl").read_text().splitlines()
    contexts = [f"Question: {json.loads(line)['question']}\nAnswer:" for line in lines[:9]] + [
        "In the beginning",
        "a b",
    ]
    arguments = [
        {"until": ["\n\n", "Question:"], "max_gen_toks": 40, "do_sample": False},
        {"until": [" the"], "max_gen_toks": 40, "temperature": 0.0},
        {"until": [], "max_new_tokens": 13},
    ]
    asked = [(context, given) for given in arguments for context in contexts]
    return asked, hugging_face.generate_until(_instances("generate_until", asked), disable_tqdm=True)


@pytest.mark.parametrize("batch_size", [pytest.param(1, marks=LONG), 3, pytest.param(8, marks=LONG)])
def test_greedy_generation(batch_size, ours, generated):
    asked, wanted = generated
    order = random.Random(batch_size).sample(range(len(asked)), len(asked))
    found = ours(batch_size=batch_size).generate_until(_instances("generate_until", [asked[place] for place in order]))
    assert found == [wanted[place] for place in order]
    assert sum(map(bool, found)) > len(found) / 2


def test_the_registry_knows_the_name():
    assert get_model("ectype").__name__ == "EctypeLM"


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"do_sample": True, "temperature": 0.7}, "greedy decoding"),
        ({"temperature": 0.7}, "greedy decoding"),
        ({"num_beams": 4}, "greedy decoding"),
        ({"max_gen_toks": 256}, "256 tokens to generate"),
    ],
)
def test_generation_that_is_not_greedy_is_refused(arguments, named, ours):
    with pytest.raises(EctypeError, match=named):
        ours().generate_until(_instances("generate_until", [("a", arguments)]))


@pytest.mark.parametrize(
    ("arguments", "named"),
    [({"dtype": "int8"}, "dtype int8"), ({"batch_size": "0"}, "batch_size"), ({"devices": 99}, "99 devices")],
)
def test_arguments_are_checked(arguments, named, ours):
    with pytest.raises(EctypeError, match=named):
        ours(**arguments)
