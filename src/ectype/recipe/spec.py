"""What is computed: the recipe as frozen, checked models. No JAX, no I/O.

A recipe holds every number that the mathematics depends on. Where and how it runs is a `Placement`.
"""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

Positive = Annotated[int, Field(gt=0, lt=2**31)]
"""A count or a size: array dimensions and steps are 32-bit."""
Seed = Annotated[int, Field(ge=0, lt=2**63)]
Dtype = Literal["float32", "bfloat16"]


class Section(BaseModel):
    """A part of a recipe: immutable, and unknown keys are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Yarn(Section):
    """YaRN frequency scaling (Peng et al. 2023, arXiv:2309.00071), applied in full-attention layers only."""

    factor: Annotated[float, Field(ge=1)]
    original_length_tokens: Positive
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None
    """Multiplies cos and sin; None means 0.1 ln(factor) + 1."""
    truncate: bool = True
    """Round the correction range outwards to whole dimensions, as the reference does."""


class Model(Section):
    """A dense decoder. OLMo 2 and OLMo 3 by default; Llama and Qwen3 types by the switches."""

    d_model: Positive
    n_layers: Positive
    n_heads: Positive
    n_kv_heads: Positive
    head_dim: Positive
    d_ffn: Positive
    vocab_size: Positive
    """Real token ids: the rows that a Hugging Face export holds."""
    trained_rows: Positive | None = None
    """Rows of the reference's softmax when it had more than `vocab_size`; None means `vocab_size`."""
    window_pattern: tuple[Positive | None, ...]
    """Repeating over layers: keys visible to a query, itself included; null is full causal attention."""
    rope_theta: Annotated[float, Field(gt=0)]
    yarn: Yarn | None = None
    norm_eps: Annotated[float, Field(gt=0)] = 1e-6
    norm_placement: Literal["after", "before"] = "after"
    """`after`: x + norm(f(x)) (OLMo 2 and 3). `before`: x + f(norm(x)) (Llama, Qwen3)."""
    qk_norm: Literal["projection", "head", "none"] = "projection"
    """RMS over the whole projection (OLMo), over each head (Qwen3), or none (Llama)."""
    attention_bias: bool = False
    tied_head: bool = False
    init_std: Annotated[float, Field(gt=0)] = 0.02
    init_cut: Annotated[float, Field(gt=0)] = 3.0
    """Truncation of the initial normal, in standard deviations."""
    init_seed: Seed = 0

    @model_validator(mode="after")
    def _consistent(self) -> "Model":
        if self.n_heads % self.n_kv_heads:
            raise ValueError(f"n_heads {self.n_heads} is not a multiple of n_kv_heads {self.n_kv_heads}")
        if self.head_dim % 2:
            raise ValueError(f"head_dim {self.head_dim} is odd: rotary pairs need an even one")
        if self.trained_rows is not None and self.trained_rows < self.vocab_size:
            raise ValueError(f"trained_rows {self.trained_rows} is below vocab_size {self.vocab_size}")
        if not self.window_pattern:
            raise ValueError("window_pattern is empty: give one entry per layer of the repeating pattern")
        return self

    @property
    def rows(self) -> int:
        """Rows of the embedding and of the head that take part in training."""
        return self.vocab_size if self.trained_rows is None else self.trained_rows

    def layer_window(self, layer: int) -> int | None:
        """Window of `layer` in tokens, itself included; None for full attention."""
        return self.window_pattern[layer % len(self.window_pattern)]


class RepetitionFilter(Section):
    """Reject windows in which a period of at most `max_period` tokens repeats `max_count` times or more."""

    max_period: Positive = 13
    min_period: Positive = 1
    max_count: Positive = 32

    @model_validator(mode="after")
    def _consistent(self) -> "RepetitionFilter":
        if self.min_period > self.max_period:
            raise ValueError(f"min_period {self.min_period} is above max_period {self.max_period}")
        return self


class Packing(Section):
    """Best-fit document packing for long context (OLMo-core's NumpyPackedFSLDataset)."""

    source_group_size: Positive = 8
    source_permutation_seed: int | None = 123
    long_documents: Literal["truncate", "fragment"] = "truncate"
    ties: Literal["stable", "numpy"] = "stable"
    """Order among documents of equal length: by position, or as NumPy's default sort leaves them."""


class Order(Section):
    """Which windows make up global batch k: a pure function of the index, this section and k."""

    kind: Literal["olmo-core", "stateless", "sequential"] = "olmo-core"
    seed: Seed
    max_target_length_tokens: Positive | None = None
    """OLMo-core's max_target_sequence_length: shuffle chunks of this many tokens as one."""


class Data(Section):
    """How tokens become windows and windows become batches."""

    sequence_length_tokens: Positive
    global_batch_windows: Positive
    eos_id: Annotated[int, Field(ge=0)]
    pad_id: Annotated[int, Field(ge=0)]
    order: Order
    repetition_filter: RepetitionFilter | None = None
    document_masks: bool = False
    packing: Packing | None = None

    @property
    def global_batch_tokens(self) -> int:
        return self.sequence_length_tokens * self.global_batch_windows


class Loss(Section):
    """Cross-entropy with z-loss, summed over tokens and divided once by the global count."""

    z_loss: Annotated[float, Field(ge=0)] = 1e-5
    rejected_windows_count: Literal["full", "none"] = "full"
    """What a rejected window adds to the divisor: its full length (OLMo-core), or nothing."""


class SkipStep(Section):
    """Skip an update whose loss or gradient norm is an outlier of the recent past (OLMo-core)."""

    window_steps: Positive = 128
    sigma: Annotated[float, Field(gt=0)] = 6.0


class Optimizer(Section):
    """AdamW with decoupled decay and global-norm clipping in torch's convention."""

    kind: Literal["adamw"] = "adamw"
    beta1: Annotated[float, Field(ge=0, lt=1)] = 0.9
    beta2: Annotated[float, Field(ge=0, lt=1)] = 0.95
    epsilon: Annotated[float, Field(gt=0)] = 1e-8
    weight_decay: Annotated[float, Field(ge=0)] = 0.1
    decay_embedding: bool = False
    clip_norm: Annotated[float, Field(gt=0)] | None = 1.0
    skip_step: SkipStep | None = SkipStep()
    count_starts_at: Annotated[int, Field(ge=0)] = 0
    """Adam's update count before the first update. 1 where the reference checkpointed step 0, because
    saving that checkpoint ran the optimiser once with zero gradients."""
    step_increment_bugfix: bool = True
    """False reproduces early OLMo-core, whose count never advanced."""


class Schedule(Section):
    """Learning rate of update n (1-based), in float64; the step uses it rounded to float32."""

    kind: Literal["cosine", "half_cosine", "linear", "constant"]
    peak: Annotated[float, Field(gt=0)]
    warmup_steps: Annotated[int, Field(ge=0)] = 0
    horizon_steps: Positive | Literal["epoch"]
    """Where it ends; `epoch`: the whole batches of one pass over the windows that the index and the order give."""
    final_fraction: Annotated[float, Field(ge=0, le=1)] = 0.1


KeepOrReset = Literal["keep", "reset"]


class HandOver(Section):
    """How a stage begins from another one's checkpoint, whose weights it always keeps.

    The defaults are what AI2's scripts for mid-training and long context do: a new trainer around the old weights and
    the old optimiser.
    """

    source_step: Positive | None = None
    """Updates behind the checkpoint to go on from; None: a run folder's newest, or the checkpoint given."""
    moments: KeepOrReset = "keep"
    """Adam's moments; `reset`: zeros."""
    adam_count: KeepOrReset = "keep"
    """Adam's count of updates, for its bias correction; `reset`: the recipe's `optimizer.count_starts_at`."""
    schedule: KeepOrReset = "reset"
    """`keep`: the update after the checkpoint's S updates has the rate of update S + 1; `reset`: that of update 1."""
    data_position: KeepOrReset = "reset"
    """`keep`: S batches of this order were read, and steps count on from S; `reset`: steps and batches begin anew."""
    skip_history: KeepOrReset = "reset"
    """Recent losses and norms of the skip rule; OLMo-core forgets them at every start of the program."""


class Numerics(Section):
    """Element types that the result depends on."""

    parameters: Dtype = "float32"
    compute: Dtype = "float32"
    gradient_reduction: Dtype = "float32"
    moments: Dtype = "float32"


class HeldOutSet(Section):
    """Text to measure models on, and how it is cut. Either `tokens` or `documents` says where it lies."""

    tokens: Path | dict[str, Path] | None = None
    """Token files by domain; or one file, or a folder each of whose `.npy` files is a domain."""
    documents: Path | dict[str, Path] | None = None
    """Files of JSON lines with a `text` (also `.gz` and `.zst`), or folders of them, by domain; or one folder, each of
    whose folders and files is a domain."""
    dtype: Literal["uint8", "uint16", "uint32"] | None = None
    """Of token files; None: the narrowest that holds the vocabulary."""
    split: str | None = None
    """Of documents: only files that lie in a folder of this name count."""
    subdomains: bool = False
    """Of documents: `domain/subdomain`, by the field `subdomain` of each, is a domain of its own."""
    concatenate: bool = False
    """Of documents: all of a domain as one text, each behind the end of the one before, instead of one by one."""
    window_tokens: Positive | None = None
    """The most that a prediction sees; None: the evaluation's length."""
    stride_tokens: Positive | None = None
    """Rolling windows, each of which scores so many tokens that none before it did and sees those before them. None:
    documents roll by a whole window; token files are cut into windows, whose first token is context alone."""
    prefix: Literal["none", "end_of_text"] | None = None
    """What a rolling text begins with, so that its first token is scored too; None: `end_of_text` for documents,
    `none` for token files."""
    remainder: Literal["drop", "score"] = "drop"
    """Of token files cut into windows: what becomes of the tokens behind the last whole window."""
    first_tokens: Positive | None = None
    """Of token files: so many from the beginning of each domain, which must hold them. None: all."""

    @model_validator(mode="after")
    def _consistent(self) -> "HeldOutSet":
        if (self.tokens is None) == (self.documents is None):
            raise ValueError("give either tokens or documents")
        if self.documents is None and (self.split or self.subdomains or self.concatenate):
            raise ValueError("split, subdomains and concatenate are for documents")
        if self.concatenate and self.subdomains:
            raise ValueError("subdomains of concatenated documents can't be told apart")
        if self.tokens is None and (self.dtype or self.first_tokens or self.remainder != "drop"):
            raise ValueError("dtype, first_tokens and remainder are for tokens")
        if self.window_tokens and self.stride_tokens and self.stride_tokens > self.window_tokens:
            raise ValueError(f"stride_tokens {self.stride_tokens} is above window_tokens {self.window_tokens}")
        if self.prefix == "end_of_text" and self.tokens is not None and self.stride_tokens is None:
            raise ValueError("a prefix needs rolling windows: give stride_tokens")
        return self


class Evaluation(Section):
    """Held-out protocol: fixed windows per domain, every target weighted alike."""

    sequence_length_tokens: Positive | None = None
    """None: the training length."""
    bootstrap_samples: Positive = 2000
    sets: dict[str, HeldOutSet] = Field(default_factory=dict)
    """Further held-out text by name, measured beside the reference's own."""

    def __hash__(self) -> int:
        """Of its JSON: a mapping has no hash, and the compiled step is kept by recipe."""
        return hash(self.model_dump_json())


class Inputs(Section):
    """Where the run's inputs lie. Not hashed: content fingerprints identify them, not paths."""

    index: str | None = None
    """Index JSON or manifest of token files; `package:` names a file shipped with Ectype."""
    remap: tuple[str, ...] = ()
    """`FROM=TO`: paths of the index that lie below FROM are read from TO; the longest match wins."""
    weights: str | None = None
    """Step-0 weights: an Ectype checkpoint or a Hugging Face folder. None: drawn from `init_seed`."""
    padded_rows: str | None = None
    """Side file with the embedding and head rows that a Hugging Face export dropped."""
    source: str | None = None
    """What a stage with a `hand_over` goes on from: a run folder or one of its checkpoints."""
    reference: str | None = None
    """The reference run to compare with: a folder that holds `reference.json`."""


class Recipe(Section):
    """All that decides what a run computes."""

    name: str
    description: str = ""
    model: Model
    data: Data
    loss: Loss = Loss()
    optimizer: Optimizer = Optimizer()
    schedule: Schedule
    numerics: Numerics = Numerics()
    hand_over: HandOver | None = None
    """For a stage that goes on from another one's checkpoint."""
    evaluation: Evaluation = Evaluation()
    duration_steps: Positive
    landmarks: tuple[Annotated[int, Field(ge=0)], ...] = ()
    inputs: Inputs = Inputs()

    @model_validator(mode="after")
    def _consistent(self) -> "Recipe":
        beyond = [step for step in self.landmarks if step > self.duration_steps]
        if beyond:
            raise ValueError(
                f"landmarks {beyond} lie beyond duration_steps {self.duration_steps}; give both, or stop a run early "
                "with --until"
            )
        for name in ("eos_id", "pad_id"):
            value = getattr(self.data, name)
            if value >= self.model.vocab_size:
                raise ValueError(f"data.{name} {value} is not below model.vocab_size {self.model.vocab_size}")
        return self
