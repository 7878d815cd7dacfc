"""Each faulty function differs from the sound one in its fault, and in nothing else."""

from contextlib import ExitStack
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ectype.faults import catalogue, spoiled
from ectype.faults.catalogue import FAULTS, fault_named
from ectype.faults.injection import in_place_of
from ectype.faults.regimes import RECIPE, details, regime_named, regime_recipe, run_named, stages
from ectype.model import decoder
from ectype.model.parameters import init_parameters
from ectype.model.rope import rotary_tables
from ectype.recipe.load import load_placement, load_recipe, recipe_differences
from ectype.train import checkpoint, optimizer, step
from ectype.train.sharding import make_mesh
from ectype.train.state import fresh_state

RECIPE_OF_ALL = load_recipe(RECIPE)
MODEL = RECIPE_OF_ALL.model


def test_a_name_that_is_gone_is_an_error_and_a_sound_one_comes_back() -> None:
    with pytest.raises(AttributeError), in_place_of(step, "no_such_name", None):
        pass
    sound = step.next_token_targets
    with spoiled.labels_shifted():
        assert step.next_token_targets is not sound
    assert step.next_token_targets is sound


def test_shifted_labels_are_the_tokens_after_the_next_ones() -> None:
    with spoiled.labels_shifted():
        targets, mask = step.next_token_targets(jnp.arange(6)[None], jnp.array([True]))
    assert targets[0, :4].tolist() == [2, 3, 4, 5]
    assert mask[0].tolist() == [1, 1, 1, 1, 0, 0]


def test_yarn_in_all_layers_leaves_a_model_without_the_mark_alone() -> None:
    positions = jnp.arange(96)
    marked = MODEL.model_copy(update={"yarn": spoiled.marked_yarn(MODEL)})
    plain = rotary_tables(positions, MODEL.rope_theta, MODEL.head_dim, None)
    scaled = rotary_tables(positions, MODEL.rope_theta, MODEL.head_dim, MODEL.yarn)
    assert not np.allclose(plain[0], scaled[0])
    with spoiled.yarn_in_all_layers():
        for model, expected in ((MODEL, (plain, scaled)), (marked, (scaled, scaled))):
            found = decoder.layer_rotary(model, positions)
            assert all(
                np.array_equal(a, b) for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True)
            )


def test_a_norm_per_head_takes_the_weights_of_the_whole_one() -> None:
    with ExitStack() as stack:
        made = fault_named("norm-per-head").make(RECIPE_OF_ALL, None, stack)  # pyright: ignore[reportArgumentType]
        weight = jnp.arange(1.0, 9.0)
        x_BLHK = jax.random.normal(jax.random.key(0), (1, 3, 2, 4))
        found = decoder.rms_norm(x_BLHK, weight, 1e-6)
        shapes = decoder.parameter_shapes(made.recipe.model)
    expected = x_BLHK / jnp.sqrt(jnp.mean(x_BLHK**2, axis=-1, keepdims=True) + 1e-6) * weight.reshape(2, 4)
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert shapes == decoder.parameter_shapes(MODEL)


def _one_step(recipe, keep, make=None):
    """Parameters and metrics after one update on eight windows."""
    placement = load_placement("cpu-one")
    mesh = make_mesh(placement)
    tokens = jax.random.randint(jax.random.key(1), (8, 16), 2, 900)
    params = init_parameters(recipe.model, 0, "float32")
    with make() if make else ExitStack():
        state = fresh_state(params, recipe, mesh)
        batch = step.DeviceBatch(tokens, jnp.array(keep), jnp.zeros(8, bool))
        return jax.jit(step.build_train_step(recipe, placement, mesh))(state, batch, np.float32(1e-3))


@pytest.mark.parametrize(
    ("keep", "same"), [([True] * 8, True), ([True, False, True, True, False, True, True, True], False)]
)
def test_a_mean_of_means_differs_where_micro_batches_count_differently(keep, same) -> None:
    small = {"n_layers": 1, "window_pattern": (None,), "d_model": 16, "head_dim": 4, "d_ffn": 24, "trained_rows": None}
    recipe = RECIPE_OF_ALL.model_copy(update={"model": MODEL.model_copy(update=small)})
    sound, faulty = (_one_step(recipe, keep, make) for make in (None, lambda: spoiled.mean_of_means(4)))
    assert float(sound[1].loss_tokens) == float(faulty[1].loss_tokens)
    assert np.allclose(float(sound[1].loss), float(faulty[1].loss), rtol=1e-6) == same
    assert np.allclose(float(sound[1].grad_norm), float(faulty[1].grad_norm), rtol=1e-5) == same


def test_moments_pass_through_bfloat16_and_nothing_else_does() -> None:
    params = {"norm": {"weight": jnp.linspace(0.5, 1.5, 7)}}
    gradients = {"norm": {"weight": jnp.linspace(-1.0, 1.0, 7)}}
    state = optimizer.init_optimizer(params, RECIPE_OF_ALL.optimizer, "float32")
    given = (params, gradients, state, RECIPE_OF_ALL.optimizer, jnp.float32(1e-3), jnp.float32(1), jnp.array(True))
    sound = optimizer.adamw(*given)
    with spoiled.moments_in_bfloat16():
        faulty = optimizer.adamw(*given)
    assert np.array_equal(sound[0]["norm"]["weight"], faulty[0]["norm"]["weight"])
    wanted = sound[1].first_moment["norm"]["weight"].astype(jnp.bfloat16).astype(jnp.float32)
    assert np.array_equal(faulty[1].first_moment["norm"]["weight"], wanted)
    assert faulty[1].first_moment["norm"]["weight"].dtype == jnp.float32


def test_every_fault_of_the_recipe_changes_it_in_one_place() -> None:
    changed = {}
    for fault in FAULTS:
        if fault.name in ("width-misread", "held-out-leaked"):
            continue  # They write token files; tests/faults/test_fault_matrix.py makes them.
        with ExitStack() as stack:
            made = fault.make(RECIPE_OF_ALL, None, stack)  # pyright: ignore[reportArgumentType]
        changed[fault.name] = sorted(recipe_differences(RECIPE_OF_ALL, made.recipe))
    assert {name: fields for name, fields in changed.items() if fields} == {
        "no-z-loss": ["loss.z_loss"], "window-off-by-one": ["model.window_pattern"],
        "yarn-everywhere": ["model.yarn.attention_factor"], "norm-per-head": ["model.qk_norm"],
        "rope-theta": ["model.rope_theta"], "epsilon": ["optimizer.epsilon"],
        "embedding-decayed": ["optimizer.decay_embedding"], "warmup-short": ["schedule.warmup_steps"],
        "clipping-off": ["optimizer.clip_norm"],
    }  # fmt: skip


def test_no_run_of_a_matrix_is_a_twin_of_its_noise() -> None:
    chosen = details()
    runs = [run for stage in stages(chosen) for run in stage]
    assert len({run.name for run in runs}) == len(runs) == 2 * (1 + 1 + len(FAULTS) + 10) + 3 + 4
    assert all(run_named(run.name) == run for run in runs)
    assert regime_recipe(chosen, regime_named("re-run")).data.global_batch_windows == catalogue.HOSTS


def test_a_restart_that_forgets_keeps_all_but_the_history() -> None:
    recipe, mesh = RECIPE_OF_ALL, make_mesh(load_placement("cpu-one"))
    state = fresh_state(init_parameters(MODEL, 0, "float32"), recipe, mesh)
    history = optimizer.remember(state.optimizer.history, jnp.float32(2), jnp.float32(1))
    state = replace(state, optimizer=replace(state.optimizer, history=history))
    with (
        in_place_of(checkpoint, "restore_newest", lambda *given: (state, {"step": 1})),
        spoiled.history_lost(),
    ):
        found, _ = checkpoint.restore_newest(None, [1], recipe, mesh, print)  # pyright: ignore[reportArgumentType]
    assert int(found.optimizer.history.count) == 0
    assert not found.optimizer.history.losses.any()
    losses, norms = found.optimizer.history.losses, found.optimizer.history.norms
    assert losses.unsafe_buffer_pointer() != norms.unsafe_buffer_pointer()
    assert found.params is state.params
    assert found.optimizer.first_moment is state.optimizer.first_moment
