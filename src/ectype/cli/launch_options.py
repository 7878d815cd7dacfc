"""Options that the verbs of `ectype launch` share, and how a supervisor's end becomes text and an exit code."""

import functools
import inspect
import re
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ectype.cli.output import JSON_OPTION, REMAP_OPTION, emit
from ectype.errors import EXIT_NEGATIVE

if TYPE_CHECKING:
    from ectype.launch.backend import Backend
    from ectype.launch.command import Training
    from ectype.launch.events import Webhook
    from ectype.launch.run_record import Reader
    from ectype.launch.supervise import StateFolder, Supervised

IMAGE_VARIABLES = ["ECTYPE_IMAGE", "XPK_DOCKER_IMAGE"]
"""The first that is set counts; the second is the case study's."""
RECIPE_ARGUMENT = typer.Argument(metavar="RECIPE", help="Shipped recipe name or YAML file.")
PLACEMENT_OPTION = typer.Option("--placement", help="Shipped placement name or YAML file.")
SET_OPTION = typer.Option("--set", help="Recipe field=value; may repeat.")
PLACEMENT_SET_OPTION = typer.Option("--placement-set", help="Placement field=value; may repeat.")
INDEX_OPTION = typer.Option(envvar="OLMO_INDEX_PATH", help="Index or manifest of tokens.")
WEIGHTS_OPTION = typer.Option(envvar="LOAD_PARAMETERS_PATH", help="Step-0 weights.")
PADDED_ROWS_OPTION = typer.Option("--padded-rows", help="Side file with rows that a Hugging Face export dropped.")
SOURCE_OPTION = typer.Option("--from", metavar="RUN_OR_CHECKPOINT", help="What a later stage goes on from.")
TARGET_OPTION = typer.Option(
    "--target-steps", "--until", envvar="STEPS_OVERRIDE", min=1,
    help="Completed updates at which the run is done, the --until of `ectype train`.",
)  # fmt: skip
STATE_OPTION = typer.Option("--state", help="The supervisor's folder. Default: beside the run, RUN.launch.")
DRY_RUN_OPTION = typer.Option("--dry-run", help="Print exactly what would run, and run nothing.")
LOOK_OPTION = typer.Option("--look-every-seconds", min=0.05, max=86400, help="Time between two looks at the job.")
FAILURES_OPTION = typer.Option("--failures", min=1, help="Failures in a row without progress after which to stop.")
PREEMPTIONS_OPTION = typer.Option("--preemptions", min=1, help="The same for preemptions without progress.")
FIRST_PAUSE_OPTION = typer.Option(
    "--first-pause-seconds", min=0.0, max=86400, help="Pause that doubles without progress."
)
STALL_OPTION = typer.Option("--stall-minutes", min=0.1, help="Without progress for so long, tell the webhook.")
SHRINK_OPTION = typer.Option("--shrink-after-minutes", min=0.0, help="Wait so long for machines, then try smaller.")
GROW_OPTION = typer.Option("--grow-after-minutes", min=0.0, help="Then try the size asked for again.")
WEBHOOK_VARIABLE_OPTION = typer.Option(
    "--webhook-env", metavar="NAME", help="Environment variable that holds the address to post news to."
)
WEBHOOK_FILE_OPTION = typer.Option("--webhook-file", help="File that holds that address.")


_SECONDS = re.compile(r"\b\d+ s\b")
"""A count-down is no news."""


def training_inputs(
    recipe: Annotated[str, RECIPE_ARGUMENT],
    target_steps: Annotated[int | None, TARGET_OPTION] = None,
    placement: Annotated[str | None, PLACEMENT_OPTION] = None,
    overrides: Annotated[list[str] | None, SET_OPTION] = None,
    placement_overrides: Annotated[list[str] | None, PLACEMENT_SET_OPTION] = None,
    index: Annotated[str | None, INDEX_OPTION] = None,
    remap: Annotated[list[str] | None, REMAP_OPTION] = None,
    weights: Annotated[str | None, WEIGHTS_OPTION] = None,
    padded_rows: Annotated[str | None, PADDED_ROWS_OPTION] = None,
    source: Annotated[str | None, SOURCE_OPTION] = None,
) -> None:
    """What is trained."""


def supervision(
    look_every_seconds: Annotated[float, LOOK_OPTION] = 60.0,
    failures: Annotated[int, FAILURES_OPTION] = 5,
    preemptions: Annotated[int, PREEMPTIONS_OPTION] = 50,
    first_pause_seconds: Annotated[float, FIRST_PAUSE_OPTION] = 60.0,
    stall_minutes: Annotated[float, STALL_OPTION] = 60.0,
    webhook_env: Annotated[str | None, WEBHOOK_VARIABLE_OPTION] = None,
    webhook_file: Annotated[Path | None, WEBHOOK_FILE_OPTION] = None,
) -> None:
    """How patient the supervisor is, and whom it tells."""


def ends(
    state: Annotated[Path | None, STATE_OPTION] = None,
    json_output: Annotated[bool, JSON_OPTION] = False,
) -> None:
    """What every verb over a supervised run takes."""


def sharing(*groups: Callable[..., None]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Give a verb the parameters of `groups` besides its own; all their values reach it as the mapping `given`.

    A parameter of the verb's own takes the place of a group's of the same name.
    """

    def wrap(function: Callable[..., Any]) -> Callable[..., Any]:
        parameters = [one for group in (*groups, function) for one in inspect.signature(group).parameters.values()]
        named = {one.name: one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in parameters}
        del named["given"]

        @functools.wraps(function)
        def run(**values: Any) -> Any:
            return function(given=values)

        run.__signature__ = inspect.Signature(list(named.values()))  # type: ignore[attr-defined]
        run.__annotations__ = {name: one.annotation for name, one in named.items()}
        return run

    return wrap


class StatusLine(AbstractContextManager["StatusLine"]):
    """One line that changes in place; without a terminal, a line whenever it says something new."""

    def __init__(self) -> None:
        from rich.console import Console

        self._console = Console(stderr=True, highlight=False)
        self._status = self._console.status("") if self._console.is_terminal else None
        self._last = ""

    def __enter__(self) -> "StatusLine":
        if self._status is not None:
            self._status.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._status is not None:
            self._status.stop()

    def __call__(self, text: str) -> None:
        from rich.markup import escape

        if self._status is not None:
            self._status.update(escape(text))
        elif (news := _SECONDS.sub("", text)) != self._last:
            print(text, file=sys.stderr, flush=True)
            self._last = news


def webhook_of(variable: str | None, file: Path | None) -> "Webhook | None":
    """The webhook that the options name, None without one."""
    from ectype.errors import EctypeError
    from ectype.launch.events import Webhook

    if variable is not None and file is not None:
        raise EctypeError("--webhook-env and --webhook-file", "one of them", "drop one")
    if variable is None and file is None:
        return None
    webhook = Webhook(variable, file)
    webhook.check()
    return webhook


def state_of(state: Path | None, run: str) -> "StateFolder":
    """The supervisor's folder: the one that was named, else the run's own."""
    from ectype.launch.supervise import StateFolder

    return StateFolder.beside(run) if state is None else StateFolder(state)


def with_supervision(what: "Supervised", given: dict[str, Any], sizes: int = 1) -> "Supervised":
    """A supervised run with the policy of the flags."""
    from dataclasses import replace

    from ectype.launch.supervisor import Policy

    shrink, grow = (given.get(f"{which}_after_minutes") for which in ("shrink", "grow"))
    policy = Policy(
        failures=given["failures"], preemptions=given["preemptions"], sizes=sizes,
        first_pause_seconds=given["first_pause_seconds"], stall_seconds=given["stall_minutes"] * 60,
        shrink_after_seconds=None if shrink is None else shrink * 60,
        grow_after_seconds=None if grow is None else grow * 60,
    )  # fmt: skip
    webhook = webhook_of(given["webhook_env"], given["webhook_file"])
    return replace(what, policy=policy, look_every_seconds=given["look_every_seconds"], webhook=webhook)


def training_of(given: dict[str, Any], run: str, until: int | None) -> "Training":
    """What `training_inputs` say, as the command of a job."""
    from ectype.launch.command import Training

    lists: dict[str, Any] = {name: tuple(given[name] or ()) for name in ("overrides", "placement_overrides", "remap")}
    plain = {name: given[name] for name in ("recipe", "placement", "index", "weights", "padded_rows", "source")}
    return Training(run=run, until=until, **plain, **lists)


def already_done(run: str, target: int, json_output: bool) -> None:
    """Say that a run has reached its target, so that nothing was submitted."""
    words = f"{run} is already done: {target} updates are recorded; nothing is submitted"
    emit({"job": None, "run": run, "done": True}, json_output, lambda: print(words))


def note(notes: list[str]) -> None:
    """Print what a submission may not mean, on standard error."""
    for text in notes:
        print(f"note: {text}", file=sys.stderr, flush=True)


def drive(supervised: "Supervised", json_output: bool) -> int | None:
    """Supervise to the end and print it; the exit code."""
    from dataclasses import replace

    from ectype.launch.supervise import supervise

    with StatusLine() as line:
        memory = supervise(replace(supervised, show=line))
    result = {
        "run": memory.run, "outcome": memory.outcome, "reason": memory.reason, "attempts": memory.attempt,
        "completed_updates": memory.completed_updates, "target_updates": memory.target_updates,
        "preemptions": memory.preemptions, "failures": memory.failures, "events": str(supervised.state.events),
    }  # fmt: skip

    def show() -> None:
        print(f"{memory.run}: {memory.outcome}: {memory.reason}")
        print(_counts(result))
        tail = last_tail(supervised)
        if memory.outcome != "done" and tail:
            print(f"the last job's log ended:\n{tail}")
        print(f"events: {supervised.state.events}")

    emit(result, json_output, show)
    return None if memory.outcome == "done" else EXIT_NEGATIVE


def _counts(record: dict[str, Any]) -> str:
    """Jobs, preemptions and failures in words."""
    named = ((record["attempts"], "job"), (record["preemptions"], "preemption"), (record["failures"], "failure"))
    return ", ".join(f"{count} {word}{'' if count == 1 else 's'}" for count, word in named)


def last_tail(supervised: "Supervised") -> str:
    """The end of the log that the supervisor stopped over."""
    from ectype.launch.events import read_events

    stops = [row for row in read_events(supervised.state.events) if row["event"] == "stop"]
    return str(stops[-1].get("log_tail", "")) if stops else ""


def show_commands(backend: "Backend", name: str, json_output: bool, sizes: int = 1) -> None:
    """Print what a submission would run, one command a line, as a shell would take it; for each of the sizes."""
    from ectype.launch.command import shell_text

    commands = [backend.commands(name, size) for size in range(sizes)]

    def show() -> None:
        for size, of_size in enumerate(commands):
            if sizes > 1:
                print("# smaller" if size else "# first choice")
            for command in of_size:
                print(shell_text(command))

    emit({"dry_run": commands}, json_output, show)


def status_record(state: "StateFolder", backend: "Backend", read: "Reader") -> dict[str, Any]:
    """How the job and the run stand now, and what the supervisor last did."""
    from dataclasses import replace

    from ectype.launch.events import read_events
    from ectype.launch.memory import read_memory
    from ectype.launch.supervise import no_supervised_run

    memory = read_memory(state.memory)
    if memory is None:
        raise no_supervised_run(state)
    report = None if memory.job is None else backend.look(memory.job)
    if (
        report is not None
        and report.state in ("preempted", "deleted")
        and (state.stop.exists() or memory.stop_was_asked)
    ):
        report = replace(report, why="; ".join(filter(None, ("stopped by you", report.why))))
    reading = read()
    events = read_events(state.events)
    return {
        "run": memory.run, "job": memory.job, "job_state": "none" if report is None else report.state,
        "why": "" if report is None else report.why, "completed_updates": reading.completed_updates,
        "reached_step": reading.reached_step, "target_updates": memory.target_updates, "attempts": memory.attempt,
        "preemptions": memory.preemptions, "failures": memory.failures, "outcome": memory.outcome,
        "reason": memory.reason, "last_event": events[-1] if events else None,
    }  # fmt: skip


def show_status(record: dict[str, Any]) -> None:
    """The same for people."""
    updates = record["completed_updates"]
    target = f"{record['target_updates']} updates saved"
    print(f"{record['run']}: {'not readable' if updates is None else updates} of {target}")
    why = f" ({record['why']})" if record["why"] else ""
    print(f"job {record['job']}: {record['job_state']}{why}" if record["job"] else "no job")
    print(_counts(record))
    if record["outcome"]:
        print(f"supervisor: {record['outcome']}: {record['reason']}")
