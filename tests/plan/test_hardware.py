"""Slices by name, and clocks that agree with the vendor's peaks."""

import pytest

from ectype.errors import EctypeError
from ectype.plan.hardware import load_hardware, parse_slice, slice_of


def test_slices_count_chips_and_devices():
    ironwood, v5p = parse_slice("tpu7x:4x8x8"), parse_slice("v5p:4x4x8")
    assert (ironwood.chips, ironwood.devices, ironwood.name) == (256, 512, "tpu7x:4x8x8")
    assert (v5p.chips, v5p.devices) == (128, 128)


@pytest.mark.parametrize("text", ["", "v5p", "v5p:4x4", "v6e:2x2x1", "h100:8", "v5p:4x0x4", "v5p:4x4x8 ", "V5P:4x4x8"])
def test_other_names_are_refused_with_an_example(text):
    with pytest.raises(EctypeError) as refused:
        parse_slice(text)
    assert refused.value.mend.startswith("for example --topology ")


def test_clocks_follow_from_peak_and_matrix_units():
    """1.75 GHz on v5p is the rate at which compiler cycles equal its `optimal_seconds`."""
    clocks = {name: one.clock_hz / 1e9 for name, one in load_hardware().items()}
    assert clocks == pytest.approx({"v5e": 1.5, "v5p": 1.75, "v6e": 1.75, "tpu7x": 2.2}, rel=3e-3)


@pytest.mark.parametrize(
    ("chip", "devices", "name"),
    [
        ("v5p", 4, "v5p:2x2x1"), ("v5p", 16, "v5p:2x2x4"), ("v5p", 128, "v5p:4x4x8"), ("v5p", 512, "v5p:8x8x8"),
        ("tpu7x", 8, "tpu7x:2x2x1"), ("tpu7x", 512, "tpu7x:4x8x8"), ("v6e", 32, "v6e:4x8"), ("v6e", 256, "v6e:16x16"),
    ],
)  # fmt: skip
def test_the_slice_of_a_count_of_devices(chip, devices, name):
    assert slice_of(load_hardware()[chip], devices).name == name


@pytest.mark.parametrize(("chip", "devices"), [("v5p", 0), ("v5p", 96), ("tpu7x", 7), ("tpu7x", 1)])
def test_counts_that_are_no_slice_are_refused(chip, devices):
    with pytest.raises(EctypeError, match="devices of"):
        slice_of(load_hardware()[chip], devices)
