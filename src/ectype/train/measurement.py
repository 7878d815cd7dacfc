"""What one update is measured by: losses, rates by the window-aware count, waits and memory."""

import resource
import sys
from dataclasses import dataclass

import jax

from ectype.data.loader import Batch
from ectype.model.flops import flops_per_token
from ectype.recipe.chips import load_chip
from ectype.recipe.placement import Placement
from ectype.recipe.spec import Recipe
from ectype.run.metrics import Row
from ectype.train.step import Metrics


@dataclass(frozen=True)
class Meter:
    """What does not change from update to update."""

    tokens: int
    """Of a global batch."""
    devices: int
    flops_per_token: float
    flops_per_token_full_causal: float
    """As if every layer attended to all earlier tokens: for comparison with figures of others."""
    peak_flops_per_device: float | None
    """None: no utilisation is reported."""

    def row(self, step: int, rate: float, metrics: Metrics, batch: Batch, step_seconds: float, stall: float) -> Row:
        """One line of metrics.

        Args:
            metrics: values on the host.
            step_seconds: of the update, without the wait for its data. Nor does it hold compilation.
            stall: seconds that the save before this update took from the loop.
        """
        seconds = step_seconds + batch.wait_seconds
        per_device = self.tokens / seconds / self.devices
        exact, causal = self.flops_per_token * per_device, self.flops_per_token_full_causal * per_device
        peak = self.peak_flops_per_device
        return {
            "step": step,
            "loss": metrics.loss.item(),
            "z_loss": metrics.z_loss.item(),
            "grad_norm": metrics.grad_norm.item(),
            "learning_rate": rate,
            "skipped": metrics.skipped.item(),
            "loss_tokens": int(metrics.loss_tokens),
            "tokens_seen": step * self.tokens,
            "step_seconds": seconds,
            "data_wait_seconds": batch.wait_seconds,
            "save_stall_seconds": stall,
            "tokens_per_second": self.tokens / seconds,
            "model_tflops_per_device": exact / 1e12,
            "mfu": None if peak is None else exact / peak,
            "mfu_full_causal": None if peak is None else causal / peak,
            "device_memory_peak_bytes": device_memory_peak_bytes(),
            "process_memory_peak_bytes": process_memory_peak_bytes(),
        }


def open_meter(recipe: Recipe, placement: Placement, devices: int) -> Meter:
    """The meter of a session on `devices` devices."""
    length = recipe.data.sequence_length_tokens
    return Meter(
        recipe.data.global_batch_tokens,
        devices,
        flops_per_token(recipe.model, length),
        flops_per_token(recipe.model, length, full_causal=True),
        None if placement.chip is None else load_chip(placement.chip).peak_flops_per_device,
    )


def device_memory_peak_bytes() -> int | None:
    """The most that any device of this process has held so far; None where the platform does not say, as on CPU."""
    stats = [device.memory_stats() for device in jax.local_devices()]
    peaks = [one["peak_bytes_in_use"] for one in stats if one and "peak_bytes_in_use" in one]
    return max(peaks, default=None)


def process_memory_peak_bytes() -> int:
    """The largest resident size of this process so far."""
    largest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return largest if sys.platform == "darwin" else largest * 1024
