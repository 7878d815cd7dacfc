"""Stage 1, its extension, mid-training and long context at toy size: what each takes over, and what is refused."""

import json
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest

from ectype.data.audit_run import audit_run
from ectype.data.index import load_index
from ectype.data.source import open_order
from ectype.errors import EctypeError
from ectype.recipe.load import load_placement, load_recipe
from ectype.recipe.spec import Recipe
from ectype.run.checkpoints import finished_steps
from ectype.run.manifest import HandOverRecord, Perturbation, read_manifest
from ectype.train.checkpoint import restore
from ectype.train.hand_over import hand_over_table, take_over
from ectype.train.loop import train_run
from ectype.train.schedule import learning_rate
from ectype.train.sharding import make_mesh
from ectype.train.state import TrainState, state_shardings

SMALL = [
    "model.d_model=16", "model.n_heads=2", "model.n_kv_heads=1", "model.head_dim=8", "model.d_ffn=24",
    "model.n_layers=4", "model.window_pattern=[8, 8, 8, null]", "optimizer.skip_step.window_steps=8",
    "inputs.weights=null", "inputs.padded_rows=null",
]  # fmt: skip
STAGE_1 = [
    *SMALL, "data.sequence_length_tokens=32", "data.order.max_target_length_tokens=32", "duration_steps=6",
    "schedule.horizon_steps=12", "schedule.warmup_steps=2", "landmarks=[0, 6]",
]  # fmt: skip
EXTENSION = [
    *STAGE_1, "duration_steps=9", "schedule.kind=half_cosine", "schedule.warmup_steps=6", "schedule.horizon_steps=16",
    "landmarks=[6, 9]", "hand_over.source_step=6", "hand_over.schedule=keep", "hand_over.data_position=keep",
]  # fmt: skip
STAGE_2 = [
    *STAGE_1, "duration_steps=4", "schedule.kind=linear", "schedule.warmup_steps=0", "schedule.horizon_steps=4",
    "schedule.final_fraction=0.0", "landmarks=[4]", "data.order.seed=1337", "data.global_batch_windows=4",
    "hand_over.source_step=9",
]  # fmt: skip
STAGE_3 = [
    *SMALL, "data.sequence_length_tokens=64", "data.order.max_target_length_tokens=null", "duration_steps=3",
    "data.global_batch_windows=4", "data.document_masks=true", "data.packing.source_group_size=2",
    "model.yarn.factor=8", "model.yarn.original_length_tokens=32", "schedule.kind=linear", "schedule.warmup_steps=1",
    "schedule.horizon_steps=3", "schedule.final_fraction=0.0", "landmarks=[3]", "hand_over.source_step=4",
]  # fmt: skip
PLACEMENT = load_placement("cpu-one", ["devices=2", "checkpoints.every_steps=1", "checkpoints.keep_last=2"])


def recipe(stage: list[str], *more: str, source: Path | None = None) -> Recipe:
    named = [] if source is None else [f"inputs.source={source}"]
    return load_recipe("toy-calm", [*stage, *named, *more])


def train(run: Path, stage: list[str], *more: str, source: Path | None = None, **options):
    return train_run(recipe(stage, *more, source=source), PLACEMENT, run, **options)


def state(run: Path, stage: list[str], step: int) -> TrainState:
    return restore(run, step, recipe(stage), make_mesh(PLACEMENT))[0]


def taken_over(run: Path, stage: list[str], *more: str) -> TrainState:
    """The state with which `run` began."""
    spec, record = recipe(stage, *more), read_manifest(run).hand_over
    assert record is not None
    return take_over(record, spec, state_shardings(spec, make_mesh(PLACEMENT)))


def rows(run: Path) -> list[tuple]:
    names = ("step", "loss", "grad_norm", "learning_rate")
    return [
        tuple(json.loads(line)[name] for name in names) for line in (run / "metrics.jsonl").read_text().splitlines()
    ]


def equal(left, right) -> bool:
    pairs = zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True)
    return all(a.dtype == b.dtype and np.asarray(a).tobytes() == np.asarray(b).tobytes() for a, b in pairs)


def is_zero(tree) -> bool:
    return all((np.asarray(leaf) == 0).all() for leaf in jax.tree.leaves(tree))


@pytest.fixture(scope="module")
def stages(tmp_path_factory) -> dict[str, Path]:
    """All four stages, each stopped once in its middle and resumed."""
    folder = tmp_path_factory.mktemp("stages")
    runs = {name: folder / name for name in ("one", "extension", "two", "three")}
    before = None
    for (name, run), stage, middle in zip(
        runs.items(), (STAGE_1, EXTENSION, STAGE_2, STAGE_3), (3, 7, 2, 1), strict=True
    ):  # fmt: skip
        for until in (middle, None):
            train(run, stage, source=before, until=until)
        before = runs[name]
    return runs


def test_every_stage_ends_at_its_landmark(stages):
    found = {name: finished_steps(run) for name, run in stages.items()}
    assert found == {"one": [0, 5, 6], "extension": [6, 8, 9], "two": [3, 4], "three": [2, 3]}


def test_steps_and_rates_follow_the_switches(stages):
    """The extension counts on from 6 and its rate with it; the later stages begin at update 1."""
    extension, two, three = (rows(stages[name]) for name in ("extension", "two", "three"))
    assert [row[0] for row in extension] == [7, 8, 9]
    assert [row[3] for row in extension] == [learning_rate(recipe(EXTENSION).schedule, n) for n in (7, 8, 9)]
    assert [row[0] for row in two] == [1, 2, 3, 4]
    assert [row[3] for row in two] == pytest.approx([6e-4 * share for share in (0.75, 0.5, 0.25, 0.0)])
    assert [row[3] for row in three] == pytest.approx([6e-4, 3e-4, 0.0])


@pytest.mark.parametrize(
    ("name", "source", "step", "stages_of"),
    [("extension", "one", 6, (EXTENSION, STAGE_1)), ("two", "extension", 9, (STAGE_2, EXTENSION)),
     ("three", "two", 4, (STAGE_3, STAGE_2))],
)  # fmt: skip
def test_weights_moments_and_count_are_bit_exact_and_the_history_is_empty(stages, name, source, step, stages_of):
    mine, old = taken_over(stages[name], stages_of[0]), state(stages[source], stages_of[1], step)
    assert equal(mine.params, old.params)
    assert equal(mine.optimizer.first_moment, old.optimizer.first_moment)
    assert equal(mine.optimizer.second_moment, old.optimizer.second_moment)
    assert not is_zero(mine.optimizer.second_moment)
    assert equal(mine.optimizer.count, old.optimizer.count)
    assert is_zero(mine.optimizer.history)
    assert int(mine.step) == (6 if name == "extension" else 0)


def test_the_extension_goes_on_where_the_data_stopped(stages, tmp_path):
    """With nothing else changed, two runs joined by a hand-over are the run that went straight on."""
    straight, joined = tmp_path / "straight", tmp_path / "joined"
    longer = [*STAGE_1, "duration_steps=8"]
    train(straight, longer)
    keep = [f"hand_over.{name}=keep" for name in ("schedule", "data_position", "skip_history")]
    train(joined, [*longer, "landmarks=[6]"], *keep, source=stages["one"])
    assert rows(joined) == rows(straight)[6:]
    assert equal(state(joined, [*longer, *keep], 8), state(straight, longer, 8))
    first, second = read_manifest(straight), read_manifest(joined)
    assert first.index_fingerprint == second.index_fingerprint


def test_the_audit_of_a_stage_that_goes_on_is_clean(stages):
    spec, run = recipe(EXTENSION), stages["extension"]
    assert spec.inputs.index is not None
    index = load_index(spec.inputs.index, spec.data, spec.model.vocab_size)
    audit = audit_run(run, open_order(index, spec.data), 9)
    assert audit.clean, audit
    assert audit.epochs[0].read_once == 9 * spec.data.global_batch_windows
    assert any("steps 1 to 6 were read by the run" in note for note in audit.notes)
    damaged = run.parent / "damaged"
    shutil.copytree(run, damaged)
    ledger = damaged / "ledger/process-00000.ledger"
    ledger.write_bytes(ledger.read_bytes()[:-32])
    assert not audit_run(damaged, open_order(index, spec.data), 9).clean


def test_resuming_a_stage_changes_nothing(stages, tmp_path):
    """Each stage was stopped and resumed; straight through it gives the same losses and the same state."""
    for name, source, stage, end in (("two", "extension", STAGE_2, 4), ("three", "two", STAGE_3, 3)):
        train(tmp_path / name, stage, source=stages[source])
        assert rows(tmp_path / name) == rows(stages[name])
        assert equal(state(tmp_path / name, stage, end), state(stages[name], stage, end))


def test_a_resumed_stage_needs_its_source_no_more(stages, tmp_path):
    shutil.copytree(stages["extension"], tmp_path / "source")
    train(tmp_path / "run", STAGE_2, source=tmp_path / "source", until=1)
    shutil.rmtree(tmp_path / "source")
    with pytest.raises(EctypeError, match=f"began from {tmp_path}/source"):
        train(tmp_path / "run", STAGE_2, source=stages["extension"])
    assert train(tmp_path / "run", STAGE_2).step == 4
    assert rows(tmp_path / "run") == rows(stages["two"])


def test_what_is_reset_is_as_at_a_new_start(stages, tmp_path):
    reset = ("hand_over.moments=reset", "hand_over.adam_count=reset")
    train(tmp_path / "run", STAGE_2, *reset, source=stages["extension"], until=1)
    mine = taken_over(tmp_path / "run", STAGE_2, *reset)
    assert is_zero(mine.optimizer.first_moment)
    assert is_zero(mine.optimizer.second_moment)
    assert float(mine.optimizer.count) == 1
    assert equal(mine.params, state(stages["extension"], EXTENSION, 9).params)
    assert rows(tmp_path / "run")[0][1] == rows(stages["two"])[0][1]
    after = state(tmp_path / "run", [*STAGE_2, *reset], 1).params
    assert not equal(after, state(stages["two"], STAGE_2, 3).params)


def test_a_kept_history_is_bit_exact_and_of_one_length(stages, tmp_path):
    keep = "hand_over.skip_history=keep"
    train(tmp_path / "run", STAGE_2, keep, source=stages["extension"], until=1)
    mine, old = taken_over(tmp_path / "run", STAGE_2, keep), state(stages["extension"], EXTENSION, 9)
    assert int(mine.optimizer.history.count) == 3
    assert equal(mine.optimizer.history, old.optimizer.history)
    with pytest.raises(EctypeError, match="history"):
        train(tmp_path / "other", STAGE_2, keep, "optimizer.skip_step.window_steps=4", source=stages["extension"])


def test_schedule_and_data_position_can_part(stages, tmp_path):
    keep_rate = train_and_read(tmp_path / "rate", STAGE_1, "hand_over.schedule=keep", source=stages["one"])
    keep_data = train_and_read(tmp_path / "data", [*STAGE_1, "duration_steps=8", "landmarks=[]"],
                               "hand_over.data_position=keep", source=stages["one"])  # fmt: skip
    schedule = recipe(STAGE_1).schedule
    assert [(row[0], row[3]) for row in keep_rate[:2]] == [(n, learning_rate(schedule, n + 6)) for n in (1, 2)]
    assert [(row[0], row[3]) for row in keep_data] == [(n + 6, learning_rate(schedule, n)) for n in (1, 2)]


def train_and_read(run: Path, stage: list[str], *more: str, source: Path) -> list[tuple]:
    train(run, stage, *more, source=source)
    return rows(run)


def test_the_manifest_and_the_table_say_what_was_taken_over(stages):
    record = read_manifest(stages["three"]).hand_over
    assert record is not None
    assert record.source == str(stages["two"] / "checkpoints/00000004")
    assert record.source_recipe_hash == read_manifest(stages["two"]).recipe_hash
    assert record.changed == {
        "model.yarn": "none -> factor 8.0, original_length_tokens 32, beta_fast 32.0, beta_slow 1.0, truncate True"
    }
    table = {name: (choice, words) for name, choice, words in hand_over_table(record, recipe(STAGE_3))}
    assert table["moments"] == ("keep", "bit for bit")
    assert table["adam count"] == ("keep", "as stored")
    assert table["schedule"] == ("reset", "the next rate is that of update 1")
    assert table["data position"] == ("reset", "the next batch is 0")
    assert table["skip history"] == ("reset", "empty")
    assert table["model.yarn"][0] == "change"
    second = read_manifest(stages["extension"]).hand_over
    assert second is not None
    table = {name: (choice, words) for name, choice, words in hand_over_table(second, recipe(EXTENSION))}
    assert table["schedule"] == ("keep", "the next rate is that of update 7")
    assert table["data position"] == ("keep", "the next batch is 6")


def test_the_hand_over_is_announced_once_before_the_first_update(stages, tmp_path):
    told: list[HandOverRecord | int] = []
    for _ in range(2):
        train(tmp_path / "run", STAGE_2, source=stages["extension"], until=len(told) or 1,
              announce=told.append, watch=lambda row: told.append(row["step"]))  # fmt: skip
    assert told[0] == read_manifest(tmp_path / "run").hand_over
    assert told[1:] == [1, 2]


def test_a_twin_of_a_stage_begins_from_the_same_source(stages, tmp_path):
    from ectype.run.manifest import load_run_recipe

    spec = load_run_recipe(stages["two"])
    train_run(spec, PLACEMENT, tmp_path / "twin", perturb=Perturbation(scale=1e-3, seed=1), until=1)
    ours, twin = rows(stages["two"])[0], rows(tmp_path / "twin")[0]
    assert twin[1] != ours[1]
    assert twin[1] == pytest.approx(ours[1], rel=1e-2)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["model.n_layers=8"], "n_layers is 4, not 8"),
        (["model.d_ffn=32"], "d_ffn is 24, not 32"),
        (["model.qk_norm=head"], "qk_norm is projection, not head"),
        (["hand_over.source_step=7"], "holds no checkpoint of step 7"),
        (["numerics.moments=bfloat16"], r"first_moment\.\S+ has dtype float32, not bfloat16"),
        (["hand_over.data_position=keep"], r"another order of windows: data\.global_batch_windows, data\.order"),
        (["inputs.weights=somewhere"], "beside weights somewhere"),
    ],
)
def test_what_does_not_fit_is_refused(stages, tmp_path, more, said):
    with pytest.raises(EctypeError, match=said):
        train(tmp_path / "run", STAGE_2, *more, source=stages["extension"])


def test_nothing_is_written_when_the_source_is_refused(stages, tmp_path):
    with pytest.raises(EctypeError, match="n_layers"):
        train(tmp_path / "run", STAGE_2, "model.n_layers=8", source=stages["extension"])
    assert not (tmp_path / "run/run.json").exists()
    assert train(tmp_path / "run", STAGE_2, source=stages["extension"], until=1).step == 1


def test_a_stage_without_a_source_is_refused(tmp_path):
    with pytest.raises(EctypeError, match="no source is given"):
        train(tmp_path / "run", STAGE_2)


def test_another_index_cannot_keep_its_position(stages, tmp_path):
    import ectype

    package = Path(ectype.__file__).parent / "demo/bundle/tokens"
    manifest = tmp_path / "m.txt"
    manifest.write_text(f"kjv,{package}/kjv/part-0.npy\n")
    with pytest.raises(EctypeError, match="was made with index"):
        train(tmp_path / "run", EXTENSION, f"inputs.index={manifest}", source=stages["one"])


def test_a_stage_begins_from_a_mean_of_checkpoints_with_their_mean_moments(stages, tmp_path):
    """As the recipe of the last 32B stage does; nothing has to be reset."""
    from ectype.weights.mean import mean_of
    from ectype.weights.merge import merge_weights

    steps = (8, 9)
    merge_weights([stages["extension"] / f"checkpoints/{step:08}" for step in steps], tmp_path / "mean")
    train(tmp_path / "run", STAGE_2, source=tmp_path / "mean", until=1)
    mine, old = taken_over(tmp_path / "run", STAGE_2), [state(stages["extension"], EXTENSION, step) for step in steps]
    (tmp_path / "mean/optimizer/count/0").unlink()
    with pytest.raises(EctypeError, match="count/0 is missing"):
        train(tmp_path / "other", STAGE_2, source=tmp_path / "mean")
    assert not (tmp_path / "other/run.json").exists()
    for part in ("params", "first_moment", "second_moment", "count"):
        found, *sides = (one.params if part == "params" else getattr(one.optimizer, part) for one in (mine, *old))
        assert equal(found, jax.tree.map(lambda *leaves: mean_of([np.asarray(leaf) for leaf in leaves]), *sides))


def test_weights_alone_need_their_moments_reset(stages, tmp_path, save_bare):
    bare = save_bare(stages["extension"], tmp_path / "bare")
    with pytest.raises(EctypeError, match="holds no moments, adam count") as caught:
        train(tmp_path / "run", STAGE_2, source=bare)
    assert "--reset moments --reset adam_count" in str(caught.value)
    reset = ["hand_over.moments=reset", "hand_over.adam_count=reset"]
    with pytest.raises(EctypeError, match="weights without a step"):
        train(tmp_path / "run", STAGE_2, *reset, "hand_over.schedule=keep", source=bare)
    train(tmp_path / "run", STAGE_2, *reset, source=bare, until=1)
    assert rows(tmp_path / "run")[0][1] == rows(stages["two"])[0][1]


@pytest.fixture
def save_bare():
    def save(run: Path, path: Path) -> Path:
        import orbax.checkpoint as ocp

        from ectype.run.checkpoints import META_ITEM, WEIGHTS_ITEM
        from ectype.weights.checkpoint import describe, save_arguments
        from ectype.weights.load import load_any_weights

        params, model, meta = load_any_weights(run)
        items = {
            WEIGHTS_ITEM: ocp.args.StandardSave(params, save_args=save_arguments(params)),
            META_ITEM: ocp.args.JsonSave(describe(model, meta["dtype"], kind="weights")),
        }
        with ocp.Checkpointer(ocp.CompositeCheckpointHandler()) as checkpointer:
            checkpointer.save(path.absolute(), args=ocp.args.Composite(**items))
        return path

    return save


def test_an_incomplete_source_is_refused(stages, tmp_path):
    run = tmp_path / "source"
    shutil.copytree(stages["extension"], run)
    shutil.rmtree(run / "checkpoints/00000009/optimizer")
    with pytest.raises(EctypeError, match="holds no moments, adam count"):
        train(tmp_path / "run", STAGE_2, source=run)
    for name in ("weights", "optimizer"):
        half = tmp_path / f"half-{name}"
        shutil.copytree(stages["extension"] / "checkpoints/00000009", half)
        shutil.rmtree(half / name)
        (half / name).mkdir()
        with pytest.raises(EctypeError, match=f"{name}.*_METADATA"):
            train(tmp_path / "run", STAGE_2, source=half)
    shutil.rmtree(run / "checkpoints/00000009/ectype")
    with pytest.raises(EctypeError, match=r"no checkpoint of step 9.*"):
        train(tmp_path / "run", STAGE_2, source=run)
    assert not (tmp_path / "run/run.json").exists()


def test_a_checkpoint_of_another_step_is_named(stages, tmp_path):
    path = stages["extension"] / "checkpoints/00000008"
    with pytest.raises(EctypeError, match="holds step 8") as caught:
        train(tmp_path / "run", STAGE_2, source=path)
    assert "--set hand_over.source_step=8" in str(caught.value)
    train(tmp_path / "run", STAGE_2, "hand_over.source_step=8", source=path, until=1)


def test_a_source_written_anew_is_not_begun_from_twice(stages, tmp_path):
    """The run was begun but saved nothing; its source is another one now."""
    run, source = tmp_path / "run", tmp_path / "source"
    shutil.copytree(stages["extension"], source)
    train(run, STAGE_2, source=source, until=1)
    shutil.rmtree(run / "checkpoints")
    shutil.rmtree(source / "checkpoints/00000009")
    shutil.copytree(stages["two"] / "checkpoints/00000004", source / "checkpoints/00000009")
    with pytest.raises(EctypeError, match="written anew"):
        train(run, STAGE_2, source=source)


def test_a_hugging_face_folder_is_to_be_imported_first(tmp_path, shared):
    with pytest.raises(EctypeError, match="is a Hugging Face folder"):
        train(tmp_path / "run", STAGE_2, source=shared / "reference/olmocore_calm/hf/step0")


def test_moments_alone_can_be_kept(stages, tmp_path):
    """Any choice of parts is read, and nothing of the others."""
    for name in ("adam_count", "moments"):
        more = [f"hand_over.{name}=reset", "optimizer.skip_step.window_steps=4"]
        train(tmp_path / name, STAGE_2, *more, source=stages["extension"], until=1)
        mine = taken_over(tmp_path / name, STAGE_2, *more).optimizer
        assert is_zero(mine.first_moment) == (name == "moments")
        assert float(mine.count) == (1 if name == "adam_count" else 10)
