"""Where and how a recipe runs: mesh, micro-batches, workers, checkpoint cadence. Never what it computes."""

from typing import Annotated, Literal

from pydantic import Field

from ectype.recipe.spec import Positive, Section

Activation = Literal[
    "layer_input", "query", "key", "value", "attention_residuals", "context", "attention_output",
    "gate", "up", "mlp_output",
]  # fmt: skip
"""Activations of a layer that the backward pass can be told to keep, by the names that the model gives them.

`attention_residuals` are the attention kernel's output and log-sum-exp: kept, its forward pass runs once.
"""
MomentsMemory = Literal["device", "pinned_host"]
Policy = Literal["stop", "warn"]
Share = Annotated[float, Field(gt=0, le=1)]


class Mesh(Section):
    """Devices along each axis; -1 takes what is left.

    `data` replicates parameters and splits the batch; `fsdp` splits both; `tensor` splits heads, ffn channels and
    vocabulary; `context` splits sequences.
    """

    data: Positive | Literal[-1] = -1
    fsdp: Positive | Literal[-1] = 1
    tensor: Positive = 1
    context: Positive = 1


class Checkpoints(Section):
    """When state is saved and what is kept. Landmarks of the recipe are always saved and kept."""

    every_steps: Positive = 100
    keep_last: Positive = 2
    permanent_every_steps: Positive | None = None


class Loader(Section):
    """Reading processes and buffers. Batches do not depend on either."""

    workers: Annotated[int, Field(ge=0)] = 0
    prefetch_batches: Positive = 2


class Health(Section):
    """What is watched while a run trains, and when it is called unwell. No number that is computed depends on it."""

    on_nan: Policy = "stop"
    """What `nan_in_a_row` updates in a row bring whose loss or gradient norm is not finite. Each one is skipped."""
    nan_in_a_row: Positive = 8
    on_spike: Policy = "warn"
    """What a loss far above the recent past brings. A stop comes before the state of that update is saved."""
    spike_window_updates: Annotated[int, Field(ge=8, lt=2**20)] = 128
    """The recent past; nothing is judged before half of it is there."""
    spike_deviations: Annotated[float, Field(gt=0)] = 10.0
    """A spike lies this many standard deviations, by the median absolute deviation, above the recent median."""
    spike_least_nats: Annotated[float, Field(ge=0)] = 0.5
    """And at least this much above it."""
    recent_updates: Annotated[int, Field(ge=2, lt=2**20)] = 32
    """Updates whose medians and shares are judged."""
    slow_factor: Annotated[float, Field(gt=1)] = 1.25
    """The recent median of the step time over the session's own settled one."""
    skipped_share: Share = 0.1
    data_wait_share: Share = 0.05
    """Of the recent updates' seconds, spent on waiting for data."""
    straggler_share: Share = 0.1
    """Of the step time: what one process may do alone, outside the step, beyond the median of all."""
    straggler_factor: Annotated[float, Field(gt=1)] = 1.25
    """The time of a process's probe over the median of all processes'."""
    stalled_factor: Annotated[float, Field(gt=1)] = 10.0
    """An update is stalled once it has lasted this many times the step time,"""
    stalled_least_seconds: Annotated[float, Field(gt=0)] = 60.0
    """and at least so long."""
    heartbeat_seconds: Annotated[float, Field(gt=0)] = 10.0
    """Between two signs of life of a process, a small file each, written by a thread of its own."""
    lost_after_seconds: Annotated[float, Field(gt=0)] = 60.0
    """A process without a sign of life for so long is taken for dead."""
    probe_every_steps: Positive | None = 100
    """Updates between two timings of a few matrix products on each process's own devices; None: no timings."""


class Placement(Section):
    """How a recipe is laid out on machines."""

    name: str
    description: str = ""
    platform: Literal["cpu", "gpu", "tpu"] = "cpu"
    chip: str | None = None
    """Row of `chips.csv`, for utilisation; None: the peak is not known and no utilisation is reported."""
    devices: Positive | None = None
    """CPU only: simulated devices to split this machine's cores into; None means one."""
    compiler_flags: str | None = None
    """TPU only: a set of `compiler_flags.json`; None takes the chip's own."""
    mesh: Mesh = Mesh()
    micro_batch_windows: Positive | None = None
    """Windows per device and micro-batch; None: the whole share of the device at once."""
    gather_stages: tuple[Positive, ...] | None = None
    """Sizes of the steps in which `fsdp` gathers and scatters, outermost first; None: by the axes of the torus."""
    remat: tuple[Activation, ...] | Literal["none", "full"] = "none"
    """`none` keeps all activations, `full` recomputes each block, a list keeps those activations by name."""
    moments_memory: MomentsMemory = "device"
    """Where the optimiser's moments lie between updates; `pinned_host` frees device memory and costs transfers."""
    loss_chunk_tokens: Positive = 2048
    attention_kernel: Literal["blockwise", "splash", "cudnn"] | None = None
    """None: blockwise on CPU, cuDNN's on GPU, splash on TPU."""
    attention_block_tokens: Positive | None = None
    """Query and key block of the attention kernel; None lets the kernel choose by length and window."""
    checkpoints: Checkpoints = Checkpoints()
    loader: Loader = Loader()
    evaluation_batch_windows: Positive = 16
    """Windows that `ectype evaluate` takes at a time: speed and memory only."""
    health: Health = Health()
    phase_limit_seconds: Positive = 3600
    """A phase (start, compile and first step, one update, one save) that lasts longer ends the process by name."""
    compilation_cache: str | None = None
    """Folder where compiled programs are kept, so that a restart compiles nothing; None keeps none."""
