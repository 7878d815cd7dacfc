"""Reading the compiler's program: loops counted by their trips, fusions once, unknown cycles kept apart."""

import textwrap

from ectype.plan.program import UNKNOWN_CYCLES, parse_program, shape_bytes

TEXT = textwrap.dedent(
    """\
    HloModule jit_step, is_scheduled=true

    FileNames
    1 "/somewhere/src/ectype/model/decoder.py"
    2 "/somewhere/jax/lax.py"

    FunctionNames
    1 "forward"

    FileLocations
    1 {file_name_id=1 function_name_id=1 line=242 end_line=242 column=1 end_column=2}
    2 {file_name_id=2 function_name_id=1 line=7 end_line=7 column=1 end_column=2}

    StackFrames
    1 {file_location_id=1 parent_frame_id=1}
    2 {file_location_id=2 parent_frame_id=2}

    %condition.1 (p.1: (s32[], bf16[4,8])) -> pred[] {
      %constant.1 = s32[]{:T(128)} constant(8)
      %p.1 = (s32[]{:T(128)}, bf16[4,8]{1,0:T(8,128)(2,1)}) parameter(0)
      %counter.1 = s32[]{:T(128)} get-tuple-element(%p.1), index=0
      ROOT %lt.1 = pred[]{:T(512)} compare(%counter.1, %constant.1), direction=LT
    }

    %fused.1 (a.1: bf16[4,8], b.1: bf16[16,8]) -> f32[4,16] {
      %a.1 = bf16[4,8]{1,0} parameter(0)
      %b.1 = bf16[16,8]{1,0} parameter(1)
      ROOT %product.1 = f32[4,16]{1,0} convolution(%a.1, %b.1), dim_labels=bf_oi->bf
    }

    %body.1 (p.2: (s32[], bf16[4,8])) -> (s32[], bf16[4,8]) {
      %p.2 = (s32[]{:T(128)}, bf16[4,8]{1,0:T(8,128)(2,1)}) parameter(0)
      %kernel.1 = bf16[4,8]{1,0} custom-call(%p.2), custom_call_target="tpu_custom_call", frontend_attributes={meta={
    "data": "x"
    }}, metadata={op_name="kernel" stack_frame_id=1}
      %fusion.1 = f32[4,16]{1,0} fusion(%p.2, %p.2), calls=%fused.1, metadata={stack_frame_id=2}, backend_config={"estimated_cycles":"100"}
      %odd.1 = f32[4]{0} sort(%p.2), backend_config={"estimated_cycles":"9223372036854775807"}
      ROOT %tuple.1 = (s32[]{:T(128)}, bf16[4,8]{1,0}) tuple(%p.2, %p.2)
    }

    ENTRY %main (x.1: bf16[4,8]) -> bf16[4,8] {
      %x.1 = bf16[4,8]{1,0} parameter(0)
      %loop.1 = (s32[]{:T(128)}, bf16[4,8]{1,0}) while(%x.1), condition=%condition.1, body=%body.1
      ROOT %copy.1 = bf16[4,8]{1,0} copy(%loop.1), backend_config={"estimated_cycles":"7"}
    }
    """  # noqa: E501 - as the compiler writes it
)


def test_loops_count_by_their_trips_and_unknown_cycles_stay_apart():
    program = parse_program(TEXT)
    assert program.trip_counts == {"loop.1": 8}
    assert program.loops_without_count == ()
    scheduled = {one.instruction.name: one for one in program.executed() if one.fused_into is None}
    assert scheduled["fusion.1"].times == 8
    assert scheduled["fusion.1"].instruction.cycles == 100
    assert scheduled["odd.1"].instruction.cycles == UNKNOWN_CYCLES
    assert scheduled["copy.1"].times == 1
    assert scheduled["x.1"].instruction.cycles is None


def test_attributes_over_several_lines_belong_to_one_instruction():
    scheduled = {one.instruction.name: one for one in parse_program(TEXT).executed()}
    assert 'custom_call_target="tpu_custom_call"' in scheduled["kernel.1"].instruction.text
    assert scheduled["kernel.1"].source == "model/decoder.py:242"


def test_a_library_line_is_laid_to_the_package_line_above_it():
    scheduled = {one.instruction.name: one for one in parse_program(TEXT).executed()}
    assert scheduled["fusion.1"].source == "model/decoder.py:242"


def test_what_a_fusion_holds_is_marked_as_inside_it():
    inside = [one for one in parse_program(TEXT).executed() if one.fused_into == "fused.1"]
    product = next(one for one in inside if one.instruction.opcode == "convolution")
    assert product.times == 8
    assert product.instruction.operands == ["a.1", "b.1"]


def test_a_loop_whose_end_is_not_a_constant_is_named():
    program = parse_program(TEXT.replace("constant(8)", "parameter(1)"))
    assert program.loops_without_count == ("loop.1",)


def test_bytes_of_shapes():
    assert shape_bytes("bf16[2,8192,4096]{2,1,0:T(8,128)(2,1)}") == 2 * 8192 * 4096 * 2
    assert shape_bytes("(f32[4]{0}, s32[])") == 20
    assert shape_bytes("f8e4m3fn[10]") == 10
    assert shape_bytes("token[]") == 0
