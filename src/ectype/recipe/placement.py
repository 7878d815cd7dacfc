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
    phase_limit_seconds: Positive = 3600
    """A phase (start, compile and first step, one update, one save) that lasts longer ends the process by name."""
    compilation_cache: str | None = None
    """Folder where compiled programs are kept, so that a restart compiles nothing; None keeps none."""
