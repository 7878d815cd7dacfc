"""Where everything in a run folder lies. No other file spells these names."""

from dataclasses import dataclass
from pathlib import Path

from ectype.errors import EctypeError
from ectype.recipe.held_out_sets import plain_set_name

LOCK_NAME = ".lock"
DEMO_RUN_NAME = "run"
"""Of the run folder within the folder of `ectype demo`."""


@dataclass(frozen=True)
class RunFolder:
    """The layout of one run folder. Nothing is read here and nothing need exist."""

    path: Path

    @property
    def recipe(self) -> Path:
        """The resolved recipe, as YAML."""
        return self.path / "recipe.yaml"

    @property
    def manifest(self) -> Path:
        """`run.json`: recipe hash, index fingerprint, environment, placement, every start of the program."""
        return self.path / "run.json"

    @property
    def metrics(self) -> Path:
        """One JSON line per update."""
        return self.path / "metrics.jsonl"

    @property
    def goodput(self) -> Path:
        """What took time besides updates, one JSON line each."""
        return self.path / "goodput.jsonl"

    @property
    def profile(self) -> Path:
        """Traces of `ectype train --profile`, for XProf."""
        return self.path / "profile"

    @property
    def checkpoints(self) -> Path:
        """The folder of all checkpoints."""
        return self.path / "checkpoints"

    def checkpoint(self, step: int) -> Path:
        """The state after `step` updates."""
        return self.checkpoints / f"{step:08d}"

    @property
    def ledger(self) -> Path:
        """The folder of what each process consumed."""
        return self.path / "ledger"

    def process_ledger(self, process: int) -> Path:
        """The ledger file of one process."""
        return self.ledger / f"process-{process:05d}.ledger"

    def ledger_processes(self) -> list[int]:
        """Processes that have a ledger file, ascending."""
        found = self.ledger.glob(f"process-{'[0-9]' * 5}.ledger")
        return sorted(int(path.stem.removeprefix("process-")) for path in found)

    @property
    def heartbeats(self) -> Path:
        """The folder of the processes' signs of life."""
        return self.path / "heartbeats"

    def heartbeat(self, process: int) -> Path:
        """What one process last said of itself."""
        return self.heartbeats / f"process-{process:05d}.json"

    @staticmethod
    def process_of_heartbeat(path: Path) -> int:
        """The number of the process whose sign `path` is."""
        return int(path.stem.removeprefix("process-"))

    def heartbeat_files(self) -> list[Path]:
        """Those that are there, by number of the process."""
        return sorted(self.heartbeats.glob(f"process-{'[0-9]' * 5}.json"))

    def evaluation(self, step: int) -> Path:
        """The evaluation of one landmark."""
        return self.path / "evaluations" / _landmark_name(step)

    def evaluations(self) -> list[Path]:
        """Evaluations that are there, by ascending landmark."""
        return sorted((self.path / "evaluations").glob("step-*.json"))

    def evaluation_lock(self, step: int) -> Path:
        """Held by the process that evaluates one landmark. Not among the evaluations, where each file is a result."""
        return self.path / f".evaluation-{step:08d}.lock"

    def set_evaluation(self, name: str, step: int) -> Path:
        """The evaluation of one landmark on a further held-out set."""
        return self.path / "evaluations" / f"set-{plain_set_name(name)}-{_landmark_name(step)}"

    def set_evaluations(self) -> list[Path]:
        """Evaluations on further held-out sets that are there, by name and ascending landmark."""
        return sorted((self.path / "evaluations").glob("set-*-step-*.json"))

    @staticmethod
    def name_of_set(path: Path) -> str:
        """Of which set an evaluation is, by its `plain_set_name`."""
        return path.stem.removeprefix("set-").rpartition("-step-")[0]

    def task_evaluation(self, step: int) -> Path:
        """Downstream tasks on the weights of one step."""
        return self.path / "evaluations" / f"tasks-{_landmark_name(step)}"

    def task_evaluations(self) -> list[Path]:
        """Records of downstream tasks that are there, by ascending step."""
        return sorted((self.path / "evaluations").glob("tasks-step-*.json"))

    def against_run(self, step: int) -> Path:
        """In a twin's folder: its comparison with the run at one landmark. It is no evaluation of the twin itself."""
        return self.path / "against-run" / _landmark_name(step)

    def against_run_set(self, name: str, step: int) -> Path:
        """The same on a further held-out set."""
        return self.path / "against-run" / f"set-{plain_set_name(name)}-{_landmark_name(step)}"

    @property
    def disjoint(self) -> Path:
        """Held-out sets that training does not read, from `ectype evaluate`."""
        return self.path / "disjoint.json"

    @property
    def twins(self) -> Path:
        """The folder of the run's twins."""
        return self.path / "twins"

    def twin(self, number: int) -> "RunFolder":
        """Run folder of a twin; twins count from 1, and the number is its perturbation's seed."""
        return RunFolder(self.twins / str(number))

    def twin_numbers(self) -> list[int]:
        """Numbers of the twins that have a folder, ascending, finished or not."""
        return sorted(int(path.name) for path in self.twins.glob("*") if path.name.isdigit())

    def reseeded_twin(self, number: int) -> "RunFolder":
        """Run folder of a twin that reads the data in another order; its number is added to the data seed."""
        return RunFolder(self.twins / f"seed-{number}")

    def reseeded_twin_numbers(self) -> list[int]:
        """Numbers of those that have a folder, ascending, finished or not."""
        found = (path.name.removeprefix("seed-") for path in self.twins.glob("seed-*"))
        return sorted(int(number) for number in found if number.isdigit())

    @property
    def verdict(self) -> Path:
        """Criteria, verdict and overlay, from `ectype compare`."""
        return self.path / "verdict.json"

    @property
    def audit(self) -> Path:
        """The audit of what was read, from `ectype data audit`."""
        return self.path / "audit.json"

    @property
    def parity(self) -> Path:
        """Parity with transformers, from `ectype weights parity`."""
        return self.path / "parity.json"

    @property
    def plan(self) -> Path:
        """What the run was predicted to cost, from `ectype plan`."""
        return self.path / "plan.json"

    @property
    def faults(self) -> Path:
        """What catches which known fault, from `ectype faults`; it also lies in that command's own folder."""
        return self.path / "faults.json"

    @property
    def report(self) -> Path:
        """The report."""
        return self.path / "report.html"

    @property
    def lock(self) -> Path:
        """Held by the process group that trains the run."""
        return self.path / LOCK_NAME

    def require(self) -> None:
        """Refuse a folder that is no run's.

        Raises:
            EctypeError: it holds no recipe.
        """
        if self.recipe.is_file():
            return
        expected = f"a run folder, with its {self.recipe.name}"
        if not self.path.is_dir():
            raise EctypeError(f"no folder {self.path}", expected, "give the folder of `ectype train --run`")
        below = RunFolder(self.path / DEMO_RUN_NAME)
        mend = f"did you mean {below.path}?" if below.recipe.is_file() else "give the folder of `ectype train --run`"
        raise EctypeError(f"{self.path} holds no {self.recipe.name}", expected, mend)


def _landmark_name(step: int) -> str:
    return f"step-{step:08d}.json"
