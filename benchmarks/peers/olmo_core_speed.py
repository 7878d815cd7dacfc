"""OLMo-core's own trainer on a recipe of ours, in turns with another; see `turns.py`.

    python benchmarks/peers/olmo_core_speed.py RECIPE THREADS

Needs ai2-olmo-core and torch. Same tokens, model shape, optimiser and batch as the recipe; one micro-batch, float32.
"""

import logging
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import torch
from olmo_core.data import InstanceFilterConfig, NumpyDataLoaderConfig, NumpyFSLDatasetConfig, TokenizerConfig
from olmo_core.data.types import NumpyDatasetDType
from olmo_core.nn.attention import AttentionBackendName, SlidingWindowAttentionConfig
from olmo_core.nn.transformer import TransformerConfig
from olmo_core.optim import CosWithWarmup, OptimGroupOverride, SkipStepAdamWConfig
from olmo_core.train import Duration, TrainerConfig, prepare_training_environment
from olmo_core.train.callbacks import Callback
from olmo_core.train.train_module import TransformerTrainModuleConfig
from turns import Turn

from ectype.artifacts import package_path
from ectype.recipe.load import load_recipe
from ectype.recipe.spec import Recipe


@dataclass
class TakeTurns(Callback):
    """Waits for its turn between steps."""

    turn: Turn = field(default_factory=Turn)

    def post_step(self):
        self.turn.at_step()


def train_module(recipe: Recipe, model):
    """OLMo-core's train module with the recipe's optimiser and schedule."""
    optimizer = SkipStepAdamWConfig(
        lr=recipe.schedule.peak, weight_decay=recipe.optimizer.weight_decay, betas=(0.9, 0.95),
        group_overrides=[OptimGroupOverride(params=["embeddings.weight"], opts={"weight_decay": 0.0})],
    )  # fmt: skip
    return TransformerTrainModuleConfig(
        rank_microbatch_size=recipe.data.global_batch_tokens, max_sequence_length=recipe.data.sequence_length_tokens,
        optim=optimizer, scheduler=CosWithWarmup(warmup=recipe.schedule.warmup_steps), compile_model=False,
        z_loss_multiplier=recipe.loss.z_loss, max_grad_norm=1.0,
    ).build(model)  # fmt: skip


def main() -> None:
    recipe, threads = load_recipe(sys.argv[1]), int(sys.argv[2])
    torch.set_num_threads(threads)
    prepare_training_environment(backend=None)
    logging.getLogger().setLevel(logging.WARNING)
    shape, data = recipe.model, recipe.data
    window = [-1 if size is None else size for size in shape.window_pattern]
    make = {128: TransformerConfig.olmo3_14M, 256: TransformerConfig.olmo3_30M}[shape.d_model]
    model = make(
        vocab_size=shape.rows, n_layers=shape.n_layers, n_heads=shape.n_heads, hidden_size_multiple_of=8,
        attn_backend=AttentionBackendName.torch,
        sliding_window=SlidingWindowAttentionConfig(
            force_full_attention_on_first_layer=False, force_full_attention_on_last_layer=True, pattern=window
        ),
    ).build(init_device="meta")  # fmt: skip
    module = train_module(recipe, model)
    manifest = package_path(recipe.inputs.index)
    paths = [str(manifest.parent / line.split(",")[1]) for line in manifest.read_text().split()]
    with tempfile.TemporaryDirectory() as work:
        tokenizer = TokenizerConfig(vocab_size=shape.vocab_size, eos_token_id=data.eos_id, pad_token_id=data.pad_id)
        dataset = NumpyFSLDatasetConfig(
            tokenizer=tokenizer, paths=paths, sequence_length=data.sequence_length_tokens,
            max_target_sequence_length=data.sequence_length_tokens, dtype=NumpyDatasetDType.uint16, work_dir=work,
            instance_filter_config=InstanceFilterConfig(13, 1, 32),
        ).build()  # fmt: skip
        loader = NumpyDataLoaderConfig(global_batch_size=data.global_batch_tokens, seed=1, num_workers=0, work_dir=work)
        trainer = TrainerConfig(
            save_folder=str(Path(work) / "save"), work_dir=work, metrics_collect_interval=1,
            cancel_check_interval=10_000, max_duration=Duration.steps(recipe.duration_steps), async_bookkeeping=False,
            no_checkpoints=True, callbacks={"turns": TakeTurns()},
        ).build(module, loader.build(dataset, dp_process_group=module.dp_process_group))  # fmt: skip
        trainer.fit()


if __name__ == "__main__":
    main()
