"""Toy stages 1, extension, 2 and 3 by OLMo-core's own trainer, loader and hand-overs, as references to compare with.

    python benchmarks/peers/olmo_core_stages.py OUT

Needs ai2-olmo-core, torch and transformers. Writes a reference folder per stage (`docs/reference-folder.md`) below OUT.
Nothing of Ectype takes part but its bundled token files. What OLMo-core leaves to a GPU kernel, attention within
documents, is torch's own attention here, with the mask written out.
"""

import csv
import json
import logging
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from olmo_core.data import (
    InstanceFilterConfig,
    NumpyDataLoaderConfig,
    NumpyFSLDatasetConfig,
    NumpyPackedFSLDatasetConfig,
    TokenizerConfig,
    numpy_dataset,
)
from olmo_core.data.types import NumpyDatasetDType
from olmo_core.distributed.checkpoint import load_model_and_optim_state
from olmo_core.nn.attention import AttentionBackendName, SlidingWindowAttentionConfig
from olmo_core.nn.attention.backend import TorchAttentionBackend
from olmo_core.nn.hf.convert_checkpoint import convert_checkpoint_to_hf
from olmo_core.nn.rope import YaRNRoPEScalingConfig
from olmo_core.nn.transformer import TransformerConfig
from olmo_core.optim import CosWithWarmup, HalfCosWithWarmup, LinearWithWarmup, OptimGroupOverride, SkipStepAdamWConfig
from olmo_core.optim.scheduler import Scheduler
from olmo_core.train import Duration, LoadStrategy, TrainerConfig, prepare_training_environment
from olmo_core.train.callbacks import Callback, CheckpointerCallback
from olmo_core.train.train_module import TransformerTrainModuleConfig

VOCABULARY, TRAINED_ROWS, EOS, PAD = 1000, 1024, 0, 1
WINDOW = 64
HELD_OUT = ("devil", "tz")


@dataclass(frozen=True)
class Stage:
    """What AI2's scripts vary between stages. `goes_on`: the trainer's state is loaded with weights and optimiser."""

    name: str
    windows: int
    length: int
    seed: int
    rate: float
    scheduler: Scheduler
    horizon: int
    end: int
    landmarks: tuple[int, ...]
    goes_on: bool = False
    long_context: bool = False


STAGES = (
    Stage("stage1", 4, 256, 34521, 6e-4, CosWithWarmup(warmup=4), 28, 16, (0, 16)),
    Stage("stage1-extension", 4, 256, 34521, 6e-4, HalfCosWithWarmup(warmup=16), 40, 24, (24,), goes_on=True),
    Stage("stage2", 2, 256, 1337, 4e-4, LinearWithWarmup(warmup=0, alpha_f=0.0), 16, 16, (6, 16)),
    Stage("stage3", 2, 512, 34521, 4e-4, LinearWithWarmup(warmup=3, alpha_f=0.0), 12, 12, (6, 12), long_context=True),
)


class DocumentAttention(TorchAttentionBackend):
    """torch's scaled dot-product attention with the mask that flash attention makes of document lengths."""

    def forward(self, qkv, cu_doc_lens=None, max_doc_len=None, **others):
        """softmax(q k^T / sqrt(K)) v, [B, L, H, K], over keys of the query's document within its window."""
        query, key, value = qkv
        batch, length = query.shape[:2]
        documents = torch.searchsorted(cu_doc_lens, torch.arange(batch * length), right=True).view(batch, length)
        distance = torch.arange(length)[:, None] - torch.arange(length)[None, :]
        left = self.window_size[0]
        visible = (distance >= 0) & ((distance <= left) if left >= 0 else True)
        mask = visible & (documents[:, :, None] == documents[:, None, :])
        heads_first = (part.transpose(1, 2) for part in (query, key, value))
        mixed = torch.nn.functional.scaled_dot_product_attention(
            *heads_first, attn_mask=mask[:, None], scale=self.scale
        )
        return mixed.transpose(1, 2).contiguous()


@dataclass
class Recorder(Callback):
    """Keeps each step's metrics and window ids."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    batches: list[dict[str, Any]] = field(default_factory=list)

    def pre_step(self, batch):
        self.batches.append({"step": self.step, "index": batch["index"].tolist()})

    def log_metrics(self, step, metrics):
        if "train/CE loss" in metrics:
            names = {"loss": "train/CE loss", "z_loss": "train/Z loss", "grad_norm": "optim/total grad norm",
                     "learning_rate": "optim/LR (group 0)", "skipped": "optim/step skipped"}  # fmt: skip
            self.rows.append({"step": step, **{name: metrics[theirs] for name, theirs in names.items()}})


def model_config(stage: Stage) -> TransformerConfig:
    """The bundled run's model; in the long-context stage with YaRN in its full-attention layer."""
    config = TransformerConfig.olmo3_14M(
        vocab_size=TRAINED_ROWS, n_layers=4, n_heads=4, hidden_size_multiple_of=8, init_seed=0,
        attn_backend=AttentionBackendName.torch,
        sliding_window=SlidingWindowAttentionConfig(
            force_full_attention_on_first_layer=False, force_full_attention_on_last_layer=True,
            pattern=[WINDOW, WINDOW, WINDOW, -1],
        ),
    )  # fmt: skip
    scaling = YaRNRoPEScalingConfig(factor=2, beta_fast=32, beta_slow=1, old_context_len=256)
    return config.with_rope_scaling(scaling, full_attn_layers_only=True) if stage.long_context else config


def dataset(stage: Stage, tokens: Path, work: Path):
    """Fixed windows, or documents packed into windows with their lengths."""
    paths = [str(tokens / line.split(",")[1]) for line in (tokens / "manifest.txt").read_text().split()]
    common: dict[str, Any] = {
        "tokenizer": TokenizerConfig(vocab_size=VOCABULARY, eos_token_id=EOS, pad_token_id=PAD), "paths": paths,
        "sequence_length": stage.length, "dtype": NumpyDatasetDType.uint16, "work_dir": str(work),
        "instance_filter_config": InstanceFilterConfig(13, 1, 32),
    }  # fmt: skip
    if stage.long_context:
        return NumpyPackedFSLDatasetConfig(
            generate_doc_lengths=True, source_group_size=8, source_permutation_seed=123, **common
        ).build()
    return NumpyFSLDatasetConfig(max_target_sequence_length=stage.length, **common).build()


def trainer_of(stage: Stage, before: Path | None, tokens: Path, folder: Path):
    """OLMo-core's trainer on one stage, its checkpoints below `folder`; `before` is the checkpoint to go on from."""
    model = model_config(stage).build(init_device="meta")
    if stage.long_context:
        for block in model.blocks.values():
            block.attention.backend.__class__ = DocumentAttention
    module = TransformerTrainModuleConfig(
        rank_microbatch_size=stage.windows * stage.length, max_sequence_length=stage.length, compile_model=False,
        optim=SkipStepAdamWConfig(
            lr=stage.rate, weight_decay=0.1, betas=(0.9, 0.95), rolling_interval_length=8, sigma_factor=2,
            group_overrides=[OptimGroupOverride(params=["embeddings.weight"], opts={"weight_decay": 0.0})],
        ),
        scheduler=stage.scheduler, z_loss_multiplier=1e-5, max_grad_norm=1.0,
    ).build(model)  # fmt: skip
    loader = NumpyDataLoaderConfig(
        global_batch_size=stage.windows * stage.length, seed=stage.seed, num_workers=0, work_dir=str(folder / "work")
    ).build(dataset(stage, tokens, folder / "work"), dp_process_group=module.dp_process_group)
    source = {} if before is None else {
        "load_path": str(before), "load_strategy": LoadStrategy.always, "load_trainer_state": stage.goes_on,
        "load_optim_state": True,
    }  # fmt: skip
    recorder = Recorder()
    trainer = TrainerConfig(
        save_folder=str(folder), save_overwrite=True, work_dir=str(folder / "work"), metrics_collect_interval=1,
        cancel_check_interval=10_000, max_duration=Duration.steps(stage.horizon), hard_stop=Duration.steps(stage.end),
        async_bookkeeping=False, **source,
        callbacks={
            "recorder": recorder,
            # As in AI2's scripts, step 0 is saved where nothing is loaded.
            "checkpointer": CheckpointerCallback(
                save_interval=10_000, fixed_steps=list(stage.landmarks), save_async=False, max_checkpoints=None
            ),
        },
    ).build(module, loader)  # fmt: skip
    return trainer, trainer.callbacks["recorder"]


def export(stage: Stage, step: int, checkpoint: Path, tokenizer_folder: Path, out: Path) -> None:
    """OLMo-core's own conversion of one landmark, and the vocabulary rows that it drops."""
    config, tokenizer = model_config(stage), TokenizerConfig(vocab_size=VOCABULARY, eos_token_id=EOS, pad_token_id=PAD)
    convert_checkpoint_to_hf(
        checkpoint, out / f"hf/step{step}", config.as_config_dict(), tokenizer.as_config_dict(),
        tokenizer_id=str(tokenizer_folder), max_sequence_length=stage.length, validate=False,
    )  # fmt: skip
    model = config.build(init_device="cpu")
    load_model_and_optim_state(str(checkpoint / "model_and_optim"), model)
    rows = {
        name: tensor[VOCABULARY:].clone()
        for name, tensor in model.state_dict().items()
        if name in ("embeddings.weight", "lm_head.w_out.weight")
    }
    (out / "padded_rows").mkdir(exist_ok=True)
    safetensors.torch.save_file(rows, out / f"padded_rows/step{step}.safetensors")


def write_reference(stage: Stage, recorder: Recorder, bundle: Path, checkpoints: Path, out: Path) -> None:
    """The stage's log, batches and landmarks, and the `reference.json` that names them."""
    (out / "hf").mkdir(parents=True)
    for step in stage.landmarks:
        export(stage, step, checkpoints / f"step{step}", bundle / "tokenizer", out)
    with open(out / "log.csv", "w", newline="") as stream:
        writer = csv.DictWriter(stream, recorder.rows[0].keys())
        writer.writeheader()
        writer.writerows(recorder.rows)
    (out / "batches.json").write_text(json.dumps(recorder.batches))
    names = ("step", "loss", "z_loss", "grad_norm", "learning_rate", "skipped")
    reference = {
        "format": 1, "name": f"olmocore-toy-{stage.name}", "dtype": "float32",
        "framework": f"OLMo-core's trainer, PyTorch {torch.__version__}, CPU, float32",
        "landmarks": {
            str(step): {"weights": f"hf/step{step}", "padded_rows": f"padded_rows/step{step}.safetensors"}
            for step in stage.landmarks
        },
        "log": {"path": "log.csv", **{name: name for name in names}},
        "batches": "batches.json",
        "held_out": {
            "dtype": "uint16", "domains": {name: str(bundle / f"tokens/heldout/{name}.npy") for name in HELD_OUT},
        },
        "tokenizer": str(bundle / "tokenizer/tokenizer.json"), "noise": None,
    }  # fmt: skip
    (out / "reference.json").write_text(json.dumps(reference, indent=1))


def main() -> None:
    out = Path(sys.argv[1])
    torch.set_num_threads(1)
    # Packing a dozen small files: a process each would import all of the above again.
    numpy_dataset.concurrent.futures.ProcessPoolExecutor = ThreadPoolExecutor
    prepare_training_environment(backend=None)
    logging.getLogger().setLevel(logging.WARNING)
    package = find_spec("ectype")
    assert package is not None
    assert package.origin is not None
    bundle = Path(package.origin).parent / "demo/bundle"
    before = None
    for stage in STAGES:
        folder = out / "olmo-core" / stage.name
        trainer, recorder = trainer_of(stage, before, bundle / "tokens", folder)
        trainer.fit()
        write_reference(stage, recorder, bundle, folder, out / stage.name)
        before = folder / f"step{stage.end}"
    shutil.rmtree(out / "olmo-core")


if __name__ == "__main__":
    main()
