"""`ectype plan` end to end, with the real TPU compiler where it is installed."""

import json
import os
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from ectype.cli.main import app
from ectype.cli.plan import amount_text, seconds_text

TINY = (
    "model.d_model=256", "model.n_heads=2", "model.n_kv_heads=2", "model.head_dim=128", "model.d_ffn=512",
    "model.n_layers=2", "model.window_pattern=[256, null]", "model.vocab_size=1024", "model.trained_rows=1024",
    "data.sequence_length_tokens=512",
    "data.global_batch_windows=8", "data.order.max_target_length_tokens=512", "data.eos_id=0", "data.pad_id=0",
)  # fmt: skip
SETTINGS = [part for value in TINY for part in ("--set", value)] + ["--placement-set", "micro_batch_windows=null"]


def plan(*arguments, cache, **environment):
    command = [sys.executable, "-m", "ectype.cli", "plan", "olmo3-7b-stage1", "--cache", str(cache), "--json"]
    return subprocess.run(
        [*command, *arguments], capture_output=True, text=True, env=os.environ | environment, check=False
    )


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    pytest.importorskip("libtpu")
    return tmp_path_factory.mktemp("plans")


@pytest.fixture(scope="module")
def planned(cache):
    done = plan("--topology", "v5p:2x2x1", "--placement", "v5p-4x4x8", *SETTINGS, cache=cache)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.slow
def test_a_small_model_is_compiled_and_costed(planned):
    step, memory = planned["step"], planned["memory"]
    assert memory["fits"]
    assert memory["parameters"] + memory["moments"] < memory["peak"] < memory["limit"]
    assert step["unknown_cycles"] == 0
    # 2 layers: the forward kernel runs once a layer, because its residuals are kept by name.
    assert step["attention_kernels"] == {"splash_mha_fwd": 2, "splash_mha_dq": 2, "splash_mha_dkv": 2}
    assert 1 <= step["executed_over_model_flops"] < 2
    assert {one["kind"] for one in step["collectives"]} >= {"all-gather", "reduce-scatter"}
    gathers = [one for one in step["collectives"] if one["kind"] == "all-gather"]
    assert all(one["axes"] == ["fsdp"] for one in gathers)
    # Each matrix of the layers is gathered in bfloat16 for the forward and again for the backward pass, embedding and
    # head once each; a device receives the three quarters that others hold.
    layers = 2 * (4 * 256 * 256 + 3 * 256 * 512)
    expected = 0.75 * 2 * (2 * layers + 2 * 1024 * 256)
    assert sum(one["received_bytes"] for one in gathers) == pytest.approx(expected, rel=0.05)
    assert step["seconds"]["low"] <= step["seconds"]["expected"] <= step["seconds"]["high"]


@pytest.mark.slow
def test_the_same_plan_is_compiled_once(planned, cache):
    again = plan("--topology", "v5p:2x2x1", "--placement", "v5p-4x4x8", *SETTINGS, cache=cache)
    assert json.loads(again.stdout) == planned
    assert len([path for path in cache.iterdir() if path.is_dir()]) == 1


@pytest.mark.slow
def test_a_program_over_the_memory_says_by_how_much_and_exits_1(cache):
    """The compiler itself refuses it: half a million windows a device."""
    where = ("--topology", "v5p:2x2x1", "--placement", "v5p-4x4x8", *SETTINGS)
    many = ("--set", "data.global_batch_windows=2000000")
    done = plan(*where, *many, cache=cache)
    assert done.returncode == 1, done.stderr
    record = json.loads(done.stdout)
    assert record["step"] is None
    assert not record["memory"]["fits"]
    assert record["memory"]["refused_at"] > record["memory"]["limit"]
    shown = subprocess.run(
        [sys.executable, "-m", "ectype.cli", "plan", "olmo3-7b-stage1", "--cache", str(cache), *where, *many],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert shown.returncode == 1
    assert "does not fit" in shown.stdout
    assert "GB too much: keep fewer activations (remat), set micro_batch_windows" in " ".join(shown.stdout.split())


def test_a_mesh_that_does_not_fit_the_slice_is_refused(cache):
    where = ("--topology", "v5p:2x2x1", "--placement", "v5p-4x4x8", "--placement-set", "mesh.fsdp=3")
    done = plan(*where, *SETTINGS, cache=cache)
    assert done.returncode == 2
    assert "on 4 devices" in json.loads(done.stdout)["error"]["found"]
    assert not [path for path in cache.iterdir() if path.is_dir() and not (path / "compiled.json").exists()]


def refused(*arguments, cache):
    """What a question that nothing is compiled for comes to, in this process."""
    return CliRunner().invoke(app, ["plan", "olmo3-7b-stage1", "--cache", str(cache), "--json", *arguments])


def test_an_unknown_topology_is_refused_at_once(tmp_path):
    done = refused("--topology", "v5p:4x4", "--placement", "v5p-4x4x8", cache=tmp_path)
    assert done.exit_code == 2
    assert "3 sizes" in json.loads(done.stdout)["error"]["expected"]


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (("--search", "--scale", "4,8"), "one question at a time"),
        (("--write", "best.yaml"), "one question at a time"),
        (("--scale", "4,some"), "counts of devices"),
        (("--scale", "4,12"), "a power of two of chips"),
        (("--compare", "olmo3-7b-stage2", "v5p-4x4x8"), "two recipes or two placements"),
    ],
)
def test_questions_that_make_no_sense_are_refused_at_once(more, said, tmp_path):
    done = refused("--topology", "v5p:2x2x1", "--placement", "v5p-4x4x8", *more, cache=tmp_path)
    assert done.exit_code == 2, done.stderr
    assert said in json.loads(done.stdout)["error"]["expected"]


@pytest.mark.parametrize(
    ("size_bytes", "said"), [(31.5e9, "31.50 GB"), (2.25e6, "2.25 MB"), (4096, "4.10 kB"), (12, "12 B"), (0, "0 B")]
)
def test_amounts_of_memory_have_the_unit_of_their_size(size_bytes, said):
    assert amount_text(size_bytes) == said


@pytest.mark.parametrize(
    ("seconds", "said"), [(12.5, "12.500 s"), (0.0312, "31.200 ms"), (4.5e-5, "45.000 µs"), (0, "0.000 s")]
)
def test_times_have_the_unit_of_their_size(seconds, said):
    assert seconds_text(seconds) == said
