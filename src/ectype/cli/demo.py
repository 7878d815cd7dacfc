"""`ectype demo`: reproduce the bundled run and say whether it is the same model."""

from pathlib import Path
from typing import Annotated

import typer

from ectype.cli.output import JSON_OPTION, ProgressBar, emit, verb


@verb
def demo(
    out: Annotated[Path, typer.Option(help="Folder for everything that the demo writes.")] = Path("runs/demo"),
    json_output: Annotated[bool, JSON_OPTION] = False,
) -> int:
    """Reproduce the bundled OLMo-core run and judge it.

    From its step-0 weights to a verdict and a report: the whole walk, in about 3 minutes of CPU. Exit codes are
    those of `ectype compare`. Stopped, the same command goes on. Example: ectype demo --out runs/demo
    """
    import sys

    from ectype.demo.run import run_demo

    def say(line: str) -> None:
        print(line, file=sys.stderr)

    say(f"Reproducing a small run of OLMo-core in {out}: about 3 minutes of CPU, longer on a busy machine.")
    say("Stopped, the same command goes on.")
    with ProgressBar() as progress:
        ended = run_demo(out, say=say, progress=progress)
    verdict = ended.verdict
    result = {
        "verdict": verdict.answer,
        "reason": verdict.reason,
        "seconds": round(ended.seconds, 1),
        "run": str(ended.run_dir),
        "report": str(ended.report),
    }

    def show() -> None:
        print(f"\n{verdict.answer}: {verdict.reason}\nreport: {ended.report}")
        print(f"how the run went: ectype status {ended.run_dir}")

    emit(result, json_output, show)
    return verdict.exit_code
