"""The worst criterion: outcome first, then the used share of the tolerance, whichever way the measure points."""

from dataclasses import replace

import pytest

from ectype.compare.criteria import Criterion, Outcome
from ectype.compare.held_out_criteria import KL, LOSS_BY_DOMAIN, TOP1
from ectype.compare.ranking import folded, strain, worst

BASE = Criterion(
    name=KL, landmark=640, domain=None, measured=1e-8, unit="nats per token", tolerance=1e-7, rejects_beyond=1e-6,
    tolerance_from="floor", interval=None, outcome=Outcome.HOLDS,
)  # fmt: skip
AGREEMENT = replace(BASE, name=TOP1, measured=0.9995, tolerance=0.999, rejects_beyond=0.99)


def test_strain_is_the_used_share_of_a_tolerance() -> None:
    assert strain(BASE) == pytest.approx(0.1)
    assert strain(AGREEMENT) == pytest.approx(0.5)
    assert strain(replace(BASE, measured=0.0, tolerance=0.0)) == 0
    assert strain(replace(BASE, measured=1.0, tolerance=0.0)) == float("inf")


def test_of_two_agreements_the_smaller_is_worse() -> None:
    low, full = replace(AGREEMENT, measured=0.9991, landmark=80), replace(AGREEMENT, measured=1.0, landmark=640)
    assert worst([full, low]) is low
    assert worst([low, full]) is low


def test_the_outcome_counts_first_and_a_number_that_is_none_least() -> None:
    strained = replace(BASE, measured=9e-8)
    assert worst([BASE, strained, replace(BASE, measured=None)]) is strained
    unclear = replace(BASE, measured=0.0, outcome=Outcome.UNCLEAR)
    assert worst([strained, unclear]) is unclear
    broken = replace(BASE, measured=None, outcome=Outcome.BROKEN)
    assert worst([strained, unclear, broken]) is broken


def test_domains_are_folded_into_the_worst_by_landmark() -> None:
    domains = [
        replace(BASE, name=LOSS_BY_DOMAIN, landmark=step, domain=name, measured=measured)
        for step in (80, 640)
        for name, measured in (("prose", -9e-8), ("code", 1e-8))
    ]
    found = folded([BASE, *domains])
    assert [(criterion.domain, count) for criterion, count in found] == [(None, 0), ("prose", 2), ("prose", 2)]
