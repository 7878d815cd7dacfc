"""Job files: a script that Slurm and ShellCheck take, and a JobSet that fits its schema."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from jobset_schema import check
from pydantic import ValidationError
from typer.testing import CliRunner

from ectype.cli import launch
from ectype.errors import EctypeError
from ectype.launch.command import Training
from ectype.launch.manifest import JobSetPlan, gpu_machines, jobset, manifest_text, tpu_machines
from ectype.launch.slurm import SlurmJob, slurm_script

ROOT = Path(__file__).resolve().parents[2]
NASTY = Training("r", "/runs/a b", overrides=("it's", "$HOME", "$$", "$(id)", '"q"', "`x`", "a\\b", "*"))


def shellcheck(*files):
    tool = shutil.which("shellcheck", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if tool is None:
        pytest.skip("shellcheck is not installed")
    ran = subprocess.run([tool, "--severity=style", *map(str, files)], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout


def test_shell_scripts_are_clean():
    shellcheck(*sorted((ROOT / "scripts").glob("*.sh")))


def test_the_job_script_is_clean(tmp_path):
    job = SlurmJob(
        "stage1", 4, 2, 8, 12, "24:00:00", "gpu", "me", "/logs", container="a#b", environment=(("A", "b c"),)
    )
    path = tmp_path / "job.sbatch"
    path.write_text(slurm_script(job, NASTY))
    shellcheck(path)


FAKE = {
    "srun": 'shift\nprintf "%s\\0" "$@" > "$OUT/arguments"\ntrap \'touch "$OUT/told"; exit 75\' TERM\n'
    'i=0; while [ $i -lt "$LONG" ]; do sleep 0.05; i=$((i+1)); done; exit "$CODE"',
    "scontrol": 'echo "$@" > "$OUT/scontrol"',
    "scancel": 'echo "$@" > "$OUT/scancel"; kill -TERM "$(cat "$OUT/pid")"',
}


def run_script(tmp_path, code, long=0):
    tools = tmp_path / "bin"
    tools.mkdir()
    for name, text in FAKE.items():
        (tools / name).write_text(f'#!/bin/bash\n[ {name} = srun ] && echo $$ > "$OUT/pid"\n{text}\n')
        (tools / name).chmod(0o755)
    path = tmp_path / "job.sbatch"
    path.write_text(slurm_script(SlurmJob("stage1", 2), NASTY))
    where = {"PATH": f"{tools}:{os.environ['PATH']}", "OUT": str(tmp_path), "SLURM_JOB_ID": "77", "CODE": str(code)}
    return subprocess.Popen(["bash", str(path)], env={**os.environ, **where, "LONG": str(long)})


@pytest.mark.parametrize(("code", "requeued"), [(0, False), (75, True), (2, False), (1, False)])
def test_only_a_job_that_saved_and_stopped_goes_back_into_the_queue(tmp_path, code, requeued):
    assert run_script(tmp_path, code).wait(20) == code
    assert (tmp_path / "scontrol").is_file() == requeued
    arguments = (tmp_path / "arguments").read_text().split("\0")[:-1]
    assert arguments == ["ectype", *NASTY.arguments()]


def test_the_notice_of_an_end_is_passed_on_and_the_save_waited_for(tmp_path):
    import signal
    import time

    process = run_script(tmp_path, 0, long=400)
    while not (tmp_path / "arguments").is_file():
        time.sleep(0.02)
    time.sleep(0.2)
    process.send_signal(signal.SIGUSR1)
    assert process.wait(20) == 75
    assert (tmp_path / "scancel").read_text() == "--signal=TERM 77\n"
    assert (tmp_path / "told").is_file()
    assert (tmp_path / "scontrol").read_text() == "requeue 77\n"


def test_slurm_is_asked_for_what_was_asked():
    text = slurm_script(SlurmJob("stage1", 4, 2, 8, time_limit="1-00:00:00"), NASTY)
    lines = [line for line in text.splitlines() if line.startswith("#SBATCH")]
    assert lines == [
        "#SBATCH --job-name=stage1", "#SBATCH --nodes=4", "#SBATCH --ntasks-per-node=2", "#SBATCH --gpus-per-node=8",
        "#SBATCH --time=1-00:00:00", "#SBATCH --output=./stage1-%j.log", "#SBATCH --open-mode=append",
        "#SBATCH --signal=B:USR1@300", "#SBATCH --requeue",
    ]  # fmt: skip
    assert text.startswith("#!/bin/bash\n#SBATCH")  # sbatch reads them only before the first command
    with pytest.raises(EctypeError, match="--partition"):
        slurm_script(SlurmJob("stage1", 4, partition="a b"), NASTY)


def plan(machines, **more):
    return JobSetPlan("stage1", "image:1", "q", machines, **more)


EVERYTHING = {
    "priority": "high", "environment": (("A", "$b"),), "secrets": (("HF_TOKEN", "hf", "token"),),
    "buckets": (("runs", "/mnt/runs"),), "claims": (("data", "/mnt/data"),), "service_account": "trainer",
}  # fmt: skip


def test_a_tpu_jobset_fits_its_schema_and_has_the_slices_machines():
    made = check(yaml.safe_load(manifest_text(plan(tpu_machines("tpu7x-4x8x8", 2), **EVERYTHING), NASTY)))
    job = made.spec.replicatedJobs[0]
    pod = job.template.spec.template
    assert (job.replicas, job.template.spec.parallelism) == (2, 64)
    assert pod.spec.nodeSelector == {
        "cloud.google.com/gke-tpu-accelerator": "tpu7x", "cloud.google.com/gke-tpu-topology": "4x8x8"
    }  # fmt: skip
    assert pod.spec.containers[0].resources.limits == {"google.com/tpu": 4}
    assert pod.metadata == {"annotations": {"gke-gcsfuse/volumes": "true"}}
    assert [volume.name for volume in pod.spec.volumes] == ["shared-memory", "volume-0", "volume-1"]
    assert made.metadata.labels == {"kueue.x-k8s.io/queue-name": "q"}
    assert pod.spec.containers[0].args[-2:] == ["--coordinator", "auto"]


def test_a_gpu_jobset_tells_its_processes_where_to_meet():
    made = check(jobset(plan(gpu_machines(8, 4)), Training("r", "/runs/r")))
    container = made.spec.replicatedJobs[0].template.spec.template.spec.containers[0]
    assert container.args[-6:] == [
        "--coordinator", "stage1-workers-0-0.stage1:8476", "--processes", "4", "--process", "$(JOB_COMPLETION_INDEX)"
    ]  # fmt: skip


def test_a_gpu_jobset_of_one_node_has_nothing_to_meet():
    made = check(jobset(plan(gpu_machines(8, 1)), Training("r", "/runs/r")))
    container = made.spec.replicatedJobs[0].template.spec.template.spec.containers[0]
    assert container.args == Training("r", "/runs/r").arguments()


def test_arguments_come_through_kubernetes_as_they_are():
    from test_xpk import by_kubernetes

    container = jobset(plan(tpu_machines("v5p-4x4x8", 1)), NASTY)["spec"]["replicatedJobs"][0]["template"]["spec"]
    arguments = container["template"]["spec"]["containers"][0]["args"]
    expected = [*NASTY.arguments(), "--coordinator", "auto"]
    assert [by_kubernetes(value, {"HOME": "wrong"}) for value in arguments] == expected


def test_c59_machines_taken_away_restart_without_limit_and_failures_do_not():
    """C59, on a cluster without a supervisor: DisruptionTarget and exit 75 are not counted, all else is."""
    spec = check(jobset(plan(tpu_machines("v6e-4x4", 1)), Training("r", "/runs/r"))).spec
    assert spec.failurePolicy.maxRestarts == 5
    [rule] = spec.failurePolicy.rules
    assert (rule.action, rule.onJobFailureReasons) == ("RestartJobSetAndIgnoreMaxRestarts", ["PodFailurePolicy"])
    taken, stopped = spec.replicatedJobs[0].template.spec.podFailurePolicy.rules
    assert [one.type for one in taken.onPodConditions or []] == ["DisruptionTarget"]
    assert stopped.onExitCodes is not None
    assert stopped.onExitCodes.values == [75]
    assert {taken.action, stopped.action} == {"FailJob"}


def test_the_schema_refuses_what_it_does_not_know():
    manifest = jobset(plan(tpu_machines("v6e-4x4", 1)), Training("r", "/runs/r"))
    manifest["spec"]["maxRestarts"] = 3
    with pytest.raises(ValidationError):
        check(manifest)


def test_a_count_of_cores_is_no_topology():
    with pytest.raises(EctypeError, match="CHIP-TOPOLOGY"):
        tpu_machines("tpu7x-512", 1)


def test_the_verbs_write_their_files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith(("XPK_", "OLMO_", "STEPS_"))]:
        monkeypatch.delenv(name)

    def ectype(*arguments):
        return CliRunner().invoke(launch.app, arguments)

    done = ectype("slurm", "submit", "toy-calm", "--run", "runs/calm", "--nodes", "2", "--placement", "cpu-one")
    assert done.exit_code == 0, done.stderr
    written = (tmp_path / "calm.sbatch").read_text()
    assert "ectype train toy-calm --run runs/calm" in written
    assert "--until 640 --coordinator auto" in written
    where = ("--run", "/mnt/runs/calm", "--image", "i", "--queue", "q", "--device-type", "v5p-4x4x8")
    done = ectype("manifest", "toy-calm", *where, "--bucket", "runs=/mnt/runs", "--secret-env", "HF_TOKEN=hf:token")
    assert done.exit_code == 0, done.stderr
    check(yaml.safe_load(done.stdout))
    bare = ectype("manifest", "toy-calm", *where)
    assert bare.exit_code == 2
    assert "--run /mnt/runs/calm lies in no volume (none is mounted)" in bare.stderr
    assert bare.stdout == ""
    done = ectype("manifest", "toy-calm", *where, "--env", "HF_TOKEN=hf_abcdefghijklmnopqrstuv")
    assert done.exit_code == 2
    assert "hf_abc" not in done.stderr + done.stdout
