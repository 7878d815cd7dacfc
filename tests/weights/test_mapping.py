"""The tensor table: complete for every family, and layers in the right slot (C07)."""

import numpy as np
import pytest
from hf_toys import NAMES, OLMO3, olmo_model, olmo_shapes, read_all, write_folder

from ectype.model.parameters import parameter_shapes
from ectype.recipe.spec import Model
from ectype.weights.checkpoint import load_weights
from ectype.weights.hf_export import export_weights
from ectype.weights.hf_import import import_weights
from ectype.weights.mapping import hugging_face_tensors, layer_place
from ectype.weights.tree import flatten

LLAMA = {"norm_placement": "before", "qk_norm": "none", "window_pattern": (None,)}
FAMILIES = {
    "olmo3": olmo_model(),
    "olmo2": olmo_model(window_pattern=(None,)),
    "one layer": olmo_model(n_layers=1),
    "llama, tied": olmo_model(**LLAMA, tied_head=True),
    "qwen2": olmo_model(**LLAMA, attention_bias=True),
    "qwen3": olmo_model(**LLAMA | {"qk_norm": "head"}),
    "padded rows": olmo_model(trained_rows=48),
}


@pytest.mark.parametrize("model", FAMILIES.values(), ids=FAMILIES)
def test_every_slot_of_every_leaf_has_one_name(model: Model):
    places = hugging_face_tensors(model)
    slots = sorted((place.path, -1 if place.block is None else place.block) for place in places.values())
    expected = []
    for path, shape in flatten(parameter_shapes(model)).items():
        expected += [(path, block) for block in (range(shape[0]) if path[0] == "blocks" else [-1])]
    assert slots == sorted(expected)
    assert len(set(slots)) == len(slots)


def test_names_and_shapes_are_the_families_own():
    found = {name: place.shape for name, place in hugging_face_tensors(olmo_model(trained_rows=48)).items()}
    assert found == olmo_shapes()


@pytest.mark.parametrize(
    ("layer", "place"), [(0, (("blocks", "0"), 0)), (3, (("blocks", "3"), 0)), (4, (("rest", "0"), None))]
)
def test_layer_place_of_six_layers_in_a_pattern_of_four(layer, place):
    assert layer_place(olmo_model(), layer) == place


@pytest.mark.parametrize(
    ("layers", "dtype"), [(6, "float32"), (6, "bfloat16"), (6, "float16"), (8, "float32"), (3, "bfloat16")]
)
def test_each_layer_keeps_its_number_both_ways(tmp_path, layers, dtype):
    """Every tensor is filled with its Hugging Face layer number; layer 4b + j must land in block b of slot j."""
    config = OLMO3 | {"num_hidden_layers": layers}
    numbers = {name: int(name.split(".")[2]) if ".layers." in name else 99 for name in olmo_shapes(config)}
    tensors = {name: np.full(shape, numbers[name], NAMES[dtype]) for name, shape in olmo_shapes(config).items()}
    source = write_folder(tmp_path / "hf", tensors, config)
    import_weights(source, tmp_path / "checkpoint")
    params, meta = load_weights(tmp_path / "checkpoint")
    pattern = meta["layout"]["pattern"]
    assert meta["dtype"] == dtype
    for path, leaf in flatten(params).items():
        values = np.asarray(leaf, np.float32)
        if path[0] == "blocks":
            for block in range(values.shape[0]):
                assert (values[block] == len(pattern) * block + int(path[1])).all()
        elif path[0] == "rest":
            assert (values == meta["layout"]["blocks"] * len(pattern) + int(path[1])).all()
        else:
            assert (values == 99).all()
    export_weights(tmp_path / "checkpoint", tmp_path / "back")
    assert read_all(tmp_path / "back") == read_all(source)
