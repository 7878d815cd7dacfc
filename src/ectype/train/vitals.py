"""The health policy at work: each update is judged before its state may be saved, and each process tells of itself."""

from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np
from jax.sharding import Mesh

from ectype.errors import UnhealthyError
from ectype.recipe.placement import Health, Placement
from ectype.recipe.spec import Recipe
from ectype.run.health import is_finite, is_spike, spike_threshold
from ectype.run.metrics import Row, last_rows
from ectype.train import distributed
from ectype.train.heartbeat import Pulse
from ectype.train.probe import open_probe


class Vitals:
    """Takes each update's row of metrics. All processes hold the same losses, and so come to the same judgement."""

    def __init__(
        self, policy: Health, pulse: Pulse, earlier: np.ndarray, warn: Callable[[str], None],
        probe: Callable[[], float] | None,
    ) -> None:  # fmt: skip
        """
        Args:
            earlier: losses of the last updates of earlier sessions, the same on all processes.
            warn: told of what the policy lets pass.
            probe: times this process's own devices; None: not done.
        """
        self._policy, self._pulse, self._warn, self._probe = policy, pulse, warn, probe
        self._losses = np.full(policy.spike_window_updates, np.nan)
        self._losses[len(self._losses) - len(earlier) :] = earlier
        self._not_finite_in_a_row, self._spiking, self._last_end = 0, False, None

    def updated(self, row: Row, began: float) -> None:
        """Judge an update, and let the heartbeat know of it.

        Args:
            began: when its computation began, by `time.perf_counter`; its wait for data was over then.

        Raises:
            UnhealthyError: the policy says stop.
        """
        compute_seconds = row["step_seconds"] - row["data_wait_seconds"]
        own = None if self._last_end is None else max(0.0, began - self._last_end - row["save_stall_seconds"])
        self._pulse.updated(row["step"], compute_seconds, own)
        self._judge_finite(row)
        self._judge_spike(row)
        every = self._policy.probe_every_steps
        if self._probe is not None and every is not None and row["step"] % every == 0:
            self._pulse.probed(self._probe())
            self._last_end = None  # What comes before the next update holds the probe.
        else:
            self._last_end = began + compute_seconds

    def _judge_finite(self, row: Row) -> None:
        if is_finite(row["loss"], row["grad_norm"]):
            self._not_finite_in_a_row = 0
            return
        self._not_finite_in_a_row += 1
        step, most = row["step"], self._policy.nan_in_a_row
        if self._not_finite_in_a_row == 1:
            self._warn(f"update {step} was skipped: loss {row['loss']}, gradient norm {row['grad_norm']}")
        if self._policy.on_nan == "stop" and self._not_finite_in_a_row >= most:
            raise UnhealthyError(
                f"loss or gradient norm of {most} updates in a row, up to step {step}, is not finite",
                "finite ones; each of these updates was skipped, and changed no weight",
                f"look at the data (ectype data which RUN --step {step}), the learning rate and the precision; to let "
                "it go on, give --placement-set health.on_nan=warn",
            )  # fmt: skip

    def _judge_spike(self, row: Row) -> None:
        threshold = spike_threshold(self._losses, self._policy)
        # In place: shifting a short array costs less than a microsecond.
        self._losses[:-1] = self._losses[1:]
        self._losses[-1] = row["loss"]
        spikes = is_spike(row["loss"], threshold)
        text = f"loss {row['loss']:.4f} at step {row['step']}"
        if spikes and self._policy.on_spike == "stop":
            raise UnhealthyError(
                f"{text}, spikes begin at {threshold:.4f}",
                f"within {self._policy.spike_deviations:g} deviations of the recent median; this update was not saved",
                f"look at its data (ectype data which RUN --step {row['step']}); to go on through it from the last "
                "checkpoint, give --placement-set health.on_spike=warn",
            )  # fmt: skip
        if spikes and not self._spiking:
            self._warn(f"{text} spikes: spikes begin at {threshold:.4f}")
        self._spiking = spikes


def open_vitals(
    run_dir: Path, recipe: Recipe, placement: Placement, mesh: Mesh, pulse: Pulse, start: int,
    warn: Callable[[str], None],
) -> Vitals:  # fmt: skip
    """What judges each update after `start`; every process of a job opens it. Process 0 alone warns."""
    policy, probe = placement.health, None
    pulse.at(start)
    if policy.probe_every_steps is not None:
        probe = open_probe(mesh.local_devices, recipe.numerics.compute)
    earlier = losses_before(run_dir, start, policy.spike_window_updates)
    return Vitals(policy, pulse, earlier, warn if jax.process_index() == 0 else lambda text: None, probe)


def losses_before(run_dir: Path, step: int, count: int) -> np.ndarray:
    """Losses of at most `count` updates up to `step`, as process 0 reads them, float64 [count], NaN where none is."""
    losses = np.full(count, np.nan)
    found = [row.get("loss") for row in last_rows(run_dir, count) if row["step"] <= step]
    losses[count - len(found) :] = [np.nan if loss is None else loss for loss in found]
    return distributed.gather(losses.view(np.uint32))[0].view(np.float64)
