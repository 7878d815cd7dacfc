"""The supervisor against stand-ins for xpk, kubectl and gcloud on PATH: each sequence leads to the right decision."""

import json
from dataclasses import replace
from itertools import pairwise

import pytest
from fake_cluster import World, condition, pod

from ectype.errors import EctypeError
from ectype.launch.command import Training, call
from ectype.launch.events import Webhook, read_events
from ectype.launch.memory import Memory, read_memory, write_memory
from ectype.launch.run_record import read_bucket_run
from ectype.launch.settings import Cluster, Slice
from ectype.launch.supervise import StateFolder, Supervised, request_stop, submit_once, supervise
from ectype.launch.supervisor import Policy
from ectype.launch.xpk import Container
from ectype.launch.xpk_jobs import ClusterJobs, cluster_backend, look

RUNNING = [pod("p-0", "Running"), pod("p-1", "Running")]
FAILED = condition("Failed", reason="FailedJobs", message="jobset failed due to one or more job failures")
EVICTED = condition("Evicted", reason="Preempted", message="by another")
UNSCHEDULABLE = condition("PodScheduled", "False", "Unschedulable", "0/4 nodes")
QUOTA = condition("QuotaReserved", "False", "Pending", "couldn't assign flavors to pod set: insufficient quota")


@pytest.fixture
def world(tmp_path, monkeypatch):
    return World(tmp_path / "world", monkeypatch)


class Drive:
    """Runs the supervisor; each time it sleeps, the world takes its next turn."""

    def __init__(self, world, tmp_path, *turns, **policy):
        self.world, self.turns, self.clock = world, list(turns), 1_800_000_000.0
        slices = (Slice("tpu7x-512", 1, "tpu7x-4x8x8"), Slice("tpu7x-128", 1, "tpu7x-4x4x4"))
        self.jobs = ClusterJobs(
            Cluster("cluster", "project", "us-central1-a"), Container("image:1"), slices,
            lambda placement: Training("olmo3-7b-stage1", "/mnt/stage1", placement), now=lambda: self.clock,
        )  # fmt: skip
        self.what = Supervised(
            "stage1", world.uri, 100, StateFolder(tmp_path / "state"), cluster_backend(self.jobs),
            lambda: read_bucket_run(world.uri, call), Policy(first_pause_seconds=30, **policy), look_every_seconds=60,
            now=lambda: self.clock, sleep=self.sleep,
        )  # fmt: skip

    def sleep(self, seconds):
        self.clock += seconds
        assert self.turns, f"the supervisor still waits: {self.reasons()[-3:]}"
        turn = self.turns.pop(0)
        if turn is not None:
            turn()

    def go(self):
        return supervise(self.what)

    def reasons(self):
        return [row.get("reason", "") for row in read_events(self.what.state.events)]

    def created(self):
        return [dict(pairwise(c)) for c in self.world.calls("xpk", "workload", "create")]


def end(world, name, *pods, message=""):
    """A JobSet that has failed, and what its log says."""

    def turn():
        world.job(name, conditions=[FAILED], pods=pods)
        world.answer("kubectl-logs", message)

    return turn


def test_success(world, tmp_path):
    drive = Drive(
        world, tmp_path,
        lambda: world.job("stage1-1", pods=RUNNING),
        lambda: world.run(50),
        lambda: (world.run(100), world.job("stage1-1", conditions=[condition("Completed")])),
    )  # fmt: skip
    memory = drive.go()
    assert (memory.outcome, memory.attempt, memory.completed_updates) == ("done", 1, 100)


def test_preempted_jobs_with_progress_are_submitted_again_at_once_and_without_end(world, tmp_path):
    taken = pod("p-0", "Failed", conditions=[condition("DisruptionTarget", reason="PreemptionByScheduler")])
    turns = []
    for number in range(1, 9):
        name, completed = f"stage1-{number}", number * 10
        turns += [
            lambda name=name: world.job(name, pods=RUNNING),
            lambda name=name, completed=completed: (
                world.run(completed), world.job(name, conditions=[FAILED], pods=[taken])
            ),
            None,
        ]  # fmt: skip
    turns += [lambda: (world.run(100), world.job("stage1-9", conditions=[condition("Completed")]))]
    memory = Drive(world, tmp_path, *turns, failures=1, preemptions=1).go()
    assert (memory.outcome, memory.attempt, memory.preemptions, memory.failures) == ("done", 9, 8, 0)


def test_c59_the_same_error_at_the_same_step_stops_after_two_tries(world, tmp_path):
    """C59: the job's own error, though the other pods were killed for it later; with the log's end."""
    pods = [
        pod("p-1", "Failed", code=137, at="2026-11-29T10:00:09Z"),
        pod("p-0", "Failed", code=1, at="2026-11-29T10:00:01Z"),
    ]  # fmt: skip
    log = "Traceback (most recent call last):\nValueError: batch 57 is bad\n"
    turns = [
        lambda: (world.run(50, reached=57), world.job("stage1-1", pods=RUNNING)),
        end(world, "stage1-1", *pods, message=log), None, end(world, "stage1-2", *pods, message=log),
    ]  # fmt: skip
    drive = Drive(world, tmp_path, *turns)
    memory = drive.go()
    assert (memory.outcome, memory.attempt) == ("stopped", 2)
    assert memory.reason == "the same error twice after step 57: ValueError: batch 57 is bad"
    assert "Traceback" in read_events(drive.what.state.events)[-1]["log_tail"]


def test_an_end_over_the_runs_health_is_not_restarted(world, tmp_path):
    log = "error: 3 updates in a row are not finite\n"
    turns = [
        lambda: world.job("stage1-1", pods=RUNNING),
        end(world, "stage1-1", pod("p-0", "Failed", code=65), message=log),
    ]
    memory = Drive(world, tmp_path, *turns).go()
    assert (memory.outcome, memory.attempt) == ("stopped", 1)
    assert "3 updates in a row are not finite" in memory.reason


def test_failures_without_progress_are_bounded(world, tmp_path):
    turns = []
    for number in range(1, 4):
        turns += [
            end(world, f"stage1-{number}", pod("p-0", "Failed", code=1), message=f"OSError: {'abc'[number - 1]}"),
            None,
        ]
    memory = Drive(world, tmp_path, *turns, failures=3).go()
    assert (memory.outcome, memory.attempt) == ("stopped", 3)
    assert "3 failures in a row without progress" in memory.reason


def test_c58_no_pods_no_checkpoint_and_no_job_do_not_end_the_supervisor(world, tmp_path):
    """C58: every listing is sound and empty, as after a preemption before the first checkpoint: it submits again."""
    turns = [
        lambda: world.job("stage1-1", pods=RUNNING),
        world.no_job, None, None,  # gone: two listings, then a pause
        lambda: (world.run(100), world.job("stage1-2", conditions=[condition("Completed")])),
    ]  # fmt: skip
    memory = Drive(world, tmp_path, *turns).go()
    assert (memory.outcome, memory.attempt) == ("done", 2)


BROKEN = {
    "failure": {"err": "Unable to connect to the server: net/http: TLS handshake timeout", "code": 1},
    "empty": {},
    "garbage": {"out": "<html>502 Bad Gateway</html>"},
    "another kind": {"out": '{"kind": "Status", "status": "Failure"}'},
}


@pytest.mark.parametrize("kind", ["jobsets", "workloads", "pods"])
@pytest.mark.parametrize("how", BROKEN)
def test_a_listing_that_fails_is_empty_or_is_no_list_is_tried_again(world, tmp_path, kind, how):
    """Never read as "no job", however often it comes."""
    turns = [
        lambda: world.job("stage1-1", pods=RUNNING),
        lambda: world.answer(f"kubectl-{kind}", **BROKEN[how]), *[None] * 5,
        lambda: (world.run(100), world.job("stage1-1", conditions=[condition("Completed")])),
    ]  # fmt: skip
    memory = Drive(world, tmp_path, *turns).go()
    assert (memory.outcome, memory.attempt) == ("done", 1)


@pytest.mark.parametrize("how", BROKEN)
def test_a_run_that_cannot_be_listed_is_not_at_step_0(world, tmp_path, how):
    """The job has ended, and the bucket does not answer: nothing is decided until it does."""
    turns = [
        lambda: (world.run(60), world.job("stage1-1", pods=RUNNING)),
        lambda: (world.answer("gcloud-ls", **BROKEN[how]), end(world, "stage1-1", pod("p-0", "Failed", code=75))()),
        *[None] * 5,
        lambda: world.run(70),
        None,
        lambda: (world.run(100), world.job("stage1-2", conditions=[condition("Completed")])),
    ]  # fmt: skip
    memory = Drive(world, tmp_path, *turns, preemptions=1, failures=1).go()
    assert (memory.outcome, memory.attempt) == ("done", 2)


@pytest.mark.parametrize(
    ("job", "state", "why"),
    [
        ({"suspend": True, "workload": {"status": {"conditions": [QUOTA]}}}, "pending", "quota"),
        ({"suspend": True}, "pending", "not queued yet"),
        ({"suspend": True, "queued": False}, "suspended", "in no queue"),
        ({"suspend": True, "workload": {"spec": {"active": False}}}, "suspended", "deactivated"),
        (
            {"suspend": True, "workload": {"status": {"conditions": [EVICTED]}}},
            "evicted",
            "Preempted: by another",
        ),
        (
            {"pods": [pod("p-0", "Pending", conditions=[UNSCHEDULABLE])]},
            "pending",
            "Unschedulable: 0/4 nodes",
        ),
        ({"pods": []}, "pending", "0 of 0 pods run"),
        ({"pods": [pod("p-0", "Running"), pod("p-1", "Pending")]}, "pending", "1 of 2 pods run"),
        ({"pods": RUNNING}, "running", ""),
        ({"conditions": [FAILED], "pods": RUNNING}, "running", "2 pods are ending"),
        ({"conditions": [FAILED], "pods": [pod("p-0", "Failed", code=143)]}, "preempted", "exit 143"),
        ({"conditions": [FAILED], "pods": [pod("p-0", "Failed", code=75)]}, "preempted", "exit 75"),
        ({"conditions": [FAILED], "pods": [pod("p-0", "Failed", code=70)]}, "failed", "exit 70"),
        ({"conditions": [FAILED], "pods": [pod("p-0", "Failed", code=137, reason="OOMKilled")]}, "failed", "OOMKilled"),
        ({"conditions": [FAILED], "pods": []}, "preempted", "no failed pod is left"),
        ({"conditions": [condition("Completed")]}, "succeeded", ""),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_states_of_a_job_are_told_apart(world, tmp_path, job, state, why):
    world.job("stage1-1", **job)
    report = look(Drive(world, tmp_path).jobs, "stage1-1")
    assert report.state == state
    assert why in report.why


def test_a_deleted_job_whose_pods_still_save_is_not_gone(world, tmp_path):
    drive = Drive(world, tmp_path)
    now = "2027-01-15T08:00:00Z"  # the clock of Drive
    world.list("pods", [pod("p-0", "Running", deleted=now)])
    assert look(drive.jobs, "stage1-1").state == "running"
    world.list("pods", [pod("p-0", "Running", deleted="2027-01-15T07:00:00Z")])
    assert look(drive.jobs, "stage1-1").state == "deleted"


def test_evicted_and_suspended_jobs_are_waited_for(world, tmp_path):
    evicted = {"status": {"conditions": [condition("Evicted", reason="Preempted")]}}
    turns = [
        lambda: world.job("stage1-1", suspend=True, workload=evicted), *[None] * 10,
        lambda: world.job("stage1-1", suspend=True, workload={"spec": {"active": False}}), *[None] * 10,
        lambda: (world.run(100), world.job("stage1-1", conditions=[condition("Completed")])),
    ]  # fmt: skip
    memory = Drive(world, tmp_path, *turns).go()
    assert (memory.outcome, memory.attempt) == ("done", 1)


def test_without_capacity_the_job_shrinks_and_grows_back(world, tmp_path):
    waiting = {"spec": {"active": True}, "status": {"conditions": [QUOTA]}}
    turns = [
        lambda: world.job("stage1-1", suspend=True, workload=waiting), *[None] * 5,
        world.no_job, None, None,
        lambda: world.job("stage1-2", pods=RUNNING), None, None,
        lambda: world.run(40),
        lambda: world.job("stage1-2", conditions=[FAILED], pods=[pod("p-0", "Failed", code=75)]), None,
        lambda: (world.run(100), world.job("stage1-3", conditions=[condition("Completed")])),
    ]  # fmt: skip
    drive = Drive(world, tmp_path, *turns, sizes=2, shrink_after_seconds=300, grow_after_seconds=120)
    memory = drive.go()
    assert memory.outcome == "done"
    assert [(c["--workload"], c["--device-type"]) for c in drive.created()] == [
        ("stage1-1", "tpu7x-512"), ("stage1-2", "tpu7x-128"), ("stage1-3", "tpu7x-512")
    ]  # fmt: skip
    assert "--placement tpu7x-4x4x4" in drive.created()[1]["--command"]
    assert [c[-2] for c in world.calls("xpk", "workload", "delete")] == ["stage1-1", "stage1-2"]


def test_a_submission_that_fails_is_tried_again_with_pauses_and_then_given_up(world, tmp_path):
    world.answer("xpk-create", out="[XPK] Error: quota exceeded\n", code=1)
    drive = Drive(world, tmp_path, *[None] * 20, failures=2)
    memory = drive.go()
    assert (memory.outcome, len(drive.created())) == ("stopped", 2)
    assert "the submission failed: xpk: [XPK] Error: quota exceeded" in memory.reason


def test_a_second_supervisor_is_refused(world, tmp_path):
    first = Drive(world, tmp_path)
    second = Drive(world, tmp_path)

    def intrude():
        with pytest.raises(EctypeError, match="another supervisor"):
            second.go()

    first.turns = [intrude, lambda: world.run(100), None]
    assert first.go().outcome == "done"


def test_a_webhook_that_does_not_answer_stops_nothing(world, tmp_path, monkeypatch):
    monkeypatch.setenv("HOOK", "http://127.0.0.1:1/s3cret")
    drive = Drive(world, tmp_path, *[lambda: world.run(100)] * 5)
    drive.what = replace(drive.what, webhook=Webhook("HOOK"))
    assert drive.go().outcome == "done"
    [told] = [row for row in read_events(drive.what.state.events) if row["event"] == "webhook"]
    assert (told["about"], told["fault"]) == ("finish", "URLError")
    assert "s3cret" not in drive.what.state.events.read_text() + drive.what.state.memory.read_text()


def test_a_run_that_cannot_be_read_is_not_submitted(world, tmp_path):
    world.answer("gcloud-ls", err="ERROR: denied", code=1)
    drive = Drive(world, tmp_path)
    with pytest.raises(EctypeError, match="can't be read: gcloud storage ls: ERROR: denied"):
        submit_once(drive.what)
    assert drive.created() == []


def test_a_size_that_the_next_supervisor_does_not_know_gives_way_to_the_one_that_is_asked_for(world, tmp_path):
    first = Drive(world, tmp_path)
    state = first.what.state
    state.path.mkdir()
    write_memory(state.memory, Memory(run=world.uri, target_updates=100, attempt=4, size=1, ending_for_size=1))
    drive = Drive(world, tmp_path, lambda: (world.run(100), world.job("stage1-5", conditions=[condition("Completed")])))
    assert drive.go().outcome == "done"
    assert [c["--device-type"] for c in drive.created()] == ["tpu7x-512"]


def test_a_new_supervisor_takes_up_the_job_of_a_dead_one(world, tmp_path):
    class DiedError(Exception):
        pass

    def die():
        raise DiedError

    with pytest.raises(DiedError):
        Drive(world, tmp_path, lambda: world.job("stage1-1", pods=RUNNING), die).go()
    drive = Drive(world, tmp_path, lambda: (world.run(100), world.job("stage1-1", conditions=[condition("Completed")])))
    assert drive.go().attempt == 1
    assert len(drive.created()) == 1


@pytest.mark.parametrize("before", ["ended before the next supervisor came", "still ending"])
def test_a_job_that_was_stopped_without_a_supervisor_is_no_preemption_and_the_next_begins_at_once(
    world, tmp_path, before
):
    taken = {"conditions": [FAILED], "pods": [pod("p-0", "Failed", code=75)]}
    first = Drive(world, tmp_path)
    submit_once(first.what)
    world.job("stage1-1", pods=RUNNING)
    assert request_stop(first.what.state, first.what.backend) == "stage1-1 was asked to save and end"
    turns = [lambda: world.job("stage1-1", **taken)]
    if before != "still ending":
        turns.pop()()
    turns += [None, lambda: (world.run(100), world.job("stage1-2", conditions=[condition("Completed")]))]
    drive = Drive(world, tmp_path, *turns, preemptions=1)
    memory = drive.go()
    assert (memory.outcome, memory.attempt, memory.preemptions, memory.stop_was_asked) == ("done", 2, 0, False)
    assert "stopped by you; it goes on at once" in drive.reasons()
    assert not any("next try in" in reason for reason in drive.reasons())


def test_a_stop_gives_fresh_budgets_and_only_the_job_that_was_stopped_is_free(world, tmp_path):
    """Failures before the stop are forgotten; a preemption after it counts."""
    taken = {"conditions": [FAILED], "pods": [pod("p-0", "Failed", code=75)]}
    first = Drive(world, tmp_path)
    submit_once(first.what)
    write_memory(first.what.state.memory, read(first).model_copy(update={"failures_without_progress": 4}))
    request_stop(first.what.state, first.what.backend)
    world.job("stage1-1", **taken)
    turns = [None, lambda: world.job("stage1-2", **taken)]
    memory = Drive(world, tmp_path, *turns, preemptions=1).go()
    assert (memory.outcome, memory.preemptions, memory.failures_without_progress) == ("stopped", 1, 0)


def read(drive):
    memory = read_memory(drive.what.state.memory)
    assert memory is not None
    return memory


def test_credentials_are_fetched_where_kubectl_knows_no_such_cluster(world, tmp_path):
    words = "error: context was not found for specified context: gke_project_us-central1_cluster"
    world.answer("kubectl-jobsets", err=words, code=1)
    assert look(Drive(world, tmp_path).jobs, "stage1-1").state == "unknown"
    assert world.calls("gcloud", "container", "clusters", "get-credentials", "cluster", "--location", "us-central1")


def test_the_count_is_the_descriptions_and_not_the_folders(world):
    world.run(80)
    world.answer("gcloud-description", json.dumps({"step": 79}))
    assert read_bucket_run(world.uri, call).completed_updates == 79
    world.answer("gcloud-description", "{}")
    assert read_bucket_run(world.uri, call).completed_updates is None


def test_tools_that_are_not_installed_are_no_missing_job(world, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    drive = Drive(world, tmp_path)
    assert look(drive.jobs, "stage1-1").state == "unknown"
    assert "not found on PATH" in drive.what.backend.submit("stage1-1", 0)
    assert drive.what.read().completed_updates is None
