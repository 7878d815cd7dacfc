"""What `ectype compare` says under its table of criteria that do not hold."""

from types import SimpleNamespace
from typing import Any

from ectype.cli.compare import open_questions
from ectype.compare.criteria import Outcome


def _criterion(name: str, outcome: Outcome, note: str) -> Any:
    return SimpleNamespace(name=name, outcome=outcome, note=note)


def test_why_criteria_do_not_hold_is_said_once_for_all_of_them() -> None:
    record: Any = SimpleNamespace(
        criteria=(
            _criterion("held-out loss", Outcome.HOLDS, "as it should be"),
            _criterion("training loss", Outcome.UNCLEAR, "largest of 82 steps, at step 28; the run's log is short"),
            _criterion("z-loss", Outcome.UNCLEAR, "largest of 82 steps, at step 42; the run's log is short"),
            _criterion("data order", Outcome.BROKEN, "first difference at step 3"),
            _criterion("token KL", Outcome.UNCLEAR, ""),
        )
    )
    assert open_questions(record) == {
        "the run's log is short": ["training loss", "z-loss"],
        "first difference at step 3": ["data order"],
    }
