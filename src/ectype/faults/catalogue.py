"""The known faults: what each of them is and how it is made. Their numbers live here."""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

from ectype.data import loader, tokenfile
from ectype.data.order import make_order
from ectype.evaluate import runner
from ectype.faults import materials, spoiled
from ectype.faults.injection import in_place_of
from ectype.faults.orders import Batches, BlocksOfHosts, ReplayedAtRestarts, ShardedTwice
from ectype.recipe.spec import Recipe

Area = Literal["data", "model", "loss", "optimiser", "restart", "evaluation"]
HOSTS = 32
"""Of the loader that shards twice: one for each window of a batch."""
RESTART_EVERY = 32
STOPS_OF_SHARDED_TWICE = (64, 128, 192)
STALE, RESTARTED_AT = 32, 64
MICRO_BATCHES = 8


@dataclass(frozen=True)
class Made:
    """A fault made ready: the recipe with it, and where the program starts anew."""

    recipe: Recipe
    restarts: tuple[int, ...] = ()
    order: Callable[[Any], Batches] | None = None
    """From the sound order to the one that the loader draws; None: the sound one."""


@dataclass(frozen=True)
class Fault:
    """One fault.

    `what` is empty where the fault is another number in the recipe, which then speaks for itself.
    `make` enters what it replaces into the stack, for the rest of the process, and may write into the folder.
    """

    name: str
    title: str
    what: str
    area: Area
    make: Callable[[Recipe, Path, ExitStack], Made]


def _with(recipe: Recipe, **sections: dict[str, Any]) -> Recipe:
    """The recipe with some fields of its sections changed, checked anew."""
    values = recipe.model_dump()
    for name, fields in sections.items():
        values[name] |= fields
    return Recipe.model_validate(values)


def _changed(**sections: dict[str, Any]) -> Callable[[Recipe, Path, ExitStack], Made]:
    """A fault that is another number in the recipe."""
    return lambda recipe, folder, stack: Made(_with(recipe, **sections))


def _spoiled(make: Callable[[], spoiled.Making]) -> Callable[[Recipe, Path, ExitStack], Made]:
    """A fault that is a faulty function."""

    def entered(recipe: Recipe, _: Path, stack: ExitStack) -> Made:
        stack.enter_context(make())
        return Made(recipe)

    return entered


def _drawn(order: Callable[..., Batches], restarts: tuple[int, ...] = (), **how: Any) -> Any:
    """A fault of the order that the loader draws."""

    def entered(recipe: Recipe, _: Path, stack: ExitStack) -> Made:
        stops = tuple(step for step in restarts if step < recipe.duration_steps)
        faulty = partial(order, **how) if not restarts else partial(order, restarts=stops, **how)
        stack.enter_context(in_place_of(loader, "make_order", lambda *given: faulty(make_order(*given))))
        return Made(recipe, stops, faulty)

    return entered


def _regular_restarts(recipe: Recipe) -> tuple[int, ...]:
    return tuple(range(RESTART_EVERY, recipe.duration_steps, RESTART_EVERY))


def _batch_replayed(recipe: Recipe, folder: Path, stack: ExitStack) -> Made:
    return _drawn(ReplayedAtRestarts, _regular_restarts(recipe))(recipe, folder, stack)


def _history_lost(recipe: Recipe, _: Path, stack: ExitStack) -> Made:
    stack.enter_context(spoiled.history_lost())
    return Made(recipe, _regular_restarts(recipe))


def _stale(recipe: Recipe, _: Path, stack: ExitStack) -> Made:
    stack.enter_context(spoiled.stale_restored(STALE, RESTARTED_AT))
    return Made(recipe, tuple(step for step in (RESTARTED_AT,) if step < recipe.duration_steps))


def _yarn_everywhere(recipe: Recipe, _: Path, stack: ExitStack) -> Made:
    stack.enter_context(spoiled.yarn_in_all_layers())
    return Made(_with(recipe, model={"yarn": spoiled.marked_yarn(recipe.model).model_dump()}))


def _norm_per_head(recipe: Recipe, _: Path, stack: ExitStack) -> Made:
    stack.enter_context(spoiled.shapes_of_whole_norm())
    stack.enter_context(spoiled.weights_of_whole_norm())
    return Made(_with(recipe, model={"qk_norm": "head"}))


def _misread(recipe: Recipe, folder: Path, stack: ExitStack) -> Made:
    """The index's own check of the width is silenced: the question is what would catch the fault without it."""
    manifest = materials.widened(recipe, folder)
    stack.enter_context(in_place_of(tokenfile, "width_fault", lambda tokens, vocab_size: None))
    return Made(_with(recipe, inputs={"index": str(manifest)}))


def _leaked(recipe: Recipe, folder: Path, stack: ExitStack) -> Made:
    """The search for held-out text in training is silenced, as above."""
    manifest, _ = materials.with_held_out_text(recipe, folder)
    stack.enter_context(in_place_of(runner, "require_disjoint", lambda *given, **named: None))
    return Made(_with(recipe, inputs={"index": str(manifest)}))


def _window_off(recipe: Recipe, _: Path, stack: ExitStack) -> Made:
    pattern = tuple(None if window is None else window + 1 for window in recipe.model.window_pattern)
    return Made(_with(recipe, model={"window_pattern": pattern}))


FAULTS = (
    Fault(
        "sharded-twice", "data sharded twice",
        f"{HOSTS} hosts own blocks of the permutation, and the loader strides over hosts again",
        "data", _drawn(ShardedTwice, hosts=HOSTS),
    ),
    Fault(
        "sharded-twice-stopped", "data sharded twice, with restarts",
        "the same, and each restart draws again what was drawn before",
        "data", _drawn(ShardedTwice, STOPS_OF_SHARDED_TWICE, hosts=HOSTS),
    ),
    Fault(
        "host-blocks", "host-block order after a resize",
        "hosts own blocks of the permutation; four hosts become two after 64 updates",
        "data", _drawn(BlocksOfHosts, hosts=(4, 2), resized_after_steps=64),
    ),
    Fault(
        "batch-replayed", "one batch replayed at each restart",
        f"a restart every {RESTART_EVERY} updates reads the last batch before it again", "data", _batch_replayed,
    ),
    Fault(
        "width-misread", "uint32 files read as uint16", "every other token is the high half of an id",
        "data", _misread,
    ),
    Fault(
        "held-out-leaked", "held-out text leaked into training",
        "the training files begin with the held-out text of their domain", "data", _leaked,
    ),
    Fault(
        "labels-shifted", "labels shifted by one", "training predicts the token after the next one",
        "loss", _spoiled(spoiled.labels_shifted),
    ),
    Fault(
        "mean-of-means", "mean of means", f"{MICRO_BATCHES} micro-batches are averaged, each by its own count",
        "loss", _spoiled(partial(spoiled.mean_of_means, MICRO_BATCHES)),
    ),
    Fault("no-z-loss", "no z-loss", "", "loss", _changed(loss={"z_loss": 0.0})),
    Fault("window-off-by-one", "window off by one", "", "model", _window_off),
    Fault(
        "yarn-everywhere", "YaRN in all layers", "window layers are scaled as well", "model", _yarn_everywhere
    ),
    Fault(
        "norm-per-head", "q/k norm per head", "the root mean square of each head, not of the projection",
        "model", _norm_per_head,
    ),
    Fault(
        "gate-up-swapped", "gate and up swapped in one layer", "in the second of four layers, from step 0",
        "model", _spoiled(partial(spoiled.gate_and_up_swapped, "1", 0)),
    ),
    Fault("rope-theta", "wrong RoPE theta", "", "model", _changed(model={"rope_theta": 1e4})),
    Fault(
        "epsilon", "Adam's epsilon 1e-5", "", "optimiser", _changed(optimizer={"epsilon": 1e-5})
    ),
    Fault(
        "embedding-decayed", "decay on the embedding", "the embedding is decayed like all other leaves",
        "optimiser", _changed(optimizer={"decay_embedding": True}),
    ),
    Fault(
        "warmup-short", "warm-up ten times too short", "",
        "optimiser", _changed(schedule={"warmup_steps": 2}),
    ),
    Fault(
        "clipping-off", "clipping off", "gradients of any norm are taken whole",
        "optimiser", _changed(optimizer={"clip_norm": None}),
    ),
    Fault(
        "moments-bfloat16", "moments in bfloat16", "Adam's moments are rounded after each update",
        "optimiser", _spoiled(spoiled.moments_in_bfloat16),
    ),
    Fault(
        "skip-history-lost", "skip-step history lost",
        f"a restart every {RESTART_EVERY} updates forgets recent losses and norms", "restart", _history_lost,
    ),
    Fault(
        "stale-checkpoint", "stale checkpoint restored",
        f"a restart at {RESTARTED_AT} updates takes the state of {STALE} and goes on from {RESTARTED_AT}",
        "restart", _stale,
    ),
)  # fmt: skip


def fault_named(name: str) -> Fault:
    """The fault called `name`."""
    return next(fault for fault in FAULTS if fault.name == name)
