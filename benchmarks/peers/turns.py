"""Two trainers in processes of their own that take turns, a few steps each, so that both see the same machine.

A machine shared with others changes its speed within seconds by a third; medians of two runs made one after the other
differ by as much. Turns of a second or two see the same speed on both sides.
"""

import statistics
import subprocess
import sys
import time
from collections.abc import Sequence

STEPS_PER_TURN = 8
SETTLE_SECONDS = 0.3
"""Between turns: worker threads of the side that just stopped may spin for 0.2 s before they sleep."""


class Turn:
    """On the trainer's side: `at_step` is called between steps; every eighth call waits for the next turn."""

    def __init__(self) -> None:
        self._steps = 0
        self._began = 0.0

    def at_step(self) -> None:
        """Report the seconds of the turn that just ended, and wait for the next."""
        if self._steps % STEPS_PER_TURN == 0:
            seconds = time.perf_counter() - self._began if self._steps else 0.0
            print(f"turn {seconds}", flush=True)
            sys.stdin.readline()
            self._began = time.perf_counter()
        self._steps += 1


def seconds_per_step(commands: Sequence[Sequence[str]], turns: int, warmup_turns: int) -> list[list[float]]:
    """Per command, the mean seconds of a step in each turn after the first `warmup_turns`."""
    sides = [_start(command) for command in commands]
    seconds: list[list[float]] = [[] for _ in sides]
    try:
        for side in sides:
            _wait(side)  # Started up, and waiting for its first turn.
        for turn in range(turns + warmup_turns):
            for side, kept in zip(sides, seconds, strict=True):
                time.sleep(SETTLE_SECONDS)
                assert side.stdin is not None
                side.stdin.write("go\n")
                side.stdin.flush()
                took = _wait(side) / STEPS_PER_TURN
                if turn >= warmup_turns:
                    kept.append(took)
    finally:
        for side in sides:
            side.kill()  # OLMo-core's trainer swallows SIGTERM.
            side.wait()
    return seconds


def ratio_of_pairs(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """The median over turns of theirs / ours: how many times as fast we are."""
    return statistics.median(b / a for a, b in zip(ours, theirs, strict=True))


def _wait(side: "subprocess.Popen[str]") -> float:
    assert side.stdout is not None
    for line in side.stdout:
        if line.startswith("turn "):
            return float(line.split()[1])
    raise SystemExit(f"{side.args} ended before its turn")


def _start(command: Sequence[str]) -> "subprocess.Popen[str]":
    pipe = subprocess.PIPE
    return subprocess.Popen(list(command), stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True)
