"""The one restart that lets the computing verbs use huge pages."""

import os
import sys

import pytest

from ectype.cli import huge_pages


@pytest.fixture
def restarts(monkeypatch):
    """The calls of `execv`, which here return."""
    calls = []
    monkeypatch.setattr(os, "execv", lambda path, argv: calls.append((path, argv)))
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(sys, "orig_argv", ["python", "-m", "ectype.cli", "train", "toy-calm"])
    monkeypatch.delenv(huge_pages.VARIABLE, raising=False)
    return calls


def start(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["ectype", *arguments])
    huge_pages.restart_with_huge_pages()


def test_a_computing_verb_restarts_once_with_the_same_arguments(monkeypatch, restarts):
    start(monkeypatch, "train", "toy-calm")
    assert restarts == [(sys.executable, [sys.executable, "-m", "ectype.cli", "train", "toy-calm"])]
    assert os.environ[huge_pages.VARIABLE] == "glibc.malloc.hugetlb=1"
    start(monkeypatch, "train", "toy-calm")
    assert len(restarts) == 1


def test_other_tunables_are_kept(monkeypatch, restarts):
    monkeypatch.setenv(huge_pages.VARIABLE, "glibc.malloc.arena_max=2")
    start(monkeypatch, "demo")
    assert os.environ[huge_pages.VARIABLE] == "glibc.malloc.arena_max=2:glibc.malloc.hugetlb=1"


@pytest.mark.parametrize("arguments", [(), ("--help",), ("recipes", "show", "train"), ("report", "runs/demo")])
def test_other_verbs_start_once(monkeypatch, restarts, arguments):
    start(monkeypatch, *arguments)
    assert restarts == []


def test_the_users_own_choice_stands(monkeypatch, restarts):
    monkeypatch.setenv(huge_pages.VARIABLE, "glibc.malloc.hugetlb=0")
    start(monkeypatch, "train")
    assert restarts == []


def test_elsewhere_than_on_linux_nothing_is_restarted(monkeypatch, restarts):
    monkeypatch.setattr(sys, "platform", "darwin")
    start(monkeypatch, "train")
    assert restarts == []
