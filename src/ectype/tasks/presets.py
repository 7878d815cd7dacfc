"""Which tasks a name stands for, and with how many solved examples."""

from collections.abc import Sequence

PRESETS: dict[str, dict[str, int]] = {
    "eight": {
        "mmlu": 5, "hellaswag": 0, "arc_easy": 0, "arc_challenge": 0, "piqa": 0, "winogrande": 0, "boolq": 0,
        "openbookqa": 0,
    },
}  # fmt: skip
"""Task to shots. `eight`: MMLU with the five examples of its paper (arXiv:2009.03300), the others with none."""


def chosen_tasks(names: Sequence[str], shots: int | None) -> dict[int | None, list[str]]:
    """Tasks by their shots; None leaves them to the task's own definition. `shots` holds for all, presets included."""
    by_shots: dict[int | None, list[str]] = {}
    for name in names:
        for task, usual in PRESETS.get(name, {name: None}).items():
            members = by_shots.setdefault(usual if shots is None else shots, [])
            if task not in members:
                members.append(task)
    return by_shots
