"""Collectives by kind and mesh axis, with the bytes that a device receives."""

import pytest

from ectype.plan.collective_cost import Links, collectives
from ectype.plan.hardware import load_hardware
from ectype.plan.program import parse_program

MESH = {"data": 2, "fsdp": 4, "context": 1, "tensor": 1}


def found(*lines, more="", places=None):
    body = "\n".join(f"  {line}" for line in lines)
    text = f"{more}ENTRY %main (x: f32[]) -> f32[] {{\n{body}\n}}\n"
    return collectives(parse_program(text), Links(MESH, HARDWARE, places))


HARDWARE = load_hardware()["v5p"]


def test_a_gather_over_one_axis():
    (one,) = found("%g.1 = bf16[4,1024]{1,0} all-gather(%x), replica_groups={{0,1,2,3},{4,5,6,7}}, dimensions={0}")
    assert (one.kind, one.axes, one.asynchronous, one.calls) == ("all-gather", ("fsdp",), False, 1)
    assert one.received_bytes == 4 * 1024 * 2 * 3 / 4
    assert one.seconds == pytest.approx(one.received_bytes / 600e9)


def test_groups_in_iota_form_and_their_axes():
    (one,) = found("%r.1 = f32[256]{0} all-reduce(%x), replica_groups=[4,2]<=[2,4]T(1,0), to_apply=%add")
    assert one.axes == ("data",)
    assert one.received_bytes == 2 * 1024 / 2
    (one,) = found("%r.1 = f32[256]{0} all-reduce(%x), replica_groups=[1,8]<=[8], to_apply=%add")
    assert one.axes == ("data", "fsdp")


def test_a_scatter_moves_the_whole_array():
    (one,) = found("%s.1 = f32[64]{0} reduce-scatter(%x), replica_groups={{0,1,2,3},{4,5,6,7}}, to_apply=%add")
    assert one.received_bytes == 64 * 4 * 4 * 3 / 4


def test_a_fused_sum_that_keeps_a_slice_is_a_scatter():
    more = (
        "%all-reduce-scatter.1 (p: f32[256]) -> f32[64] {\n  %p = f32[256]{0} parameter(0)\n"
        "  %r.1 = f32[256]{0} all-reduce(%p), replica_groups={{0,1,2,3},{4,5,6,7}}, to_apply=%add\n}\n"
    )
    (one,) = found("%f.1 = f32[64]{0} fusion(%x), calls=%all-reduce-scatter.1", more=more)
    assert (one.kind, one.received_bytes) == ("reduce-scatter", 256 * 4 * 3 / 4)


def test_started_collectives_run_beside_compute_and_count_once():
    (one,) = found(
        "%g.1 = (bf16[256]{0}, bf16[1024]{0}) all-gather-start(%x), replica_groups={{0,1,2,3},{4,5,6,7}}",
        "%g.2 = bf16[1024]{0} all-gather-done(%g.1)",
    )
    assert one.asynchronous
    assert one.received_bytes == 1024 * 2 * 3 / 4


def test_what_a_sparse_core_is_called_for_runs_beside_compute():
    more = (
        "%called.1 (p: bf16[256]) -> bf16[1024] {\n  %p = bf16[256]{0} parameter(0)\n"
        "  %g.1 = bf16[1024]{0} all-gather(%p), replica_groups={{0,1,2,3},{4,5,6,7}}, dimensions={0}\n}\n"
    )
    (one,) = found(
        '%c.1 = ((bf16[256]), bf16[1024]{0}) call-start(%x), async_execution_thread="sparsecore", to_apply=%called.1',
        "%c.2 = bf16[1024]{0} call-done(%c.1)", more=more,
    )  # fmt: skip
    assert (one.kind, one.asynchronous, one.calls) == ("all-gather", True, 1)
    assert one.received_bytes == 1024 * 2 * 3 / 4


@pytest.mark.parametrize(
    ("places", "share"),
    [
        ([(x, 0, 0, 0) for x in range(8)], 1 / 3),
        ([(x // 2, x % 2, 0, 0) for x in range(8)], 2 / 3),
        ([(x // 4, x // 2 % 2, x % 2, 0) for x in range(8)], 2 / 3),
        ([(0, 0, 0, x) for x in range(8)], 1 / 3),
    ],
)
def test_a_collective_has_the_links_along_the_axes_that_it_spans(places, share):
    gather = "%g.1 = bf16[4,1024]{1,0} all-gather(%x), replica_groups={{0,1,2,3},{4,5,6,7}}, dimensions={0}"
    (one,) = found(gather, places=places)
    assert one.seconds == pytest.approx(one.received_bytes / (600e9 * share))


def test_two_devices_of_an_ironwood_chip_share_its_links():
    hardware = load_hardware()["tpu7x"]
    text = "ENTRY %main (x: f32[]) -> f32[] {\n  %g.1 = f32[8]{0} all-gather(%x), replica_groups={{0,1,2,3}}\n}\n"
    (one,) = collectives(parse_program(text), Links(MESH, hardware))
    assert one.seconds == pytest.approx(2 * one.received_bytes / 600e9)
