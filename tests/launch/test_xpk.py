"""Command lines for xpk: the real xpk takes them, and what is in them comes through every layer as it was."""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from fake_cluster import World, condition
from typer.testing import CliRunner

from ectype.cli import launch
from ectype.launch.command import Training
from ectype.launch.settings import Cluster, Slice
from ectype.launch.xpk import Container, create_arguments, delete_arguments, pod_command

ROOT = Path(__file__).resolve().parents[2]
NASTY = (
    "a b", "it's", 'say "hi"', "$HOME", "$$", "$(id)", "`id`", "a\\b", "*", "~", "#no", "a;b&c|d", "{x}", "%s", "é",
    "--set", "", "!x", "$(HOSTNAME)", "a=b: c",
)  # fmt: skip
CLUSTER = Cluster("cluster", "project", "us-central1-a")
CONTAINER = Container("image:1", "high", ("runs",), {"A": "b c"})


@pytest.fixture(scope="session")
def xpk() -> str:
    """The real xpk: named by ECTYPE_XPK, made by `make test`, or on PATH."""
    found = os.environ.get("ECTYPE_XPK") or shutil.which("xpk", path=f"{ROOT / '.venv-xpk/bin'}:{os.environ['PATH']}")
    if not found:
        pytest.skip("xpk is not installed")
    return found


def by_kubernetes(text, variables):
    """What Kubernetes makes of a container's command before it starts it: `$$` is `$`, `$(NAME)` a known variable."""

    def replace(match):
        return "$" if match[0] == "$$" else variables.get(match[1], match[0])

    return re.sub(r"\$\$|\$\(([^)]*)\)", replace, text)


def fake_ectype(folder):
    """A program that writes down its arguments and ends as one that saved and stopped."""
    (folder / "bin").mkdir()
    path = folder / "bin/ectype"
    path.write_text(f"#!/bin/sh\nprintf '%s\\0' \"$@\" > {folder}/arguments\nexit 75\n")
    path.chmod(0o755)
    return {**os.environ, "PATH": f"{path.parent}:{os.environ['PATH']}", "HOSTNAME": "here"}


def seen(folder):
    return (folder / "arguments").read_text().split("\0")[:-1]


def test_spaces_quotes_and_dollars_come_through_kubernetes_and_a_shell(tmp_path):
    environment = fake_ectype(tmp_path)
    text = by_kubernetes(pod_command(["ectype", *NASTY]), {"HOSTNAME": "wrong", "HOME": "wrong"})
    subprocess.run(["bash", "-c", f"({text})"], env=environment, check=False)
    assert seen(tmp_path) == list(NASTY)


@pytest.mark.parametrize(
    ("device_type", "machines", "accelerator", "topology"),
    [
        ("tpu7x-512", 64, "tpu7x", "4x8x8"),
        ("tpu7x-4x8x8", 64, "tpu7x", "4x8x8"),
        ("v5p-256", 32, "tpu-v5p-slice", "4x4x8"),
        ("v6e-256", 64, "tpu-v6e-slice", "16x16"),
    ],
)  # fmt: skip
def test_the_real_xpk_takes_our_command_in_its_dry_run(xpk, tmp_path, device_type, machines, accelerator, topology):
    """Ironwood by cores and by topology, v5p and Trillium; the arguments arrive, and so does the exit code."""
    training = Training("recipe", "/mnt/a b/run", overrides=NASTY)
    arguments = create_arguments(CLUSTER, Slice(device_type, 2, "p"), CONTAINER, "stage1-12", training)
    dry = ["--dry-run", "--skip-validation", "--output-manifest-file", str(tmp_path / "jobset.yaml")]
    environment = {**os.environ, "HOME": str(tmp_path)}
    ran = subprocess.run([xpk, *arguments[1:], *dry], env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    jobset = yaml.safe_load((tmp_path / "jobset.yaml").read_text())
    assert jobset["metadata"]["name"] == "stage1-12"
    assert jobset["spec"]["failurePolicy"]["maxRestarts"] == 0
    job = jobset["spec"]["replicatedJobs"][0]
    pod = job["template"]["spec"]["template"]["spec"]
    assert (job["replicas"], job["template"]["spec"]["parallelism"]) == (2, machines)
    selector = pod["nodeSelector"]
    assert selector["cloud.google.com/gke-tpu-accelerator"] == accelerator
    assert selector["cloud.google.com/gke-tpu-topology"] == topology
    assert (pod["priorityClassName"], pod["terminationGracePeriodSeconds"]) == ("high", 300)
    container = pod["containers"][0]
    assert {"name": "A", "value": "b c"} in container["env"]
    script = by_kubernetes(container["command"][2], {"A": "b c"}).replace("sleep 5", "sleep 0.1")
    ended = subprocess.run(["bash", "-c", script], env=fake_ectype(tmp_path), capture_output=True, check=False)
    assert ended.returncode == 75
    assert seen(tmp_path) == training.arguments()


def test_the_real_xpk_takes_deletion(xpk, tmp_path):
    environment = {**os.environ, "HOME": str(tmp_path)}
    dry = [xpk, *delete_arguments(CLUSTER, "stage1-12")[1:], "--dry-run", "--skip-validation"]
    ran = subprocess.run(dry, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr


STUDY = {
    "XPK_CLUSTER": "cluster", "XPK_PROJECT": "project", "XPK_ZONE": "us-central1-a", "XPK_DEVICE_TYPE": "tpu7x-512",
    "XPK_BASE_OUTPUT_DIR": "gs://bucket/runs", "XPK_RUN_NAME": "stage1", "XPK_NUM_SLICES": "1", "XPK_PRIORITY": "high",
    "OLMO_INDEX_PATH": "/mnt/bucket/index.json", "LOAD_PARAMETERS_PATH": "gs://bucket/step0",
    "STEPS_OVERRIDE": "1414078", "ECTYPE_IMAGE": "image:1", "ECTYPE_MOUNT": "gs://bucket=/mnt/bucket",
    "ECTYPE_STORAGE": "runs",
}  # fmt: skip


def script(*arguments, environment, **more):
    tools = Path(sys.executable).parent
    where = {**os.environ, **environment, "PATH": f"{environment.get('TOOLS', '')}:{tools}:{os.environ['PATH']}"}
    command = [str(ROOT / "scripts/olmo3_7b_stage1.sh"), *arguments]
    return subprocess.Popen(command, env=where, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **more)


@pytest.fixture
def tools(tmp_path):
    """`ectype` on PATH as this checkout has it."""
    folder = tmp_path / "tools"
    folder.mkdir()
    (folder / "ectype").write_text(f'#!/bin/sh\nexec {sys.executable} -m ectype.cli "$@"\n')
    (folder / "ectype").chmod(0o755)
    return {**STUDY, "TOOLS": str(folder)}


CREATE = (
    "xpk workload create --cluster cluster --project project --zone us-central1-a --namespace default"
    " --workload {job} --device-type tpu7x-512 --num-slices 1 --docker-image image:1 --priority high --max-restarts 0"
    " --termination-grace-period-seconds 300 --storage runs --command 'exec ectype train {recipe}"
    " --run /mnt/bucket/runs/{name} --placement tpu7x-4x8x8 --index /mnt/bucket/index.json {source}"
    " --until {until} --coordinator auto'"
)
FIRST = CREATE.format(
    job="stage1-1", recipe="olmo3-7b-stage1", name="stage1", source="--weights /mnt/bucket/step0", until=597046
)
SECOND = CREATE.format(
    job="stage1-ext-1", recipe="olmo3-7b-stage1-extension", name="stage1-ext", source="--from /mnt/bucket/runs/stage1",
    until=1413814,
)  # fmt: skip


@pytest.mark.parametrize(("command", "lines"), [("submit", [FIRST]), ("resume_until_done", [FIRST, SECOND])])
def test_the_case_studys_two_commands_need_nothing_but_its_variables(tools, tmp_path, command, lines):
    """AI2's stage 1 is two runs, and its epoch ends a little before the case study's count of steps."""
    process = script(command, "--dry-run", environment=tools, cwd=tmp_path)
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    assert output.splitlines() == lines
    assert "AI2's epoch ends at 1413814" in errors
    assert list(tmp_path.glob("*launch*")) == []


def test_what_is_missing_is_named_in_one_error(tools, tmp_path):
    empty = tools | {"XPK_CLUSTER": "", "XPK_ZONE": "", "ECTYPE_IMAGE": ""}
    process = script("submit", environment=empty, cwd=tmp_path)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 2
    assert all(f"${name}" in errors for name in ("XPK_CLUSTER", "XPK_ZONE", "ECTYPE_IMAGE"))


def test_the_script_says_what_it_needs(tmp_path):
    bash = f"{shutil.which('env')} -i PATH={tmp_path} {shutil.which('bash')} {ROOT / 'scripts/olmo3_7b_stage1.sh'}"
    bare = subprocess.run(bash.split(), capture_output=True, text=True, cwd=tmp_path, check=False)
    assert (bare.returncode, bare.stdout) == (2, "")
    needed = {*STUDY} - {"ECTYPE_MOUNT", "ECTYPE_STORAGE", "XPK_NUM_SLICES", "XPK_PRIORITY", "STEPS_OVERRIDE"}
    assert {line.strip() for line in bare.stderr.splitlines() if line.startswith("  ")} == needed
    lost = subprocess.run([*bash.split(), "submit"], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert lost.returncode == 2
    assert "ectype is not on PATH" in lost.stderr


def test_a_bucket_that_is_not_mounted_is_refused(tools, tmp_path):
    process = script("submit", "--dry-run", environment=tools | {"ECTYPE_MOUNT": "gs://other=/mnt"}, cwd=tmp_path)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 2
    assert "gs://bucket/step0 is in no mounted bucket" in errors


def test_c58_the_script_does_not_end_when_there_are_no_pods_and_no_checkpoint(tools, tmp_path, monkeypatch):
    """C58: empty listings before and after the submission; it goes on until the record shows the target."""
    world = World(tmp_path / "world", monkeypatch, "gs://bucket/runs/stage1")
    asked = ("resume_until_done", "--look-every-seconds", "0.1", "--first-pause-seconds", "0", "--failures", "100")
    process = script(*asked, environment=tools | {"STEPS_OVERRIDE": "500000"}, cwd=tmp_path)
    deadline = time.monotonic() + 60
    while len(world.calls("xpk", "workload", "create")) < 2:  # submitted, lost, submitted again
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)
    world.run(499999)
    count = len(world.calls("gcloud", "storage", "cat"))
    while len(world.calls("gcloud", "storage", "cat")) < count + 4:
        assert process.poll() is None, process.communicate()  # one short is not done
        time.sleep(0.05)
    world.run(500000)
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    assert "done: 500000 of 500000 updates are recorded" in output


def test_c58_a_supervisor_that_gives_up_says_why_and_the_script_begins_no_second_run(tools, tmp_path, monkeypatch):
    """C58: never an exit 1 without a word; AI2's second part does not begin on a first one that is not done."""
    world = World(tmp_path / "world", monkeypatch, "gs://bucket/runs/stage1")
    asked = ("resume_until_done", "--look-every-seconds", "0.1", "--first-pause-seconds", "0", "--failures", "1")
    process = script(*asked, environment=tools, cwd=tmp_path)
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 1, errors
    assert "stopped: 1 failure without progress; the last: the submission was lost" in output
    assert [call[call.index("--workload") + 1] for call in world.calls("xpk", "workload", "create")] == ["stage1-1"]


def test_status_logs_and_stop_speak_of_the_job_under_way(tmp_path, monkeypatch):
    world = World(tmp_path / "world", monkeypatch, "gs://bucket/runs/stage1")

    monkeypatch.chdir(tmp_path)

    def ectype(*arguments):
        return CliRunner().invoke(launch.app, ["xpk", *arguments], env=STUDY | {"STEPS_OVERRIDE": "500000"})

    assert ectype("submit", "olmo3-7b-stage1").exit_code == 0
    world.job("stage1-1", suspend=True, workload={"status": {"conditions": [condition("Evicted", reason="Preempted")]}})
    again = ectype("submit", "olmo3-7b-stage1")
    assert again.exit_code == 2
    assert "stage1-1 is evicted" in again.stderr
    status = json.loads(ectype("status", "--json").stdout)
    assert (status["job"], status["job_state"], status["why"]) == ("stage1-1", "evicted", "Preempted")
    world.answer("kubectl-logs", "step 5\n")
    assert ectype("logs").stdout == "step 5\n\n"
    assert "stage1-1 was asked to save and end" in ectype("stop").stdout
    world.no_job()
    stopped = ectype("status").stdout.splitlines()
    assert stopped[1:] == ["job stage1-1: deleted (stopped by you)", "1 job, 0 preemptions, 0 failures"]
    assert world.calls("xpk", "workload", "delete")[0][-2] == "stage1-1"
