"""The fault matrix: faults that more than the training loss catches, false alarms, and how long it all takes.

    python benchmarks/6_fault_matrix.py [OUT]

Runs `ectype faults OUT`, or goes on with a matrix that was begun there, and reads what it wrote. One JSON line per
figure; exit 1 on a miss.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

from figures import Figures

from ectype.faults.record import FaultMatrix, RegimeRecord, read_matrix
from ectype.faults.table import missed

SHARDED_TWICE = "sharded-twice"
CERTAIN_IN_A_RERUN = 10
"""Four faults of the order by the audit, five of the model by the token KL at step 0, one by the learning rate: none of
these depends on chance. What else is caught is a finding."""
UNREAD, READ_AGAIN, APART = 0.36, 0.265, 0.01
"""Shares of 32 hosts: (31/32)^32 and what is left of those read once; the case study's 64 hosts had 0.364 and 0.267."""


def regime_of(matrix: FaultMatrix, name: str) -> RegimeRecord:
    """The regime called `name`."""
    return next(regime for regime in matrix.regimes if regime.name == name)


def main(out: Path) -> None:
    """Make the matrix and report its figures."""
    ended = subprocess.run([sys.executable, "-m", "ectype.cli", "faults", str(out)], stdout=subprocess.DEVNULL)
    if ended.returncode not in (0, 1):
        sys.exit(ended.returncode)
    matrix, figures = read_matrix(out), Figures()
    replay = regime_of(matrix, "replay")
    caught = len(replay.faults) - len(missed(matrix)) - len(replay.unmade)
    figures.at_least(
        "replay: faults made, and caught by more than the training loss", caught, "faults", len(replay.faults)
    )
    for regime in matrix.regimes:
        alarms = len(regime.false_alarms)
        figures.at_most(f"{regime.name}: false alarms of {len(regime.honest)} honest runs", alarms, "runs", 0)
    again = regime_of(matrix, "re-run")
    found = sum(bool(row.caught_by) for row in again.faults)
    figures.at_least(f"re-run: faults caught, of {len(again.faults)}", found, "faults", CERTAIN_IN_A_RERUN)
    reading = next(row.reading for row in replay.faults if row.name == SHARDED_TWICE)
    assert reading is not None
    for what, share, target in zip(("never read", "read again"), reading.shares, (UNREAD, READ_AGAIN), strict=True):
        figures.at_most(f"sharded twice: {what}, distance from {target}", abs(share - target), "share", APART)
    figures.at_most("runs of the matrix, one after another", matrix.run_seconds / 60, "minutes", 240)
    figures.at_most(f"the matrix on {matrix.cores} cores", matrix.wall_seconds / 60, "minutes", 180)
    figures.finish()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as folder:
            main(Path(folder))
