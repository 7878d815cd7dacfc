"""What is checked before a launch, what is told after it, and that no secret is in either."""

import http.server
import json
import threading
from pathlib import Path

import pytest
import typer

from ectype.cli import launch
from ectype.errors import EctypeError
from ectype.launch import settings
from ectype.launch.command import Ran, Training, check_environment, check_secrets
from ectype.launch.events import Webhook, append_event, post, read_events
from ectype.launch.exits import in_words, taken_away
from ectype.launch.log_text import last_error
from ectype.launch.memory import Memory, begun, write_memory
from ectype.launch.run_record import read_run
from ectype.launch.supervise import StateFolder
from ectype.run.checkpoints import description_file
from ectype.run.paths import RunFolder

SECRETS = (
    "HF_TOKEN=x", "WANDB_API_KEY=x", "DB_PASSWORD=x", "MY_SECRET=x", "A=hf_" + "a" * 30, "MYPASS=x", "PWD_DB=x",
    "HFTOKEN=x", "hfToken=x", "WANDBAPIKEY=x", "PRIVATEKEY=x", "AUTHORIZATION=x", "A=Bearer abc",
    "URL=https://discord.com/api/webhooks/1/abc", "IMAGE=user:hunter2@registry.example/image",
    "A=https://h/x?X-Goog-Signature=1", "A=https://h/x?a=b&token=abc",
)  # fmt: skip


@pytest.mark.parametrize("pair", SECRETS)
def test_secrets_in_the_environment_are_refused_and_not_repeated(pair):
    with pytest.raises(EctypeError) as caught:
        check_environment((pair,))
    assert pair.partition("=")[2] not in str(caught.value).replace("xpk", "") or pair.endswith("=x")
    assert "--secret-env" in str(caught.value)


def test_plain_variables_and_paths_of_mounted_secrets_are_taken():
    given = (
        "TOKENIZERS_PARALLELISM=false", "GOOGLE_APPLICATION_CREDENTIALS=/var/secrets/key.json", "JAX_LOG=a=b",
        "MAX_TOKENS=8", "MONKEY=1", "AUTHOR=me", "BYPASS=1", "IMAGE=registry.example/a:tag@sha256:" + "0" * 64,
    )  # fmt: skip
    assert check_environment(given)["JAX_LOG"] == "a=b"
    assert len(check_environment(given)) == len(given)


@pytest.mark.parametrize("value", ["a\nb", "a\x00", "ghp_" + "a" * 30, "https://me:pass@host/x"])
def test_arguments_with_line_breaks_or_secrets_are_refused(value):
    with pytest.raises(EctypeError) as caught:
        Training("r", "run", index=value).arguments()
    assert "a" * 30 not in str(caught.value)


def test_references_to_secrets_name_them():
    assert check_secrets(("HF_TOKEN=hf-secret:token",)) == (("HF_TOKEN", "hf-secret", "token"),)
    with pytest.raises(EctypeError) as caught:
        check_secrets(("HF_TOKEN=hf_AbCdEf",))
    assert "AbCdEf" not in str(caught.value)


@pytest.mark.parametrize("name", ["Stage1", "1stage", "stage_1", "a" * 23, "", "stage-"])
def test_names_that_kubernetes_refuses_are_refused(name):
    with pytest.raises(EctypeError, match="--name"):
        settings.check_name(name)


def test_a_run_folder_gives_a_name():
    assert settings.name_from("/runs/OLMo3_7B stage1") == "olmo3-7b-stage1"
    assert settings.name_from("runs/7b") == "run-7b"
    assert settings.name_from(".") == settings.name_from(str(Path.cwd()))
    with pytest.raises(EctypeError, match="--name"):
        settings.name_from("runs/a-run-folder-with-a-long-name")
    assert settings.local_name("runs/a-run-folder-with-a-long-name") == "a-run-folder-with-a-lo"
    assert settings.local_name("runs/a-run-folder-with-a------b") == "a-run-folder-with-a-b"


def test_a_target_beyond_the_recipes_end_is_refused():
    with pytest.raises(EctypeError, match="at most 640"):
        settings.target_of("toy-calm", (), 641)
    assert settings.target_of("toy-calm", ("duration_steps=700", "landmarks=[0]"), 641) == 641


def test_without_a_target_the_run_goes_to_the_recipes_end():
    assert settings.target_of("toy-calm", (), None) == 640
    assert settings.target_of("toy-calm", ("duration_steps=700", "landmarks=[0]"), None) == 700
    assert settings.target_of("/mnt/only/there.yaml", (), 9) == 9
    with pytest.raises(EctypeError, match="no --target-steps"):
        settings.target_of("/mnt/only/there.yaml", (), None)
    with pytest.raises(EctypeError, match="toy-calm"):  # a slip of the pen is no file of the job's
        settings.target_of("toy-calmm", (), 9)


def test_flags_that_a_launch_needs_have_the_variables_that_the_error_names():
    """The option's own variable is what counts; every required flag has one."""
    found: dict[str, set[str]] = {name: set() for name in settings.VARIABLES}

    def walk(command):
        for one in getattr(command, "commands", {}).values():
            walk(one)
        for option in command.params:
            if option.name in found and option.envvar:
                found[option.name].add(option.envvar if isinstance(option.envvar, str) else option.envvar[0])

    walk(typer.main.get_command(launch.app))
    assert found == {name: {variable} for name, variable in settings.VARIABLES.items()}
    with pytest.raises(EctypeError) as caught:
        settings.require(dict.fromkeys(settings.VARIABLES))
    for name, variable in settings.VARIABLES.items():
        assert f"--{name.replace('_', '-')} or ${variable}" in caught.value.mend


def test_a_volume_is_refused_by_the_part_that_is_wrong():
    assert settings.parse_volumes("--bucket", ["gs://my-runs/=/mnt/a", "b_2.c=/mnt/b"]) == (
        ("my-runs", "/mnt/a"), ("b_2.c", "/mnt/b")
    )  # fmt: skip
    for given in ("BUCKET=/mnt/runs", "gs://BUCKET=/mnt/runs", "=/mnt/runs", "runs-=/mnt/runs"):
        with pytest.raises(EctypeError, match="bucket names are lower-case letters, digits, "):
            settings.parse_volumes("--bucket", [given])
    with pytest.raises(EctypeError, match="no absolute path behind ="):
        settings.parse_volumes("--claim", ["data=mnt"])
    for twice in (["a=/mnt/a", "b=/mnt/a/"], ["a=/"]):
        with pytest.raises(EctypeError, match="is taken"):
            settings.parse_volumes("--bucket", twice)
    with pytest.raises(EctypeError, match="a folder of a bucket"):
        settings.parse_volumes("--bucket", ["gs://runs/a=/mnt"])
    assert settings.parse_mounts(("gs://runs/a/=/mnt/",)) == {"gs://runs/a": "/mnt"}
    for given, why in (("gs://RUNS=/mnt", "lower-case"), ("runs=/mnt", "gs://"), ("gs://runs=mnt", "absolute path")):
        with pytest.raises(EctypeError, match=why):
            settings.parse_mounts((given,))


@pytest.mark.parametrize(
    ("flag", "good", "bad"),
    [
        ("cluster", ["c", "my-cluster-1"], ["", "My", "1c", "c-", "c;rm", "--all", "c" * 64]),
        ("project", ["my-project", "example.com:my-project"], ["p", "My-project", "projects/my-project", "a" * 31]),
        ("zone", ["us-central1-a", "europe-west4-b", "us-central1-ai1a"], ["us-central1", "us-central1-a ", "a"]),
        ("location", [None, "us-central1", "us-central1-a", "us-south1-ai1b"], ["us", "", "us-central1-a-b"]),
        ("namespace", ["default", "2nd"], ["", "a.b", "-a"]),
    ],
)
def test_names_of_a_cluster_are_refused_by_their_flag(flag, good, bad):
    where = {"cluster": "c", "project": "my-project", "zone": "us-central1-a", "location": None, "namespace": "default"}
    for value in good:
        assert getattr(settings.check_cluster(settings.Cluster(**where | {flag: value})), flag) == value
    for value in bad:
        with pytest.raises(EctypeError, match=f"--{flag} "):
            settings.check_cluster(settings.Cluster(**where | {flag: value}))


def test_a_folder_of_runs_is_a_bucket_or_an_absolute_path():
    assert [settings.check_base(one) for one in ("gs://b1/runs/", "gs://my-runs", "/mnt/runs")] == [
        "gs://b1/runs", "gs://my-runs", "/mnt/runs"
    ]  # fmt: skip
    for given in ("runs", "./runs", "gs:/b/runs", "gs://", "gs://B/runs", "s3://b/runs", "gs://b/*/", "/mnt/[a]", ""):
        with pytest.raises(EctypeError, match="--base"):
            settings.check_base(given)


def test_a_placement_is_for_the_machines_that_are_asked_for():
    settings.check_platform("tpu7x-4x8x8", "tpu")
    settings.check_platform("/mnt/only/there.yaml", "tpu")
    for placement, platform in (("cpu", "tpu"), ("gpu-8xh100", "tpu"), ("tpu7x-4x8x8", "gpu")):
        with pytest.raises(EctypeError, match=f"placement {placement}, for platform"):
            settings.check_platform(placement, platform)


def test_a_queue_has_a_name_that_kubernetes_knows():
    assert settings.check_object("--queue", "team-a", "localqueues") == "team-a"
    for queue in ("", "Team", "a b", "a\nb", "a" * 64):
        with pytest.raises(EctypeError, match="--queue"):
            settings.check_object("--queue", queue, "localqueues")


def test_each_size_is_smaller_than_those_before_it():
    """However it is named: xpk counts two cores a chip for Ironwood and v5p, and one for v6e."""
    assert [settings.chips_of(one) for one in ("tpu7x-512", "tpu7x-4x8x8", "v5p-256", "v5p-4x4x8", "v6e-256")] == [
        ("tpu7x", 256), ("tpu7x", 256), ("v5p", 128), ("v5p", 128), ("v6e", 256)
    ]  # fmt: skip
    first = settings.Slice("tpu7x-512", 1, "a")
    settings.check_smaller([first, settings.Slice("v5p-512", 1, "b"), settings.Slice("tpu7x-128", 2, "c")])
    for device_type, count in (("tpu7x-512", 1), ("tpu7x-4x8x8", 1), ("tpu7x-256", 2), ("tpu7x-1024", 1)):
        with pytest.raises(EctypeError, match="fewer than 256, which are asked for before it"):
            settings.check_smaller([first, settings.Slice(device_type, count, "b")])


def test_capacities():
    assert [settings.check_capacity(one) for one in (None, "on-demand", "spot", "flex")] == [
        None, "on-demand", "spot", "flex"
    ]  # fmt: skip
    with pytest.raises(EctypeError, match="--capacity 'cheap'"):
        settings.check_capacity("cheap")


def test_a_supervisors_folder_lies_beside_the_run():
    assert StateFolder.beside("/runs/calm").path == Path("/runs/calm.launch")
    assert StateFolder.beside("runs/calm.2").path == Path("runs/calm.2.launch")
    assert StateFolder.beside("gs://bucket/runs/stage1/").path == Path("stage1.launch")
    assert StateFolder.beside(".").path == Path.cwd().with_name(f"{Path.cwd().name}.launch")
    for nowhere in ("", "/"):
        with pytest.raises(EctypeError, match="--run"):
            StateFolder.beside(nowhere)


def test_ends_from_outside_are_no_failures():
    """A save on request; SIGHUP, SIGINT, SIGKILL, SIGTERM as Python and as a shell tell them. No crash is one."""
    assert all(taken_away(code) for code in (75, -1, -2, -9, -15, 129, 130, 137, 143))
    assert not any(taken_away(code) for code in (0, 1, 2, 65, 70, 124, -6, -11, 134, 139, -10))
    assert [in_words(code) for code in (1, 137, -9, -36)] == [
        "exit 1",
        "exit 137",
        "killed by SIGKILL",
        "killed by signal 36",
    ]


def test_slices_in_words():
    assert settings.parse_slice("tpu7x-128*2=tpu7x-4x4x4-two-slices").num_slices == 2
    refused = ("tpu7x-128", "tpu7x=tpu7x-4x4x4", "h100-8=gpu-8xh100", "tpu7x-128=nowhere", "tpu7x-128*²=tpu7x-4x4x4")
    for text in (*refused, f"tpu7x-128*{'9' * 5000}=tpu7x-4x4x4", "tpu7x-0=tpu7x-4x4x4"):
        with pytest.raises(EctypeError):
            settings.parse_slice(text)


class Catcher(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.caught.append((self.path, json.loads(body)))  # type: ignore[attr-defined]
        self.send_response(self.server.answers.pop(0))  # type: ignore[attr-defined]
        self.end_headers()

    def log_message(self, format, *args):
        pass


@pytest.fixture
def server():
    server = http.server.HTTPServer(("127.0.0.1", 0), Catcher)
    server.caught, server.answers = [], []  # type: ignore[attr-defined]
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def test_the_webhook_is_tried_again_and_never_named(server, monkeypatch):
    monkeypatch.setenv("HOOK", f"http://127.0.0.1:{server.server_port}/T0P/s3cret")
    server.answers += [500, 200]
    assert post(Webhook("HOOK"), {"event": "finish"}, lambda seconds: None) == ""
    assert server.caught == [("/T0P/s3cret", {"event": "finish"})] * 2
    server.answers += [500] * 3
    assert post(Webhook("HOOK"), {}, lambda seconds: None) == "HTTP status 500"


def test_a_webhook_that_fails_in_any_way_stops_nothing_and_is_not_named(tmp_path, monkeypatch):
    monkeypatch.setenv("HOOK", "http://127.0.0.1:1/s3cret")
    file = tmp_path / "hook"
    file.write_text("http://s3cret host/\n")
    for webhook in (Webhook("HOOK"), Webhook(file=file), Webhook("MISSING"), Webhook(file=tmp_path / "none")):
        fault = post(webhook, {}, lambda seconds: None)
        assert fault
        assert "s3cret" not in fault


def test_the_event_log_survives_a_torn_line(tmp_path):
    path = tmp_path / "events.jsonl"
    append_event(path, "submitted", job="a")
    with path.open("a") as stream:
        stream.write('{"event": "wa')
    assert [row["event"] for row in read_events(path)] == ["submitted"]
    append_event(Path("/proc/none/events"), "lost")


LOGS = {
    "Traceback (most recent call last):\nValueError: bad row\n": "ValueError: bad row",
    "[pod/x-0] jax.errors.JaxRuntimeError: INTERNAL: at 0x7f12ab\n": "jax.errors.JaxRuntimeError: INTERNAL: at 0x#",
    "error: no such index\n  expected: one\n": "error: no such index",
    "hung: host t-12, process 3 of 64: step 57 for 3601 s\n": "hung: PROCESS, PROCESS of 64: step 57 for # s",
    "XlaRuntimeError: UNAVAILABLE: connection to coordination service lost\n": "",
    "ValueError: first\nRuntimeError: Gloo connection closed by peer\n": "ValueError: first",
    "loss 2.5\n": "",
}


@pytest.mark.parametrize("text", LOGS)
def test_the_error_in_a_log_is_the_same_for_the_same_fault(text):
    assert last_error(text) == LOGS[text]


def test_a_run_is_read_by_its_descriptions_and_a_missing_mount_is_no_new_run(tmp_path):
    run = tmp_path / "run"
    assert read_run(run).completed_updates == 0
    assert read_run(tmp_path / "no mount" / "run").completed_updates is None
    for step in (10, 20):
        file = description_file(RunFolder(run).checkpoint(step))
        file.parent.mkdir(parents=True)
        file.write_text(json.dumps({"step": step}))
    RunFolder(run).checkpoint(30).mkdir()  # a folder without a description is no checkpoint
    RunFolder(run).metrics.write_text('{"step": 24}\n{"step": 25}\n{"st')
    reading = read_run(run)
    assert (reading.completed_updates, reading.reached_step) == (20, 25)
    description_file(RunFolder(run).checkpoint(20)).write_text("{")
    assert read_run(run).completed_updates == 10  # as the trainer, which takes the older one


@pytest.mark.parametrize(
    "webhook", [Webhook(variable="https://hooks.example/T0/zzz"), Webhook(file=Path("https://hooks.example/T0/zzz"))]
)
def test_an_address_in_the_place_of_a_reference_is_refused_and_not_repeated(webhook):
    with pytest.raises(EctypeError) as caught:
        webhook.check()
    assert "zzz" not in str(caught.value)


def test_what_a_program_says_went_wrong_is_told_and_not_how_it_ends():
    gcloud = (
        "ERROR: (gcloud.storage.ls) You do not currently have an active account selected.\nPlease run:\n\n"
        "  $ gcloud auth login\n\nto select an already authenticated account to use.\n"
    )
    assert Ran(1, "", gcloud).last_words.endswith("You do not currently have an active account selected.")
    assert Ran(1, "", "warming up\nboom\n").last_words == "boom"
    assert Ran(3, "x", " \n").last_words == "exit 3, 1 characters of output"


def test_a_path_of_this_machine_is_no_path_of_a_job():
    assert [settings.in_job(path, {}) for path in (None, "/mnt/i.json", "package:demo/bundle")] == [
        None, "/mnt/i.json", "package:demo/bundle"
    ]  # fmt: skip
    for path in ("runs/i.json", "./i.json", "s3://b/i.json"):
        with pytest.raises(EctypeError, match="a path of this machine"):
            settings.in_job(path, {})


def test_lines_that_are_no_events_are_left_out(tmp_path):
    log = tmp_path / "events.jsonl"
    append_event(log, "submitted", job="s-1")
    with log.open("ab") as stream:
        no_events = (b"null", b"[1]", b"{}", b'{"event": 3}', b'{"event": "x", "v": NaN}', b"[" * 100_000, b"\xff")
        for line in no_events:
            stream.write(line + b"\n")
    append_event(log, "stop")
    assert [row["event"] for row in read_events(log)] == ["submitted", "stop"]


def test_a_run_is_known_again_however_its_path_is_spelled(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_memory(tmp_path / "m.json", Memory(run="runs/a", target_updates=5, attempt=3))
    for run in ("runs/a", "./runs/a/", str(tmp_path / "runs/a"), "runs/b/../a"):
        assert begun(tmp_path / "m.json", run, 5, stop_was_asked=False).attempt == 3
    with pytest.raises(EctypeError, match="is of run runs/a"):
        begun(tmp_path / "m.json", "runs/b", 5, stop_was_asked=False)
