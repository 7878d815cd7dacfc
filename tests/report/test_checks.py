"""The sections on data coverage and parity: what they say of sound, of faulty and of absent records."""

import re
from typing import Any

from ectype.data.audit import Audit, EpochCount, Fault
from ectype.data.audit_record import AuditRecord, audit_record
from ectype.report.coverage import coverage_part
from ectype.report.parity import parity_part
from ectype.weights.parity_record import ParityRecord

PARITY: dict[str, Any] = {
    "format": 1,
    "same": True, "positions": 160, "nan": False, "kl_mean": 2e-12, "kl_p99": 1e-11, "kl_max": 5e-11,
    "logit_difference_max": 3e-6, "logit_difference_mean": 4e-7, "top1_agreement": 1.0, "reference_kl_mean": None,
    "dtype": "float32", "length_tokens": 160, "window_tokens": 64, "vocab_size": 1000, "layers": [],
    "first_fault": None,
    "tolerances": {
        "logit_difference_max": 1e-4, "kl_max": 1e-8, "top1_agreement": 1.0, "bfloat16_kl_ratio": 1.1,
    },
    "versions": {"transformers": "5.24.0", "torch": "2.13.0"},
}  # fmt: skip


def _text(markup: str) -> str:
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", markup))


def _record(audit: Audit) -> AuditRecord:
    return audit_record(audit, "e" * 64)


def test_a_clean_audit_shows_every_window_once() -> None:
    first = EpochCount(0, 1, 4172, 521, read_once=4168, unread=4, unread_dropped_tail=4)
    second = EpochCount(
        0, 2, 4172, 119, read_once=952, unread=3220, unread_dropped_tail=4, unread_not_reached=3216
    )  # fmt: skip
    part = coverage_part(_record(Audit(640, [first, second], notes=["read in 1 session"])))
    assert "every window of these updates was read exactly once per pass" in part.markup
    bars = {bar["name"]: bar["x"] for bar in part.figures["coverage"]["data"]}
    assert bars == {
        "read once": [4168, 952],
        "read more than once": [0, 0],
        "missed": [0, 0],
        "not reached": [0, 3216],
        "fill no batch": [4, 4],
    }
    assert "read in 1 session" in part.markup


def test_a_faulty_audit_names_its_faults() -> None:
    count = EpochCount(0, 1, 1000, 125, read_once=370, read_twice=260, unread=370)
    faults = [Fault("window read more than once", step, step, (1,), (step,)) for step in range(1, 31)]
    text = _text(coverage_part(_record(Audit(125, [count], faults))).markup)
    assert "not every window was read exactly once per pass" in text
    assert "window read more than once" in text
    assert "10 more are in audit.json" in text


def test_an_absent_audit_names_the_command() -> None:
    assert "ectype data audit --run RUN" in _text(coverage_part(None).markup)


def test_an_audit_of_another_state_of_the_run_is_out_of_date() -> None:
    record = _record(Audit(640))
    for done, fingerprint, said in ((640, record.fingerprint, None), (700, record.fingerprint, "700 updates")):
        text = _text(coverage_part(record, done, fingerprint).markup)
        assert ("out of date" in text) == (said is not None)
        assert said is None or f"640 updates were audited, and the run is of {said}" in text
    assert "the run is of another index" in _text(coverage_part(record, 640, "0" * 64).markup)


def test_parity_is_shown_with_its_limits() -> None:
    text = _text(parity_part(ParityRecord(**PARITY)).markup)
    assert "the same function" in text
    assert "160 positions, in float32, against transformers 5.24.0, torch 2.13.0" in text
    assert "of at most 1×10 −4" in text


def test_a_parity_that_fails_names_the_place() -> None:
    fault = {"layer": 2, "group": "attention", "tensors": ["attention.query"], "relative_error": None}
    text = _text(parity_part(ParityRecord(**PARITY | {"same": False, "kl_max": None, "first_fault": fault})).markup)
    assert "not the same function" in text
    assert "layer 2, attention: attention.query" in text


def test_an_absent_parity_says_why_and_names_the_command() -> None:
    text = _text(parity_part(None).markup)
    assert "needs torch" in text
    assert "ectype weights parity" in text
