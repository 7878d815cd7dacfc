"""The supervisor's decisions: sequences of looks, and what is right to do after each."""

import math
from dataclasses import replace

import pytest

from ectype.launch.memory import Memory, begun, read_memory, write_memory
from ectype.launch.supervisor import Observation, Policy, decide

POLICY = Policy(
    failures=3, preemptions=6, first_pause_seconds=10, longest_pause_seconds=60, stall_seconds=1000, sizes=2
)


class Story:
    """Feeds looks to the supervisor, as its loop does, and keeps what it decided."""

    def __init__(self, policy=POLICY, target=100):
        self.policy, self.at, self.memory = policy, 1000.0, Memory(run="run", target_updates=target)

    def look(self, job, completed=0, seconds=1.0, **more):
        self.at += seconds
        seen = Observation(at=self.at, job=job, completed_updates=completed, **more)
        decision, self.memory = decide(self.policy, self.memory, seen)
        if decision.kind == "submit":
            self.memory = self.memory.model_copy(update={"job": f"run-{self.memory.attempt}"})
        return decision

    def submit(self, completed=0):
        """Wait as long as it asks for, then see it submit."""
        self.at = max(self.at, self.memory.not_before)
        decision = self.look("none", completed)
        assert decision.kind == "submit", decision
        return decision


def test_c59_preemptions_with_progress_are_unlimited_and_cost_no_pause():
    """C59: 700 preemptions, each after some progress, are no reason to stop; they share no budget with failures."""
    story = Story(target=10_000)
    for completed in range(700):
        story.submit(completed)
        assert story.look("preempted", completed + 1).kind == "wait"
        assert story.memory.not_before <= story.at
    assert story.memory.preemptions == 700
    assert story.memory.preemptions_without_progress == story.memory.failures_without_progress == 0


def test_c59_failures_without_progress_are_bounded_with_doubling_pauses():
    """C59: three failures at most, after pauses of 10 and 20 seconds; progress gives the whole budget back."""
    story = Story()
    story.submit(5)
    story.look("failed", 5)
    assert story.memory.not_before == story.at + 10
    story.submit(5)
    story.look("failed", 5)
    assert story.memory.not_before == story.at + 20
    story.submit(5)
    story.look("running", 6)
    story.look("failed", 6)
    story.submit(6)
    story.look("failed", 6)
    story.submit(6)
    story.look("failed", 6)
    story.submit(6)
    decision = story.look("failed", 6)
    assert (decision.kind, decision.tell) == ("stop", "stop")
    assert "3 failures in a row without progress" in decision.reason


def test_c59_a_preemption_does_not_use_up_the_budget_of_failures():
    """C59: two failures and five preemptions without progress are below either budget."""
    story = Story()
    for job in ("failed", "preempted", "preempted", "failed", "preempted", "preempted", "preempted"):
        story.submit()
        assert story.look(job, 0).kind == "wait"
    assert (story.memory.failures_without_progress, story.memory.preemptions_without_progress) == (2, 5)


@pytest.mark.parametrize("between", [(), ("preempted",)])
def test_c59_the_same_error_twice_at_the_same_step_stops_with_the_logs_end(between):
    """C59: also when a preemption came in between."""
    story, error = (
        Story(),
        {"error": "ValueError: bad row", "reached_step": 57, "tail": "Traceback\nValueError: bad row"},
    )
    story.submit(0)
    assert story.look("failed", 50, **error).kind == "wait"
    for job in between:
        story.submit(50)
        story.look(job, 50, reached_step=53)
    story.submit(50)
    decision = story.look("failed", 50, **error)
    assert (decision.kind, decision.tell) == ("stop", "stop")
    assert decision.reason == "the same error twice after step 57: ValueError: bad row"
    assert decision.tail.endswith("ValueError: bad row")


def test_an_end_over_the_runs_health_stops_at_once():
    """Exit 65: from the same checkpoint the same would come again."""
    story = Story()
    story.submit()
    decision = story.look("failed", 40, error="error: the loss is not finite", unhealthy=True)
    assert (decision.kind, decision.tell) == ("stop", "stop")
    assert "the loss is not finite" in decision.reason


def test_the_same_error_elsewhere_and_another_error_at_the_same_step_go_on():
    story = Story()
    for completed, error in ((10, "A"), (20, "A"), (20, "B")):
        story.submit(completed)
        assert story.look("failed", completed, error=error, reached_step=completed).kind == "wait"


@pytest.mark.parametrize("job", ["none", "succeeded", "failed", "preempted", "deleted"])
def test_a_run_is_done_when_its_record_says_so_whatever_became_of_the_job(job):
    decision = Story().look(job, 100)
    assert (decision.kind, decision.tell) == ("done", "finish")


def test_one_update_short_of_the_target_is_not_done():
    """The case study's last folder is called STEPS-1; a count one short is one short here."""
    story = Story()
    story.submit(0)
    assert story.look("preempted", 99).kind == "wait"
    assert story.submit(99).kind == "submit"


def test_a_program_that_ends_well_before_the_target_without_progress_stops():
    story = Story()
    story.submit(40)
    decision = story.look("succeeded", 40)
    assert decision.kind == "stop"
    assert "only 40 of 100 updates are recorded" in decision.reason


def test_c58_nothing_to_be_found_yet_is_no_reason_to_end():
    """C58: no job, no checkpoint, an empty or failed listing: the supervisor submits or waits, and never ends."""
    story = Story()
    assert story.look("none", None).kind == "wait"  # a run that can't be read is not at 0
    assert story.look("none", 0).kind == "submit"
    for _ in range(500):
        decision = story.look("unknown", None, seconds=30)
        assert decision.kind == "wait"
    assert story.memory.failures_without_progress == 0
    assert story.look("running", 0).kind == "wait"


def test_a_failed_listing_is_told_once_when_it_lasts():
    story = Story()
    story.submit()
    told = [story.look("unknown", 0, seconds=300).tell for _ in range(10)]
    assert told.count("stall") == 1
    assert told.index("stall") == 4


@pytest.mark.parametrize("job", ["none", "failed"])
def test_a_run_that_cannot_be_read_is_told_once_when_it_lasts(job):
    story = Story()
    if job != "none":
        story.submit()
    looks = [story.look(job, None, seconds=300, why="no mount") for _ in range(10)]
    assert [decision.kind for decision in looks] == ["wait"] * 10
    assert "no mount" in looks[0].reason
    assert [decision.tell for decision in looks].index("stall") == 4


def test_a_job_counts_as_deleted_only_after_two_sound_listings_without_it():
    story = Story()
    story.submit()
    story.look("running", 0)
    assert story.look("deleted", 0).kind == "wait"
    assert story.memory.job == "run-1"
    story.look("unknown", None)
    story.look("deleted", 0)
    assert story.memory.job is None
    story.submit()
    assert story.memory.job == "run-2"


def test_a_job_that_comes_back_into_the_listing_was_never_gone():
    story = Story()
    story.submit()
    for _ in range(5):
        story.look("deleted", 0)
        story.look("running", 0)
    assert story.memory.job == "run-1"


def test_an_ended_job_whose_run_cannot_be_read_is_judged_later():
    story = Story()
    story.submit(10)
    for _ in range(20):
        assert story.look("failed", None).kind == "wait"
    assert story.memory.failures_without_progress == 0
    story.look("failed", 20)
    assert story.memory.job is None
    assert story.memory.completed_updates == 20


def test_a_lower_reading_is_no_progress_and_takes_none_away():
    story = Story()
    story.submit(50)
    story.look("running", 0)
    assert story.memory.completed_updates == 50
    story.look("preempted", 50)
    assert story.memory.preemptions_without_progress == 1


@pytest.mark.parametrize("job", ["pending", "evicted", "suspended"])
def test_jobs_that_still_exist_are_never_submitted_twice(job):
    story = Story(replace(POLICY, sizes=1))
    story.submit()
    told = []
    for _ in range(200):
        decision = story.look(job, 0, seconds=60)
        assert decision.kind == "wait"
        told.append(decision.tell)
    assert story.memory.job == "run-1"
    assert told.count("stall") == 1
    # A person who suspended it should know at once; a queue may take its time.
    assert (told.index("stall") == 0) == (job == "suspended")


def test_a_lost_submission_counts_as_a_failure_and_is_tried_again():
    story = Story()
    story.submit()
    story.memory = story.memory.model_copy(update={"submit_error": "quota"})
    story.look("deleted", 0)
    decision = story.look("deleted", 0)
    assert "the submission failed: quota" in decision.reason
    assert story.memory.failures_without_progress == 1


RESIZE = replace(POLICY, shrink_after_seconds=600, grow_after_seconds=3600)


def test_without_machines_for_long_the_next_job_is_smaller_and_grows_back():
    story = Story(RESIZE)
    story.submit()
    assert story.look("pending", 0).kind == "wait"
    assert story.look("pending", 0, seconds=599).kind == "wait"
    assert story.look("pending", 0, seconds=1).kind == "cancel"
    assert story.look("pending", 0).kind == "wait"  # it was asked already
    for _ in range(2):
        story.look("deleted", 0)
    assert story.memory.failures_without_progress == story.memory.preemptions_without_progress == 0
    story.submit()
    assert story.memory.size == 1
    story.look("running", 0)
    assert story.look("running", 5, seconds=3000).kind == "wait"
    assert story.look("running", 5, seconds=700).kind == "wait"  # it waits for a checkpoint
    assert story.look("running", 6).kind == "cancel"
    story.look("preempted", 6)
    story.submit(6)
    assert story.memory.size == 0
    # The larger slice is not to be had: smaller again, and twice as long until the next try.
    story.look("pending", 6)
    assert story.look("pending", 6, seconds=600).kind == "cancel"
    for _ in range(2):
        story.look("deleted", 6)
    story.submit(6)
    assert story.memory.size == 1
    assert story.look("running", 7, seconds=3700).kind == "wait"
    assert story.look("running", 8, seconds=3700).kind == "cancel"


def test_a_job_that_will_not_end_is_asked_again():
    story = Story(RESIZE)
    story.submit()
    story.look("pending", 0)
    kinds = [story.look("pending", 0, seconds=30).kind for _ in range(40)]
    assert kinds[:19] == ["wait"] * 19
    assert kinds[19:27] == ["cancel", "wait"] * 4


def test_a_complete_run_does_not_wait_for_machines():
    story = Story()
    story.submit(90)
    assert story.look("pending", 100).kind == "cancel"
    assert story.look("running", 100).kind == "wait"
    assert story.look("succeeded", 100).kind == "done"


def test_a_stop_is_asked_of_the_job_and_ends_when_it_has_saved():
    story = Story()
    story.submit()
    assert story.look("running", 5, stop_asked=True).kind == "cancel"
    decision = story.look("preempted", 7, stop_asked=True)
    assert (decision.kind, story.memory.outcome) == ("stop", "stopped")


def test_memory_comes_back_from_its_file_and_a_new_start_has_fresh_budgets(tmp_path):
    story, path = Story(), tmp_path / "supervisor.json"
    story.submit(3)
    story.look("failed", 3, error="E", reached_step=3)
    write_memory(path, story.memory)
    assert read_memory(path) == story.memory
    assert begun(path, "run", 100, stop_was_asked=False) == story.memory.model_copy(update={"reason": ""})
    story.submit(3)
    assert story.look("failed", 3, error="E", reached_step=3).kind == "stop"
    write_memory(path, story.memory)
    again = begun(path, "run", 200, stop_was_asked=False)
    assert (again.errors, again.failures_without_progress, again.target_updates) == ((), 0, 200)
    assert again.attempt == 2


def test_no_pause_is_longer_than_the_longest_after_progress_too():
    story = Story(replace(POLICY, first_pause_seconds=math.inf, longest_pause_seconds=900.0))
    story.submit(0)
    story.look("failed", 5)
    assert story.memory.not_before == story.at + 900
