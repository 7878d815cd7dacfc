"""A submission that cannot be the run that was meant is refused or noted before anything is submitted."""

import json
import os

import pytest
from fake_cluster import World
from typer.testing import CliRunner

from ectype.cli import launch
from ectype.errors import EctypeError
from ectype.launch.command import Training
from ectype.launch.submission import check_inputs, check_storage, check_volumes
from ectype.run.checkpoints import description_file
from ectype.run.paths import RunFolder

XPK = ("--name", "s", "--base", "gs://b/runs", "--mount", "gs://b=/mnt/b", "--cluster", "c", "--project", "my-project")
XPK += ("--zone", "us-central1-a", "--device-type", "tpu7x-512", "--image", "i", "--dry-run")
MANIFEST = ("--run", "/mnt/runs/s", "--image", "i", "--queue", "q", "--device-type", "tpu7x-4x8x8", "--bucket")
MANIFEST += ("my-runs=/mnt/runs",)
VERBS = {
    "xpk": ("xpk", "submit", "olmo3-7b-stage1", *XPK),
    "manifest": ("manifest", "olmo3-7b-stage1", *MANIFEST),
    "slurm": ("slurm", "submit", "olmo3-7b-stage1", "--run", "/shared/s", "--gpus-per-node", "8", "--dry-run"),
}


@pytest.fixture
def ectype(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith(("XPK_", "OLMO_", "STEPS_", "LOAD_", "ECTYPE_"))]:
        monkeypatch.delenv(name)
    return lambda *arguments: CliRunner().invoke(launch.app, arguments)


@pytest.mark.parametrize("verb", VERBS)
def test_no_index_is_refused_and_no_weights_are_noted_by_every_backend(ectype, verb):
    bare = ectype(*VERBS[verb])
    assert (bare.exit_code, bare.stdout) == (2, "")
    assert "no --index, and recipe olmo3-7b-stage1 names none" in bare.stderr
    drawn = ectype(*VERBS[verb], "--index", "/mnt/runs/i.json")
    assert drawn.exit_code == 0, drawn.stderr
    assert "note: no --weights: step 0 of a new run is drawn from the recipe's seed" in drawn.stderr
    storage = ("--storage", "runs") if verb == "xpk" else ()
    whole = ectype(*VERBS[verb], "--index", "/mnt/runs/i.json", "--weights", "/mnt/runs/w", *storage)
    assert (whole.exit_code, whole.stderr) == (0, "")


def test_slurm_knows_how_many_gpus_a_node_has_and_refuses_more_than_the_batch_feeds(ectype):
    asked = ("slurm", "submit", "toy-calm", "--run", "/shared/calm", "--dry-run")
    assert "no --gpus-per-node, and placement gpu-8xh100 is for GPUs" in ectype(*asked).stderr
    done = ectype(*asked, "--gpus-per-node", "8")
    assert (done.exit_code, done.stderr) == (0, "")
    assert "#SBATCH --gpus-per-node=8" in done.stdout
    many = ectype(*asked, "--gpus-per-node", "8", "--nodes", "2")
    assert (many.exit_code, many.stdout) == (2, "")
    assert "8 windows a batch over mesh.data x mesh.fsdp = 16" in many.stderr
    here = ("manifest", "toy-calm", *MANIFEST[:6], "--bucket", "my-runs=/mnt/runs", "--gpus", "8", "--nodes", "2")
    assert "8 windows a batch over mesh.data x mesh.fsdp = 16" in ectype(*here).stderr


def test_the_case_studys_image_is_a_default_and_the_error_names_the_variable(ectype, monkeypatch):
    asked = [one for one in VERBS["manifest"] if one not in ("--image", "i")]
    assert "--image or $ECTYPE_IMAGE" in ectype(*asked, "--index", "/mnt/runs/i.json").stderr
    monkeypatch.setenv("XPK_DOCKER_IMAGE", "theirs:1")
    done = ectype(*asked, "--index", "/mnt/runs/i.json")
    assert "image: theirs:1" in done.stdout
    assert "&id" not in done.stdout
    monkeypatch.setenv("ECTYPE_IMAGE", "ours:1")
    assert "image: ours:1" in ectype(*asked, "--index", "/mnt/runs/i.json").stdout


@pytest.mark.parametrize("device_type", ["v5p", "tpu7x", "h100-80gb", "v6e-0", "tpu7x-0x0x0", "v6e-" + "9" * 5000])
def test_a_device_type_that_is_none_is_refused_whatever_else_is_given(ectype, device_type):
    given = ("--index", "/mnt/b/i.json", "--placement", "tpu7x-4x8x8", "--device-type", device_type)
    for verb in ("xpk", "manifest"):
        refused = ectype(*VERBS[verb], *given)
        assert (refused.exit_code, f"--device-type {device_type!r}" in refused.stderr) == (2, True), refused.stderr


@pytest.mark.parametrize(
    ("flag", "value"),
    [("--namespace", "A B"), ("--priority", "a\nb"), ("--service-account", ""), ("--device-type", "tpu7x-3x3x3")],
)
def test_a_manifest_holds_no_name_that_kubernetes_refuses(ectype, flag, value):
    given = ("--index", "/mnt/runs/i.json", "--weights", "/mnt/runs/w", "--placement", "tpu7x-4x8x8", flag, value)
    refused = ectype(*VERBS["manifest"], *given)
    assert (refused.exit_code, f"{flag} {value!r}" in refused.stderr) == (2, True), refused.stderr


def test_slurm_has_no_tpus(ectype):
    given = ("--index", "/shared/i.json", "--placement", "tpu7x-4x8x8")
    refused = ectype(*VERBS["slurm"], *given)
    assert (refused.exit_code, "placement tpu7x-4x8x8, for TPUs" in refused.stderr) == (2, True), refused.stderr


def test_a_run_of_this_machine_has_a_folder_and_a_state_of_its_own(ectype, tmp_path):
    (tmp_path / "file").touch()
    for given, said in (
        (("--run", "file"), "--run file, a file"),
        (("--run", "run", "--state", "run"), "--state run, the run folder itself"),
        (("--run", "run", "--index", ""), "--index '': no such file"),
        (("--run", "run", "--index", "."), "--index '.': no such file"),
        (("--run", "run", "--index", "package:nope"), "--index 'package:nope': no such file"),
        (("--run", "run", "--set", "inputs.index=/nope"), "the recipe's input for --index, '/nope'"),
        (("--run", "run", "--remap", "x"), "remap 'x'"),
    ):
        refused = ectype("local", "submit", "toy-calm", "--placement", "cpu-one", *given)
        assert (refused.exit_code, said in refused.stderr) == (2, True), (given, refused.stderr)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_run_of_this_machine_that_has_begun_needs_no_weights_and_knows_its_index(ectype, tmp_path):
    run = RunFolder(tmp_path / "run")
    run.path.mkdir()
    run.manifest.touch()
    asked = ("local", "submit", "toy-calm", "--placement", "cpu-one", "--run", "run", "--dry-run")
    assert ectype(*asked, "--weights", "gone", "--set", "inputs.index=gone").exit_code == 0
    assert ectype(*asked, "--index", "gone").exit_code == 2


def test_a_path_in_a_mounted_bucket_is_the_jobs_path(ectype):
    asked = ("--index", "gs://b/i.json", "--weights", "gs://b/w", "--json")
    [[command]] = json.loads(ectype(*VERBS["xpk"], *asked).stdout)["dry_run"]
    assert "--index /mnt/b/i.json --weights /mnt/b/w" in command[-1]
    asked = ("--index", "gs://my-runs/i.json", "--weights", "gs://my-runs/w", "--json")
    made = json.loads(ectype(*VERBS["manifest"], *asked).stdout)["manifest"]
    arguments = made["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]["containers"][0]["args"]
    assert "--index /mnt/runs/i.json --weights /mnt/runs/w" in " ".join(arguments)
    for verb, how in (("xpk", "--mount gs://BUCKET=/PATH"), ("manifest", "--bucket BUCKET=/PATH")):
        elsewhere = ectype(*VERBS[verb], "--index", "gs://other/i.json")
        assert (elsewhere.exit_code, elsewhere.stdout) == (2, "")
        assert "gs://other/i.json is in no mounted bucket" in elsewhere.stderr
        assert how in elsewhere.stderr


@pytest.mark.parametrize("flag", ["--index", "--weights", "--padded-rows", "--from"])
def test_a_job_of_this_machine_has_inputs_that_are_there(ectype, tmp_path, flag):
    for verb in ("submit", "resume-until-done"):
        refused = ectype("local", verb, "toy-calm", "--run", "runs/calm", "--placement", "cpu-one", flag, "absent")
        assert refused.exit_code == 2
        assert f"{flag} 'absent': no such file" in refused.stderr
    assert not (tmp_path / "runs").exists()


def test_the_target_has_the_name_that_training_gives_it_too(ectype):
    asked = ("local", "submit", "toy-calm", "--run", "r", "--placement", "cpu-one", "--dry-run")
    named = {ectype(*asked, flag, "7").stdout for flag in ("--target-steps", "--until")}
    assert len(named) == 1
    assert "--until 7" in named.pop()


def test_a_dry_run_in_json_is_one_object(ectype):
    local = ("local", "submit", "toy-calm", "--run", "r", "--placement", "cpu-one", "--processes", "2", "--dry-run")
    index = ("--index", "/mnt/b/i.json", "--json")
    [two] = json.loads(ectype(*local, "--json").stdout)["dry_run"]
    assert [command[-2:] for command in two] == [["--process", "0"], ["--process", "1"]]
    [[create]] = json.loads(ectype(*VERBS["xpk"], *index).stdout)["dry_run"]
    assert create[:3] == ["xpk", "workload", "create"]
    assert json.loads(ectype(*VERBS["slurm"], *index).stdout)["dry_run"].startswith("#!")


def test_a_dry_run_says_which_command_is_for_which_size(ectype):
    asked = ("xpk", "resume-until-done", "olmo3-7b-stage1", *XPK, "--index", "/mnt/b/i.json")
    lines = ectype(*asked, "--or-smaller", "tpu7x-128=tpu7x-4x4x4").stdout.splitlines()
    assert lines[0::2] == ["# first choice", "# smaller"]
    assert "tpu7x-128" in lines[3]
    same = ectype(*asked, "--or-smaller", "tpu7x-512=tpu7x-4x4x4")
    assert (same.exit_code, same.stdout) == (2, "")


def finished(run, step):
    file = description_file(RunFolder(run).checkpoint(step))
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps({"step": step}))


@pytest.mark.parametrize("backend", ["local", "slurm"])
def test_a_run_that_has_reached_its_target_is_not_submitted(ectype, tmp_path, backend):
    finished(tmp_path / "runs/calm", 40)
    asked = (backend, "submit", "toy-calm", "--run", "runs/calm", "--placement", "cpu-one", "--target-steps")
    done = ectype(*asked, "40")
    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout == "runs/calm is already done: 40 updates are recorded; nothing is submitted\n"
    assert json.loads(ectype(*asked, "40", "--json").stdout) == {"job": None, "run": "runs/calm", "done": True}
    assert not list(tmp_path.glob("**/*.sbatch")) + list(tmp_path.glob("**/jobs"))


def test_a_finished_run_in_a_bucket_is_not_submitted(ectype, tmp_path, monkeypatch):
    world = World(tmp_path / "world", monkeypatch, "gs://b/runs/s")
    world.run(500)
    inputs = ("--index", "/mnt/b/i.json", "--weights", "/mnt/b/w", "--storage", "b")
    done = ectype("xpk", "submit", "olmo3-7b-stage1", *XPK[:-1], *inputs, "--target-steps", "500")
    assert (done.exit_code, done.stderr) == (0, "")
    assert "gs://b/runs/s is already done" in done.stdout
    assert world.calls("xpk") == []


def test_a_recipe_with_inputs_of_its_own_has_nothing_to_note():
    assert check_inputs(Training("toy-calm", "runs/calm")) == []


def test_a_run_that_was_begun_holds_its_weights():
    assert check_inputs(Training("olmo3-7b-stage1", "run", index="i"), begun=True) == []


def test_a_stage_without_its_source_is_noted():
    [note] = check_inputs(Training("olmo3-7b-stage2", "run", index="i"))
    assert note.startswith("no --from: olmo3-7b-stage2 goes on from another run")
    assert check_inputs(Training("olmo3-7b-stage2", "run", index="i", source="a")) == []


def test_a_run_folder_lies_in_a_volume():
    with pytest.raises(EctypeError, match=r"lies in no volume \(/mnt/run\)"):
        check_volumes(Training("r", "/mnt/runs/s"), ["/mnt/run"])
    assert check_volumes(Training("r", "/mnt/runs/s", index="package:x"), ["/mnt/runs/"]) == []
    with pytest.raises(EctypeError, match="lies in no volume"):
        check_volumes(Training("r", "/mnt/runs/../../x"), ["/mnt/runs"])
    [note] = check_volumes(Training("r", "/mnt/runs/s", index="/other/i.json"), ["/mnt/runs"])
    assert note == "--index /other/i.json lies in no volume: it must be in the image"


def test_a_bucket_that_no_storage_mounts_is_noted():
    assert check_storage(["runs"], "/mnt/b/s") == []
    assert check_storage([], "/mnt/b/s")[0].startswith("no --storage: unless xpk mounts one by itself, /mnt/b/s is on")
