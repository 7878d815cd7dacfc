"""What `ectype compare` proposes where landmarks lack their evidence."""

from pathlib import Path

from ectype.compare.runner import next_action
from ectype.compare.verdict import UNDECIDED, decide
from ectype.run.checkpoints import META_ITEM
from ectype.run.paths import RunFolder


def test_a_saved_landmark_is_to_be_evaluated_and_another_to_be_trained_to(tmp_path: Path) -> None:
    for step in (0, 80):
        (RunFolder(tmp_path).checkpoint(step) / META_ITEM).mkdir(parents=True)
    saved = f"`ectype evaluate {tmp_path}` measures landmark 0, 80"
    further = "the run has no checkpoint of landmark 240, 640: train it further"
    assert next_action(tmp_path, (0, 80), {}) == saved
    assert next_action(tmp_path, (240, 640), {}) == further
    assert next_action(tmp_path, (0, 80, 240, 640), {}) == f"{saved}; {further}"
    assert next_action(tmp_path, (), {}) == ""
    stale = "the record of landmark 80 does not count: our weights changed since it was measured"
    assert next_action(tmp_path, (80,), {80: "our weights changed since it was measured"}) == (
        f"{stale}; `ectype evaluate {tmp_path}` measures landmark 80"
    )


def test_the_verdict_ends_with_it() -> None:
    verdict = decide([], (80,), next_action="do this")
    assert verdict.answer == UNDECIDED
    assert verdict.reason.endswith("at landmark 80; training loss alone proves nothing; do this")
    assert decide([], (80,)).reason.endswith("proves nothing")
