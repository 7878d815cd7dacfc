"""Checkpoints are restored in full and exactly as described, or not at all (C44, C07)."""

import json
from pathlib import Path

import jax
import numpy as np
import pytest
from hf_toys import OLMO3, olmo_model, random_tensors, save_weights, write_folder

from ectype.errors import EctypeError
from ectype.model.parameters import parameter_shapes
from ectype.recipe.spec import Model
from ectype.weights.checkpoint import describe, load_weights, read_meta
from ectype.weights.hf_import import import_weights
from ectype.weights.load import load_any_weights
from ectype.weights.tree import flatten, unflatten

MODEL = olmo_model(trained_rows=48)


def _tree(model: Model = MODEL, dtype: str = "float32") -> dict:
    generator = np.random.default_rng(5)
    shapes = flatten(parameter_shapes(model))
    return unflatten({path: generator.normal(size=shape).astype(dtype) for path, shape in shapes.items()})


def _same(left: dict, right: dict) -> bool:
    pairs = zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True)
    return jax.tree.structure(left) == jax.tree.structure(right) and all(
        np.asarray(a).tobytes() == np.asarray(b).tobytes() for a, b in pairs
    )


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    save_weights(tmp_path / "c", _tree(), describe(MODEL, "float32"))
    return tmp_path / "c"


def _rewrite_meta(checkpoint: Path, **changes: object) -> None:
    file = checkpoint / "ectype/metadata"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def test_saved_weights_come_back(checkpoint):
    params, meta = load_weights(checkpoint, model=MODEL)
    assert _same(params, _tree())
    assert meta["layout"] == {"pattern": [8, 8, 8, None], "blocks": 1, "rest": 2}


def test_bfloat16_and_conversion_when_asked(tmp_path):
    tree = _tree(dtype="bfloat16")
    save_weights(tmp_path / "c", tree, describe(MODEL, "bfloat16"))
    assert _same(load_weights(tmp_path / "c")[0], tree)
    wide = load_weights(tmp_path / "c", dtype="float32")[0]
    assert _same(wide, jax.tree.map(lambda leaf: leaf.astype(np.float32), tree))


def test_weights_go_straight_into_shardings(tmp_path, checkpoint):
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:8]), ("fsdp",))
    split = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(None, "fsdp"))
    whole = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    shardings = jax.tree.map(lambda leaf: split if leaf.ndim == 2 and leaf.shape[1] == 16 else whole, _tree())
    import_weights(write_folder(tmp_path / "hf", random_tensors()), tmp_path / "imported")
    for path, expected in ((checkpoint, _tree()), (tmp_path / "imported", load_weights(tmp_path / "imported")[0])):
        params, _ = load_weights(path, shardings=shardings)
        assert _same(params, expected)
        assert params["head"]["weight"].sharding == split
        assert len({shard.device for shard in params["head"]["weight"].addressable_shards}) == 8


def test_three_layers_are_not_four(tmp_path):
    save_weights(tmp_path / "c", _tree(olmo_model(n_layers=3)), describe(olmo_model(n_layers=3), "float32"))
    _rewrite_meta(tmp_path / "c", **describe(olmo_model(n_layers=4), "float32"))
    with pytest.raises(EctypeError) as caught:
        load_weights(tmp_path / "c")
    assert "blocks.0.attention.key [1, 8, 16] is missing" in str(caught.value)
    assert "more" in str(caught.value)


def test_model_with_another_count_of_layers_is_refused(checkpoint):
    with pytest.raises(EctypeError, match="n_layers is 6, not 7"):
        load_weights(checkpoint, model=olmo_model(n_layers=7, trained_rows=48))


def test_rows_that_an_export_dropped_are_named_with_what_brings_them_back(checkpoint):
    with pytest.raises(EctypeError, match="rows is 48, not 64") as refused:
        load_weights(checkpoint, model=MODEL.model_copy(update={"trained_rows": 64}))
    assert "--padded-rows FILE, or with --trained-rows 64" in refused.value.mend


def test_other_layer_layout_is_refused_not_guessed(checkpoint):
    """The same layers, stacked in another pattern: [8, 8, 8, full] twice over is the same model, but another tree."""
    twice = (8, 8, 8, None, 8, 8)
    with pytest.raises(EctypeError, match="window_pattern is"):
        load_weights(checkpoint, model=MODEL.model_copy(update={"window_pattern": twice}))
    _rewrite_meta(checkpoint, layout={"pattern": [8, 8, 8, None], "blocks": 0, "rest": 6})
    with pytest.raises(EctypeError, match="layers are laid out as"):
        load_weights(checkpoint)


@pytest.mark.parametrize("scanned", [True, False])
def test_stacked_weights_do_not_pass_as_unstacked(tmp_path, scanned):
    stacked, flat = olmo_model(window_pattern=(None,)), olmo_model(window_pattern=(None,) * 7)
    stored, claimed = (stacked, flat) if scanned else (flat, stacked)
    save_weights(tmp_path / "c", _tree(stored), describe(stored, "float32"))
    _rewrite_meta(tmp_path / "c", **describe(claimed, "float32"))
    with pytest.raises(EctypeError, match="is missing"):
        load_weights(tmp_path / "c")


def test_described_type_must_be_the_stored_one(checkpoint):
    _rewrite_meta(checkpoint, dtype="bfloat16")
    with pytest.raises(EctypeError, match=r"blocks\.0\.attention\.key has dtype float32, not bfloat16"):
        load_weights(checkpoint)


def test_sizes_must_be_the_described_ones(checkpoint):
    _rewrite_meta(checkpoint, model=olmo_model(trained_rows=56).model_dump(mode="json"))
    with pytest.raises(EctypeError, match=r"embedding\.weight has shape \[48, 16\], not \[56, 16\]"):
        load_weights(checkpoint)


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (lambda flat: flat.pop(("norm", "weight")), "norm.weight [16] is missing"),
        (lambda flat: flat.update({("norm", "bias"): np.ones(16, np.float32)}), "norm.bias [16] is extra"),
        (lambda flat: flat.update({("norm", "weight"): np.ones(16, np.float64)}), "has dtype float64, not float32"),
        (lambda flat: flat.update({("norm", "weight"): np.ones(15, np.float32)}), "has shape [15], not [16]"),
    ],
)
def test_a_tree_that_is_not_the_models_is_not_loaded(tmp_path, change, found):
    flat = flatten(_tree())
    change(flat)
    save_weights(tmp_path / "c", unflatten(flat), describe(MODEL, "float32"))
    with pytest.raises(EctypeError) as caught:
        load_weights(tmp_path / "c")
    assert found in str(caught.value)


CHUNK = "weights/blocks.2.mlp.up/0.0.0"
DAMAGE = {
    "missing chunk": (lambda c: (c / CHUNK).unlink(), r"blocks\.2\.mlp\.up/0\.0\.0 is missing"),
    "short chunk": (lambda c: (c / CHUNK).write_bytes(b"\0" * 1535), r"has 1535 bytes, not 1536"),
    "missing array": (lambda c: (c / "weights/norm.weight/.zarray").unlink(), r"norm\.weight cannot be opened"),
    "no tree": (lambda c: (c / "weights/_METADATA").unlink(), "_METADATA"),
    "no meta": (lambda c: (c / "ectype/metadata").unlink(), "no file"),
    "other format": (lambda c: _rewrite_meta(c, format=99), "checkpoint format 99"),
}


@pytest.mark.parametrize(("damage", "found"), DAMAGE.values(), ids=DAMAGE)
def test_damaged_checkpoints_are_refused(tmp_path, damage, found):
    import_weights(write_folder(tmp_path / "hf", random_tensors()), tmp_path / "c")
    damage(tmp_path / "c")
    with pytest.raises(EctypeError, match=found):
        load_weights(tmp_path / "c")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_damaged_data_of_an_orbax_save_is_refused(checkpoint):
    for file in (checkpoint / "weights").rglob("d/*"):
        file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    with pytest.raises(EctypeError, match=r"damaged|cannot be opened"):
        load_weights(checkpoint)


def test_any_source_gives_the_same_tree(tmp_path):
    source = write_folder(tmp_path / "hf", random_tensors())
    for step in (1, 20):
        import_weights(source, tmp_path / f"run/checkpoints/{step:08d}")
    (tmp_path / "run/checkpoints/00000030").mkdir()  # Begun, never finished.
    (tmp_path / "run/checkpoints/00000040.orbax-checkpoint-tmp/ectype").mkdir(parents=True)
    from_hf, model, _ = load_any_weights(source)
    assert model == olmo_model()
    for path in (tmp_path / "run", tmp_path / "run/checkpoints/00000001"):
        params, found, _ = load_any_weights(path)
        assert found == model
        assert _same(params, from_hf)
    with pytest.raises(EctypeError, match=r"steps found: \[1, 20\]"):
        load_any_weights(tmp_path / "run", step=30)
    with pytest.raises(EctypeError, match="holds no checkpoint"):
        load_any_weights(tmp_path)


def test_hugging_face_layers_are_laid_out_as_the_recipe_does(tmp_path):
    """Three sliding layers are one repeated pattern by themselves, but a recipe may spell a longer one."""
    config = OLMO3 | {"num_hidden_layers": 3}
    source = write_folder(tmp_path / "hf", {n: a for n, a in random_tensors().items() if _below(n, 3)}, config)
    assert load_any_weights(source)[1].window_pattern == (8,)
    asked = olmo_model(n_layers=3)
    params, model, _ = load_any_weights(source, model=asked)
    assert model == asked
    assert "blocks" not in params
    assert sorted(params["rest"]) == ["0", "1", "2"]
    with pytest.raises(EctypeError, match="layers with windows"):
        load_any_weights(source, model=olmo_model(n_layers=3, window_pattern=(8, None)))
    with pytest.raises(EctypeError, match=r"rope_theta is 500000\.0, not 10000\.0"):
        load_any_weights(source, model=olmo_model(n_layers=3, rope_theta=1e4))


def _below(name: str, layers: int) -> bool:
    return ".layers." not in name or int(name.split(".")[2]) < layers


def test_meta_names_where_weights_came_from(tmp_path):
    import_weights(write_folder(tmp_path / "hf", random_tensors()), tmp_path / "c")
    meta = read_meta(tmp_path / "c")
    assert (meta["kind"], meta["source"]["family"], meta["source"]["dtypes"]) == ("weights", "olmo3", ["float32"])
    assert meta["source"]["config"]["eos_token_id"] == 3
    assert len(meta["source"]["tensors_sha256"]) == len(random_tensors())
