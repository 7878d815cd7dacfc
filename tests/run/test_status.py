"""`ectype status` over made-up run folders, and the Prometheus text read by an independent parser."""

import json
import os
import threading
import time

import pytest
from typer.testing import CliRunner

from ectype.cli.main import app
from ectype.recipe.load import load_recipe, to_yaml
from ectype.recipe.placement import Health, Placement
from ectype.run import heartbeats
from ectype.run.checkpoints import META_ITEM
from ectype.run.heartbeats import Heartbeat
from ectype.run.manifest import Session, write_manifest
from ectype.run.paths import RunFolder
from ectype.run.prometheus import exposition
from ectype.run.status import run_status

NOW = 1_800_000_000.0


def heartbeat(process=0, **changes):
    values = {
        "process": process, "processes": 2, "host": f"host{process}", "at_unix_seconds": NOW - 4, "phase": "step 21",
        "phase_seconds": 0.5, "activity": "update", "step": 20, "own_seconds": 0.01, "probe_seconds": None,
        "updating_seconds": 30.0, "session_seconds": 40.0, "ended": None, "error": None,
    }  # fmt: skip
    return Heartbeat(**values | changes)


def write_heartbeat(run, beat):
    """As the process wrote it at that time."""
    heartbeats.write_heartbeat(run, beat)
    os.utime(RunFolder(run).heartbeat(beat.process), (beat.at_unix_seconds,) * 2)


@pytest.fixture
def run(tmp_path, make_manifest):
    """A run of toy-calm that has done 20 of 640 updates in two sessions, 15 of them saved."""
    folder = RunFolder(tmp_path / "run")
    folder.path.mkdir()
    folder.recipe.write_text(to_yaml(load_recipe("toy-calm")))
    sessions = tuple(Session(started="2026-11-30T08:00:00", from_step=s, devices=2, processes=2) for s in (0, 10))
    health = Health(recent_updates=8, spike_window_updates=8)
    write_manifest(folder.path, make_manifest(sessions=sessions, placement=Placement(name="cpu", health=health)))
    rows = [
        {
            "step": step, "tokens_seen": step * 2048, "loss": 3.0, "grad_norm": 1.0, "skipped": False,
            "step_seconds": 2.0 if step > 10 else 1.0, "data_wait_seconds": 0.01, "mfu": None,
        }
        for step in range(1, 21)
    ]  # fmt: skip
    folder.metrics.write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder.checkpoint(15) / META_ITEM).mkdir(parents=True)
    return folder


def test_a_run_that_trains(run):
    for process in (0, 1):
        write_heartbeat(run.path, heartbeat(process))
    found = run_status(run.path, NOW)
    assert (found.state, found.well, found.findings) == ("training", True, ())
    assert (found.completed_updates, found.saved_updates, found.target_updates, found.starts) == (20, 15, 640, 2)
    # Of this session alone, in which updates take twice as long as before; 0.75 of its time went into them.
    assert found.step_seconds == pytest.approx(1.99)
    assert found.session_goodput == 0.75
    assert found.left_seconds == pytest.approx(1.99 * 620 / 0.75)
    assert [sign.age_seconds for sign in found.processes] == [4.0, 4.0]
    assert found.words == "last sign 4 s ago: step 21 for 0 s"


def test_a_run_that_hangs_names_the_process(run):
    write_heartbeat(run.path, heartbeat(0, phase_seconds=300.0))
    write_heartbeat(run.path, heartbeat(1, phase="waiting for step 21", activity="data", phase_seconds=301.0))
    found = run_status(run.path, NOW)
    assert (found.state, found.well) == ("stalled", False)
    assert [(f.kind, f.process) for f in found.findings] == [("stalled", 1)]


def test_a_process_that_died_before_its_first_sign_is_found(run):
    """Four processes, of which three beat; the session is 40 s old and their last sign 4 s, then 60 s more."""
    for process in (0, 1, 3):
        write_heartbeat(run.path, heartbeat(process, processes=4))
    assert run_status(run.path, NOW).well
    for process in (0, 1, 3):
        write_heartbeat(run.path, heartbeat(process, processes=4, at_unix_seconds=NOW + 56, session_seconds=100.0))
    found = run_status(run.path, NOW + 60)
    assert (found.state, found.well) == ("stalled", False)
    assert [(f.kind, f.process, f.text) for f in found.findings] == [("lost", 2, "process 2 never gave a sign")]


def test_a_run_that_was_killed_and_one_that_was_stopped(run):
    write_heartbeat(run.path, heartbeat())
    assert run_status(run.path, NOW + 1000).state == "lost"
    write_heartbeat(run.path, heartbeat(ended="stopped"))
    found = run_status(run.path, NOW + 1000)
    assert (found.state, found.well) == ("stopped", True)
    write_heartbeat(run.path, heartbeat(ended="unhealthy", error="loss 9.1 at step 20"))
    found = run_status(run.path, NOW + 1000)
    assert (found.state, found.words, found.well) == ("unhealthy", "loss 9.1 at step 20", False)


def test_a_finished_run(run):
    (run.checkpoint(640) / META_ITEM).mkdir(parents=True)
    write_heartbeat(run.path, heartbeat(step=640, ended="done"))
    found = run_status(run.path, NOW)
    assert (found.state, found.completed_updates, found.left_seconds) == ("finished", 640, 0.0)


def test_a_run_without_heartbeats_or_metrics(run):
    assert run_status(run.path, NOW).state == "stopped"
    run.metrics.unlink()
    found = run_status(run.path, NOW)
    assert (found.completed_updates, found.last, found.step_seconds) == (15, None, None)
    assert exposition(found).count("ectype_loss") == 0


def test_a_loss_that_is_not_finite_is_null_in_json_and_nan_in_prometheus(run):
    text = run.metrics.read_text().replace('"step": 20, "tokens_seen": 40960, "loss": 3.0', '"step": 20, "loss": NaN')
    run.metrics.write_text(text)
    found = run_status(run.path, NOW)
    assert [f.kind for f in found.findings] == ["not_finite"]
    assert json.loads(json.dumps(found.record(), allow_nan=False))["last"]["loss"] is None
    assert "nan\n" in exposition(found)


def test_prometheus_text_is_read_by_its_own_client(run):
    from prometheus_client import parser

    host = 'odd "host"\\of\nmany'
    write_heartbeat(run.path, heartbeat(0, host=host))
    write_heartbeat(run.path, heartbeat(1, own_seconds=1.5))
    found = run_status(run.path, NOW)
    families = {family.name: family for family in parser.text_string_to_metric_families(exposition(found))}
    assert all(family.type == "gauge" and family.documentation for family in families.values())
    samples = {
        (sample.name, sample.labels.get("process"), sample.labels.get("state") or sample.labels.get("kind")): sample
        for family in families.values()
        for sample in family.samples
    }
    assert all(sample.labels["run"] == str(run.path) for sample in samples.values())
    values = {key: sample.value for key, sample in samples.items()}
    assert values[("ectype_completed_updates", None, None)] == 20
    assert values[("ectype_step_seconds", None, None)] == found.step_seconds
    assert values[("ectype_loss_nats", None, None)] == 3.0
    assert values[("ectype_process_own_seconds", "1", None)] == 1.5
    assert samples[("ectype_process_own_seconds", "0", None)].labels["host"] == host
    assert values[("ectype_state", None, "training")] == 1
    assert sum(value for (name, _, _), value in values.items() if name == "ectype_state") == 1
    assert values[("ectype_findings", None, "straggler")] == 1
    assert values[("ectype_well", None, None)] == 0
    assert ("ectype_model_flops_utilization_ratio", None, None) not in values
    # Every name says its unit last, or counts, or has none.
    assert not [name for name in families if "milli" in name or name.endswith(("_ms", "_percent"))]


def invoke(*words):
    return CliRunner().invoke(app, ["status", *map(str, words)])


def test_the_verb_prints_for_people_json_and_prometheus(run, tmp_path):
    write_heartbeat(run.path, heartbeat(at_unix_seconds=time.time()))
    shown = invoke(run.path)
    assert shown.exit_code == 0, shown.stderr
    assert "20 of 640 updates (3.1%), 15 saved" in shown.stdout
    record = json.loads(invoke(run.path, "--json").stdout)
    assert (record["state"], record["well"], record["processes"][0]["host"]) == ("training", True, "host0")
    file = tmp_path / "ectype.prom"
    printed = invoke(run.path, "--prometheus", "--textfile", file)
    assert printed.exit_code == 0, printed.stderr
    assert file.read_text() == printed.stdout
    assert [path.name for path in tmp_path.iterdir() if "prom" in path.name] == ["ectype.prom"]


def test_a_run_that_is_not_well_gives_exit_1_and_says_what_was_found(run):
    for process in (0, 1):
        write_heartbeat(run.path, heartbeat(process, at_unix_seconds=time.time(), phase_seconds=500.0 * (process + 1)))
    shown = invoke(run.path)
    assert shown.exit_code == 1
    assert "stalled at step 20: process 1 on host1: step 21 for 1000 s" in " ".join(shown.stdout.split())


def test_following_ends_when_the_run_is_finished(run):
    (run.checkpoint(640) / META_ITEM).mkdir(parents=True)
    write_heartbeat(run.path, heartbeat(step=640, ended="done"))
    shown = invoke(run.path, "--follow", "--json")
    assert (shown.exit_code, json.loads(shown.stdout)["state"]) == (0, "finished")


def test_following_looks_again_until_then(run, tmp_path):
    write_heartbeat(run.path, heartbeat(at_unix_seconds=time.time()))
    finish = threading.Timer(0.5, lambda: (run.checkpoint(640) / META_ITEM).mkdir(parents=True))
    finish.start()
    ended = threading.Timer(0.4, lambda: write_heartbeat(run.path, heartbeat(step=640, ended="done")))
    ended.start()
    file = tmp_path / "ectype.prom"
    shown = invoke(run.path, "--follow", "--every-seconds", 0.1, "--json", "--textfile", file)
    states = [json.loads(line)["state"] for line in shown.stdout.splitlines()]
    assert (states[0], states[-1], len(states) > 2) == ("training", "finished", True)
    assert 'state="finished"} 1' in file.read_text()


def test_what_is_no_run_and_options_that_do_not_fit_are_refused(run, tmp_path):
    for words, said in (
        ((tmp_path,), "holds no recipe.yaml"),
        ((tmp_path / "absent",), f"no folder {tmp_path}/absent"),
        ((run.path, "--json", "--prometheus"), "one of them"),
        ((run.path, "--textfile", tmp_path / "a.txt"), "ends in .prom"),
    ):
        result = invoke(*words)
        assert (result.exit_code, said in result.stderr) == (2, True), result.stderr


@pytest.mark.parametrize("text", ["", '{"format": 1, "proc', '{"format": 2}', "[]"])
def test_a_heartbeat_that_is_not_readable_hides_no_other_and_ages_with_its_file(run, text):
    """As a crash of the file system cuts one short, or another version writes one."""
    write_heartbeat(run.path, heartbeat(0))
    run.heartbeat(1).write_text(text)
    os.utime(run.heartbeat(1), (NOW - 10,) * 2)
    assert run_status(run.path, NOW).findings == ()
    os.utime(run.heartbeat(1), (NOW - 1000,) * 2)
    found = run_status(run.path, NOW)
    assert (found.state, [finding.process for finding in found.findings]) == ("stalled", [1])
    assert "no sign for 1000 s, last: process-00001.json not readable" in found.findings[0].text


def test_a_clock_that_is_ahead_makes_no_dead_process_alive(run):
    write_heartbeat(run.path, heartbeat(0, processes=1, at_unix_seconds=NOW + 5000))
    os.utime(run.heartbeat(0), (NOW - 1000,) * 2)
    assert run_status(run.path, NOW).state == "lost"


def test_a_sign_that_is_not_readable_spoils_no_run_whose_processes_have_ended(run):
    (run.checkpoint(640) / META_ITEM).mkdir(parents=True)
    write_heartbeat(run.path, heartbeat(0, step=640, ended="done"))
    run.heartbeat(1).write_text("{")
    found = run_status(run.path, NOW)
    assert (found.state, found.findings) == ("finished", ())


def test_a_stray_file_among_the_heartbeats_floods_nobody(run):
    write_heartbeat(run.path, heartbeat(0, processes=1, session_seconds=1000.0))
    run.heartbeat(99999).write_text("{")
    run.heartbeat(5).mkdir()
    run.heartbeat(6).symlink_to(run.heartbeat(6))
    os.mkfifo(run.heartbeat(7))
    os.utime(run.heartbeat(99999), (NOW - 1000,) * 2)
    found = run_status(run.path, NOW)
    assert [(finding.kind, finding.process) for finding in found.findings] == [("lost", 99999)]


def test_many_that_never_gave_a_sign_are_one_finding(run):
    write_heartbeat(run.path, heartbeat(0, processes=4096, session_seconds=1000.0))
    [finding] = run_status(run.path, NOW).findings
    assert finding.text.startswith("4095 processes never gave a sign, 1, 2, 3, ")


def test_of_several_errors_the_first_is_told(run):
    write_heartbeat(run.path, heartbeat(0, ended="failed", error="Gloo all-reduce failed", at_unix_seconds=NOW - 3))
    write_heartbeat(run.path, heartbeat(1, ended="failed", error="the disk is gone", at_unix_seconds=NOW - 5))
    assert run_status(run.path, NOW).words == "the disk is gone"
