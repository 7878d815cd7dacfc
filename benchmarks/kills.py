"""Kill a training run at random moments, again and again, and say what each kill met. Used by the benchmark and a test.

A run is a few updates of a tiny model, so that a start takes seconds. Half of the kills wait for a save and strike
within it; the others strike anywhere between the first instruction and some updates later.
"""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ectype.data.audit_run import audit_run
from ectype.data.index import load_index
from ectype.data.order import make_order
from ectype.errors import EXIT_DONE, EXIT_STOPPED
from ectype.recipe.load import load_recipe
from ectype.run.checkpoints import newest_step
from ectype.run.metrics import read_rows

TINY = (
    "model.d_model=16", "model.n_heads=2", "model.n_kv_heads=1", "model.head_dim=8", "model.d_ffn=24",
    "model.n_layers=2", "model.window_pattern=[8, null]", "data.sequence_length_tokens=32",
    "data.order.max_target_length_tokens=32", "optimizer.skip_step.window_steps=8", "schedule.warmup_steps=3",
    "landmarks=[0]", "inputs.weights=null", "inputs.padded_rows=null", "inputs.reference=null",
)  # fmt: skip
COMPARED = ("step", "loss", "z_loss", "grad_norm", "learning_rate", "skipped", "loss_tokens")
HOPS = (1, 2, 4, 8)
FIXED_DEVICES = 2
SAVE_EVERY_STEPS = 3
_AFTER_START_SECONDS = 0.6
_BEFORE_HANDLERS_SECONDS = 1.0
"""A SIGTERM that comes before the interpreter has reached Ectype ends it in the system's own way."""


@dataclass(frozen=True)
class Trainer:
    """Starts `ectype train` on the tiny recipe; `cache` keeps compiled programs and bytecode between starts."""

    cache: Path
    steps: int

    @property
    def settings(self) -> list[str]:
        """Recipe overrides."""
        return [*TINY, f"duration_steps={self.steps}", f"schedule.horizon_steps={self.steps}"]

    def start(self, run: Path, *, devices: int = FIXED_DEVICES, placement: tuple[str, ...] = (), **options: Any) -> Any:
        """The process, its standard error a pipe. `options` go to `Popen`."""
        command = [sys.executable, "-m", "ectype.cli", "train", "toy-calm", "--run", str(run), "--placement", "cpu-one"]
        command += [part for value in self.settings for part in ("--set", value)]
        where = (
            f"devices={devices}", f"compilation_cache={self.cache}/programs", "checkpoints.keep_last=3",
            f"checkpoints.every_steps={SAVE_EVERY_STEPS}", *placement,
        )  # fmt: skip
        command += [part for value in where for part in ("--placement-set", value)]
        environment = os.environ | {"JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}
        if environment.pop("PYTHONDONTWRITEBYTECODE", ""):
            environment["PYTHONPYCACHEPREFIX"] = str(self.cache / "bytecode")
        return subprocess.Popen(
            command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, **options
        )

    def finish(self, run: Path, **options: Any) -> None:
        """Train to the end, undisturbed."""
        process = self.start(run, **options)
        _, errors = process.communicate(timeout=300)
        if process.returncode != EXIT_DONE:
            raise RuntimeError(f"exit {process.returncode} without a kill:\n{errors}")


@dataclass(frozen=True)
class Kill:
    """What one kill met."""

    number: int
    signal: str
    twice: bool
    aim: str
    in_save: bool
    devices: int
    seconds: float
    code: int
    newest_step: int


def kill_often(
    trainer: Trainer, run: Path, numbers: range, *, hop: bool, seed: int, tell: Callable[[Kill], None]
) -> None:
    """Start and kill the run once for each of `numbers`.

    Args:
        hop: draw the count of devices anew for each start.
        tell: called after each kill.

    Raises:
        RuntimeError: a process ended as none may, or the run was over before its kills were.
    """
    first_save_seconds = 6.0
    for number in numbers:
        draw = random.Random(f"{seed}/{number}")
        devices = draw.choice(HOPS) if hop else FIXED_DEVICES
        aim = "save" if number % 2 else "any"
        kind = draw.choice(("KILL", "TERM"))
        twice = kind == "TERM" and draw.random() < 0.5
        old = _unfinished(run)
        began, process = time.monotonic(), trainer.start(run, devices=devices)
        if aim == "save":
            first = _await_saves(process, run, old, draw.randint(1, 3))
            first_save_seconds = first - began
            time.sleep(draw.uniform(0, 0.05))
        else:
            _sleep_while_running(process, draw.uniform(0, first_save_seconds + _AFTER_START_SECONDS))
        in_save, seconds = bool(_unfinished(run) - old), time.monotonic() - began
        process.send_signal(signal.Signals[f"SIG{kind}"])
        if twice:
            time.sleep(draw.uniform(0, 0.2))
            process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=120)
        code = process.returncode
        kill = Kill(number, kind, twice, aim, in_save, devices, round(seconds, 3), code, newest_step(run))
        tell(kill)
        early = -signal.SIGTERM if seconds < _BEFORE_HANDLERS_SECONDS else EXIT_STOPPED
        if code not in ((-signal.SIGKILL,) if kind == "KILL" else (EXIT_STOPPED, early)):
            raise RuntimeError(f"{kill}:\n{errors}")


def every_window_once(trainer: Trainer, run: Path) -> bool:
    """Whether the run's ledger shows each window of its updates read exactly once."""
    recipe = load_recipe("toy-calm", trainer.settings)
    index = load_index(str(recipe.inputs.index), recipe.data, recipe.model.vocab_size)
    audit = audit_run(run, make_order(index.order_phases, recipe.data), trainer.steps)
    read = sum(epoch.read_once for epoch in audit.epochs)
    return audit.clean and audit.steps == trainer.steps and read == trainer.steps * recipe.data.global_batch_windows


def curve(run: Path) -> list[tuple[Any, ...]]:
    """What was computed at each update, to compare bit by bit."""
    return [tuple(row[name] for name in COMPARED) for row in read_rows(run).values()]


def largest_loss_difference(run: Path, other: Path) -> float:
    """Largest relative difference of the losses of two runs of the same length."""
    pairs = zip(read_rows(run).values(), read_rows(other).values(), strict=True)
    return max(abs(ours["loss"] - theirs["loss"]) / theirs["loss"] for ours, theirs in pairs)


def _unfinished(run: Path) -> set[str]:
    return {path.name for path in (run / "checkpoints").glob("*tmp*")}


def _await_saves(process: Any, run: Path, old: set[str], count: int) -> float:
    """Wait until `count` saves of this process have begun, `old` ones not among them; when the first one did."""
    seen, first, begun = set(old), 0.0, 0
    while process.poll() is None:
        new = _unfinished(run) - seen
        if new:
            seen |= new
            begun += len(new)
            first = first or time.monotonic()
            if begun >= count:
                return first
        time.sleep(0.002)
    raise RuntimeError(f"exit {process.returncode} before a save: {process.communicate()[1]}")


def _sleep_while_running(process: Any, seconds: float) -> None:
    end = time.monotonic() + seconds
    while process.poll() is None and time.monotonic() < end:
        time.sleep(0.002)
