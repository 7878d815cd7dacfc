"""Sets of compiler flags: a chip's own, a named one, none."""

import pytest

from ectype.errors import EctypeError
from ectype.recipe.compiler_flags import LIBTPU_VARIABLE, compiler_flags, libtpu_arguments, load_flag_sets
from ectype.recipe.load import load_placement, shipped


def test_a_placement_takes_the_set_of_its_chip_unless_it_names_another():
    own = compiler_flags(load_placement("tpu7x-4x8x8"))
    assert "--xla_tpu_enable_sparse_core_collective_offload_all_gather=true" in own
    assert compiler_flags(load_placement("tpu7x-4x8x8", ["compiler_flags=none"])) == ()
    assert compiler_flags(load_placement("cpu")) == ()


def test_another_name_is_refused():
    with pytest.raises(EctypeError, match="no set of compiler flags is called 'fast'"):
        compiler_flags(load_placement("tpu7x-4x8x8", ["compiler_flags=fast"]))


def test_every_shipped_placement_has_its_flags_and_every_flag_a_reason():
    for name in shipped("placement"):
        compiler_flags(load_placement(name))
    for flags in load_flag_sets().values():
        assert all(flag.flag.startswith("--xla_") and len(flag.why) > 20 for flag in flags)


def test_what_the_user_has_set_comes_last_and_nothing_is_added_twice():
    placement = load_placement("v5p-4x4x8")
    own = " ".join(compiler_flags(placement))
    once = libtpu_arguments(placement, {LIBTPU_VARIABLE: "--xla_mine=1"})
    assert once == f"{own} --xla_mine=1"
    assert libtpu_arguments(placement, {LIBTPU_VARIABLE: once}) == once
    assert libtpu_arguments(load_placement("cpu"), {}) == ""
