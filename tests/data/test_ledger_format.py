"""The ledger's format version: recorded by each session, and a reader of another one says so."""

from pathlib import Path

import numpy as np
import pytest
from data_makers import make_data

from ectype.data.audit import Audit
from ectype.data.audit_run import audit_run
from ectype.data.ledger import FORMAT, Ledger
from ectype.data.order import make_order
from ectype.errors import EctypeError

DATA = make_data(batch=8)


def _run(run_dir: Path, steps: int) -> Audit:
    """Consume some batches, and audit them."""
    order, ledger = make_order(1000, DATA), Ledger(run_dir, 0, 1)
    ledger.begin(0)
    for k in range(steps):
        ledger.append(k, np.arange(8), order.batch_ids(k))
    ledger.flush()
    return audit_run(run_dir, order)


def test_a_ledger_of_another_version_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for version in (0, FORMAT):
        monkeypatch.setattr("ectype.data.ledger.FORMAT", version)
        assert _run(tmp_path / str(version), 4).clean
    monkeypatch.setattr("ectype.data.ledger.FORMAT", FORMAT + 1)
    with pytest.raises(EctypeError, match=f"session of format {FORMAT + 1}"):
        _run(tmp_path / "other", 4)
