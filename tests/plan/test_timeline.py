"""What the matrix units wait for: by the order of the schedule, with loops and with work beside work."""

import pytest

from ectype.plan.program import parse_program
from ectype.plan.timeline import run_through


def seconds(*lines, more=""):
    """Step and exposed seconds where every fusion computes 3 s and every gather takes 2 s."""
    body = "\n".join(f"  {line}" for line in lines)
    program = parse_program(f"{more}ENTRY %main (x: f32[]) -> f32[] {{\n{body}\n}}\n")
    return run_through(
        program, lambda one: 3.0 if one.opcode == "fusion" else 0.0,
        lambda one, inside: 2.0 if one.opcode.startswith("all-gather") and "done" not in one.opcode else 0.0,
    )  # fmt: skip


FUSION = "%f.{0} = f32[4]{{0}} fusion(%x), calls=%none"
START = "%g.{0} = (f32[2]{{0}}, f32[4]{{0}}) all-gather-start(%x), replica_groups={{{{0,1}}}}"
DONE = "%d.{0} = f32[4]{{0}} all-gather-done(%g.{0})"
NONE = "%none (p: f32[4]) -> f32[4] {\n  %p = f32[4]{0} parameter(0)\n}\n"


def lines(text):
    """f: a fusion; s1, d1: start and end of gather 1; g: a gather that is waited for."""
    forms = {"f": FUSION, "s": START, "d": DONE, "g": "%h.{0} = f32[4]{{0}} all-gather(%x), replica_groups={{{{0,1}}}}"}
    return [forms[word[0]].format(word[1:] or number) for number, word in enumerate(text.split(), 10)]


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        ("f", (3, 0)),
        ("f g f", (8, 2)),
        ("s1 f d1", (3, 0)),
        ("s1 d1 f", (5, 2)),
        ("s1 s2 f d1 d2", (4, 1)),
        ("s1 f d1 s2 d2", (5, 2)),
        ("s1 s2 f f d1 d2", (6, 0)),
        ("s1 g f d1", (7, 4)),
    ],
)
def test_waits(order, expected):
    assert seconds(*lines(order), more=NONE) == pytest.approx(expected)


def test_a_loop_runs_as_often_as_it_counts():
    inner = "\n".join(f"  {line}" for line in lines("s1 s2 f d1 d2"))
    more = NONE + (
        "%condition (p: s32[]) -> pred[] {\n  %limit = s32[] constant(8)\n  %p = s32[] parameter(0)\n"
        "  ROOT %less = pred[] compare(%p, %limit), direction=LT\n}\n"
        f"%body (q: s32[]) -> s32[] {{\n{inner}\n}}\n"
    )
    assert seconds("%w.1 = s32[] while(%x), condition=%condition, body=%body", more=more) == pytest.approx((32, 8))


def test_a_gather_on_another_core_ends_where_it_is_waited_for():
    more = NONE + "%called (p: f32[2]) -> f32[4] {\n  %h = f32[4]{0} all-gather(%p), replica_groups={{0,1}}\n}\n"
    call = '%c.1 = ((f32[2]), f32[4]{0}) call-start(%x), async_execution_thread="sparsecore", to_apply=%called'
    fusion, done = lines("f")[0], "%c.2 = f32[4]{0} call-done(%c.1)"
    assert seconds(call, fusion, done, more=more) == pytest.approx((3, 0))
    assert seconds(call, done, fusion, more=more) == pytest.approx((5, 2))


def test_a_fusion_that_holds_a_gather_takes_the_longer_of_both():
    more = "%both (p: f32[2]) -> f32[4] {\n  %h = f32[4]{0} all-gather(%p), replica_groups={{0,1}}\n}\n"
    assert seconds("%f.1 = f32[4]{0} fusion(%x), calls=%both", more=more) == pytest.approx((3, 0))
