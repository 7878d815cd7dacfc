"""Every OLMo 3 recipe, resolved, against a table of AI2's values that was written from the scripts and logs alone."""

import math
from typing import Any

import pytest

from ectype.model.parameters import parameter_count
from ectype.recipe.load import load_recipe, recipe_differences, shipped
from ectype.train.schedule import learning_rate, with_known_horizon

NEW_TRAINER = {"load_optim_state": True, "load_trainer_state": False}
"""AI2's words in every later script, that of 32B's stage 3 included: OLMo-core's trainer refuses them for a mean
without an optimiser's state, and AI2's merging tool averages that state with the weights."""
SAME_TRAINER = {"load_optim_state": True, "load_trainer_state": True}
SWITCHES_OF = {
    "load_optim_state": ("moments", "adam_count"), "load_trainer_state": ("schedule", "data_position"),
    None: ("skip_history",),
}  # fmt: skip
"""What each of them decides; OLMo-core's checkpoints never hold the skip rule's history."""
MODEL_7B: dict[str, Any] = {
    "d_model": 4096, "n_layers": 32, "n_heads": 32, "n_kv_heads": 32, "head_dim": 128, "d_ffn": 11008,
}  # fmt: skip
MODEL_32B: dict[str, Any] = {
    "d_model": 5120, "n_layers": 64, "n_heads": 40, "n_kv_heads": 8, "head_dim": 128, "d_ffn": 27648,
}  # fmt: skip
MODEL_190M: dict[str, Any] = {
    "d_model": 768, "n_layers": 12, "n_heads": 12, "n_kv_heads": 12, "head_dim": 64, "d_ffn": 3072,
}  # fmt: skip
COMMON_MODEL: dict[str, Any] = {
    "vocab_size": 100278, "trained_rows": 100352, "window_pattern": (4096, 4096, 4096, None), "rope_theta": 500000.0,
    "norm_eps": 1e-6, "norm_placement": "after", "qk_norm": "projection", "attention_bias": False, "tied_head": False,
    "init_std": 0.02, "init_cut": 3.0, "init_seed": 0,
}  # fmt: skip
COMMON_OPTIMIZER: dict[str, Any] = {
    "kind": "adamw", "beta1": 0.9, "beta2": 0.95, "epsilon": 1e-8, "weight_decay": 0.1, "decay_embedding": False,
    "clip_norm": 1.0, "skip_step": {"window_steps": 128, "sigma": 6.0}, "count_starts_at": 1,
    "step_increment_bugfix": True,
}  # fmt: skip
NUMERICS = {"parameters": "float32", "compute": "bfloat16", "gradient_reduction": "float32", "moments": "float32"}
FILTER_32B = {"max_period": 13, "min_period": 1, "max_count": 32}
YARN = {
    "factor": 8.0, "original_length_tokens": 8192, "beta_fast": 32.0, "beta_slow": 1.0, "attention_factor": None,
    "truncate": True,
}  # fmt: skip
PACKING = {
    "source_group_size": 8, "source_permutation_seed": 123, "long_documents": "truncate", "ties": "stable",
}  # fmt: skip
EPOCH = 1_413_814
"""Whole batches of one pass over OLMo-mix-0625-official."""

# model, yarn, (window length, batch tokens), order seed, filter, masks and packing, end, hand-over step, its switches
TABLE: dict[str, dict[str, Any]] = {
    "olmo3-7b-stage1": {
        "model": MODEL_7B, "length": 8192, "batch": 4_194_304, "seed": 34521, "filter": None, "end": 597_046,
        "rates": {1: 1.5e-07, 1000: 0.00015, 2000: 3e-4, 100000: 0.0002955076828431117, 597046: 0.00016500017818565782},
    },
    "olmo3-7b-stage1-extension": {
        "model": MODEL_7B, "length": 8192, "batch": 4_194_304, "seed": 34521, "filter": None, "end": EPOCH,
        "from": 597_046, "load": SAME_TRAINER,
        "rates": {597047: 0.00016499980216394097, 1000000: 8.98340769244571e-05, EPOCH: 3.93252716718148e-05},
    },
    "olmo3-7b-stage2": {
        "model": MODEL_7B, "length": 8192, "batch": 2_097_152, "seed": 1337, "filter": None, "end": 47_684,
        "from": EPOCH, "load": NEW_TRAINER,
        "rates": {1: 0.0002071191848342693, 1000: 0.0002027798591699983, 47683: 4.34366933361411e-09, 47684: 0.0},
    },
    "olmo3-7b-stage3": {
        "model": MODEL_7B, "length": 65536, "batch": 4_194_304, "seed": 34521, "filter": None, "end": 11_921,
        "from": 47_684, "load": NEW_TRAINER, "long": True,
        "rates": {
            1: 1.0356176425180146e-06, 100: 0.00010356176425180146, 200: 0.00020712352850360292,
            201: 0.0002071058573553644, 11921: 0.0,
        },
    },
    "olmo3-7b-stage1-heads16x256": {
        "model": MODEL_7B | {"n_heads": 16, "n_kv_heads": 16, "head_dim": 256}, "length": 8192, "batch": 4_194_304,
        "seed": 34521, "filter": None, "end": 597_046, "rates": {1: 1.5e-07, 597046: 0.00016500017818565782},
    },
    "olmo3-32b-stage1": {
        "model": MODEL_32B, "length": 8192, "batch": 8_388_608, "seed": 34521, "filter": FILTER_32B, "end": 656_000,
        "rates": {1: 3e-7, 1000: 3e-4, 2000: 6e-4},
    },
    "olmo3-32b-stage2": {
        "model": MODEL_32B, "length": 8192, "batch": 4_194_304, "seed": 42069, "filter": FILTER_32B, "end": 23_842,
        "from": 656_000, "load": NEW_TRAINER,
        "rates": {1: 0.00020711484116133294, 1000: 0.00019843618983294187, 23842: 0.0},
    },
    "olmo3-32b-stage3": {
        "model": MODEL_32B, "length": 65536, "batch": 8_388_608, "seed": 34521, "filter": FILTER_32B, "end": 11_921,
        "from": 23_842, "load": NEW_TRAINER, "long": True,
        "rates": {1: 1.0356176425e-06, 200: 0.0002071235285, 11921: 0.0},
    },
    "olmo3-190m": {
        "model": MODEL_190M, "length": 8192, "batch": 524_288, "seed": 34521, "filter": None, "end": 7_248,
        "rates": {360: 1e-3, 7248: 1e-4},
    },
}  # fmt: skip


def test_the_table_has_every_recipe_of_olmo_3() -> None:
    assert {name for name in shipped("recipe") if name.startswith("olmo3")} == TABLE.keys()


@pytest.mark.parametrize("name", TABLE)
def test_model_optimiser_and_numerics(name: str) -> None:
    found, expected = load_recipe(name).model_dump(), TABLE[name]
    yarn = YARN if expected.get("long") else None
    assert found["model"] == COMMON_MODEL | expected["model"] | {"yarn": yarn}
    assert found["optimizer"] == COMMON_OPTIMIZER
    assert found["loss"] == {"z_loss": 1e-5, "rejected_windows_count": "full"}
    assert found["numerics"] == NUMERICS


@pytest.mark.parametrize("name", TABLE)
def test_data_and_end(name: str) -> None:
    recipe, expected = load_recipe(name), TABLE[name]
    long = expected.get("long", False)
    assert recipe.data.model_dump() == {
        "sequence_length_tokens": expected["length"], "global_batch_windows": expected["batch"] // expected["length"],
        "eos_id": 100257, "pad_id": 100277, "repetition_filter": expected["filter"], "document_masks": long,
        "packing": PACKING if long else None,
        "order": {
            "kind": "olmo-core", "seed": expected["seed"], "max_target_length_tokens": None if long else 8192,
        },
    }  # fmt: skip
    assert recipe.data.global_batch_tokens == expected["batch"]
    assert recipe.duration_steps == expected["end"]


@pytest.mark.parametrize("name", TABLE)
def test_hand_over(name: str) -> None:
    found, expected = load_recipe(name).hand_over, TABLE[name]
    if "from" not in expected:
        assert found is None
    else:
        assert found is not None
        switches = {
            switch: "keep" if expected["load"].get(word, False) else "reset"
            for word, decided in SWITCHES_OF.items()
            for switch in decided
        }
        assert found.model_dump() == switches | {"source_step": expected["from"]}


@pytest.mark.parametrize("name", TABLE)
def test_the_rate_at_listed_steps(name: str) -> None:
    """OLMo-core's own schedulers gave the values of the official stages."""
    schedule = with_known_horizon(load_recipe(name).schedule, 706_907)
    for step, rate in TABLE[name]["rates"].items():
        assert learning_rate(schedule, step) == pytest.approx(rate, rel=1e-12, abs=1e-300)


def test_durations_follow_from_tokens() -> None:
    """ceil(tokens / batch tokens), as OLMo-core turns a duration in tokens into steps."""
    horizons = {
        "olmo3-7b-stage1": (5e12, 4_194_304), "olmo3-7b-stage1-extension": (7e12, 4_194_304),
        "olmo3-7b-stage2": (1e11, 2_097_152), "olmo3-7b-stage3": (5e10, 4_194_304),
        "olmo3-32b-stage2": (1e11, 4_194_304), "olmo3-32b-stage3": (1e11, 8_388_608),
    }  # fmt: skip
    for name, (tokens, batch) in horizons.items():
        assert load_recipe(name).schedule.horizon_steps == math.ceil(int(tokens) / batch)


def test_the_32b_cosine_ends_with_the_epoch() -> None:
    schedule = load_recipe("olmo3-32b-stage1").schedule
    assert schedule.horizon_steps == "epoch"
    known = with_known_horizon(schedule, 700_000)
    assert learning_rate(known, 700_000) == pytest.approx(6e-5)
    assert learning_rate(known, 351_000) == pytest.approx(3.3e-4)
    assert with_known_horizon(load_recipe("olmo3-7b-stage1").schedule, 5).horizon_steps == 1_192_093


def test_both_schedules_meet_where_part_two_begins() -> None:
    """The rate falls by as much from 597,046 to 597,047 as from the step before."""
    one, two = (load_recipe(f"olmo3-7b-stage1{part}").schedule for part in ("", "-extension"))
    before, at = learning_rate(one, 597_045), learning_rate(one, 597_046)
    assert 0 < at - learning_rate(two, 597_047) < 2 * (before - at)


@pytest.mark.parametrize(
    ("name", "rows", "count"),
    [
        ("olmo3-7b-stage1", 100352, 7_298_617_344),
        ("olmo3-7b-stage1-heads16x256", 100352, 7_298_617_344),
        ("olmo3-7b-stage1", 100278, 7_298_011_136),
        ("olmo3-32b-stage1", 100352, 32_234_279_936),
        ("olmo3-190m", 100352, 267_424_512),
    ],
)
def test_parameter_counts(name: str, rows: int, count: int) -> None:
    assert parameter_count(load_recipe(name, [f"model.trained_rows={rows}"]).model) == count


def test_the_codesigned_variant_differs_in_its_heads_alone() -> None:
    differences = recipe_differences(load_recipe("olmo3-7b-stage1"), load_recipe("olmo3-7b-stage1-heads16x256"))
    assert differences == {"model.n_heads": (32, 16), "model.n_kv_heads": (32, 16), "model.head_dim": (128, 256)}


@pytest.mark.parametrize("name", TABLE)
def test_landmarks_are_published_checkpoints(name: str) -> None:
    """AI2 published every 1,000th step and the last; no step 0 of later stages."""
    recipe = load_recipe(name)
    ends = {EPOCH, 47_684, 11_921, 23_842, 7_248}
    assert all(step % 1000 == 0 or step in ends for step in recipe.landmarks)
    assert (0 in recipe.landmarks) == (recipe.hand_over is None)


@pytest.mark.reference
@pytest.mark.parametrize(
    ("name", "size"), [("olmo3-7b-stage1", "7B"), ("olmo3-32b-stage1", "32B"), ("olmo3-190m", "190M")]
)
def test_sizes_are_those_of_olmo_core(name: str, size: str) -> None:
    transformer = pytest.importorskip("olmo_core.nn.transformer")
    model = load_recipe(name).model
    core = getattr(transformer.TransformerConfig, f"olmo3_{size}")(vocab_size=model.rows)
    attention = core.block.sequence_mixer if hasattr(core.block, "sequence_mixer") else core.block.attention
    assert core.num_params == parameter_count(model)
    assert (core.d_model, core.n_layers, core.block.feed_forward.hidden_size) == (
        model.d_model, model.n_layers, model.d_ffn,
    )  # fmt: skip
    assert (attention.n_heads, attention.n_kv_heads or attention.n_heads) == (model.n_heads, model.n_kv_heads)
    assert attention.rope.theta == model.rope_theta
    window = attention.sliding_window
    assert tuple(None if size == -1 else size for size in window.pattern) == model.window_pattern
    assert (window.force_full_attention_on_first_layer, window.force_full_attention_on_last_layer) == (False, True)


@pytest.mark.reference
def test_the_optimiser_is_olmo_core_s_by_default_where_the_scripts_are_silent() -> None:
    optim = pytest.importorskip("olmo_core.optim")
    ours, core = load_recipe("olmo3-7b-stage1").optimizer, optim.SkipStepAdamWConfig(lr=3e-4)
    assert ours.skip_step is not None
    assert (ours.epsilon, ours.skip_step.window_steps, ours.skip_step.sigma, ours.step_increment_bugfix) == (
        core.eps, core.rolling_interval_length, core.sigma_factor, core.step_increment_bugfix,
    )  # fmt: skip
