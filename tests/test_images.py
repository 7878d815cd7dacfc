"""The container images' recipes, read and linted: nothing is built here."""

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FILES = sorted((ROOT / "docker").glob("*.Dockerfile"))
SECRET = re.compile(r"token|secret|password|passwd|credential|api_?key|private", re.IGNORECASE)
PINNED = re.compile(r"[\w./-]+:[\w.-]*\d+\.\d+[\w.-]*(@sha256:[0-9a-f]{64})?")


def instructions(text):
    """Pairs of an instruction's name and its argument, continued lines joined, comments left out."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    whole = re.sub(r"\\\n\s*", "", "\n".join(lines))
    return [tuple(line.split(None, 1)) for line in whole.splitlines() if line.strip()]


def context_paths(text):
    """Paths of the build context that the file copies from."""
    copies = [argument.split() for name, argument in instructions(text) if name == "COPY"]
    return [path for words in copies if not words[0].startswith("--from") for path in words[:-1] if path[:2] != "--"]


def faults(text):
    """What the house does not allow in an image."""
    found, stages = [], set()
    steps = instructions(text)
    for name, argument in steps:
        if name == "FROM":
            image, *rest = argument.split()
            if image not in stages and not PINNED.fullmatch(image):
                found.append(f"not pinned: {image}")
            stages |= set(rest[1:])
        if name == "ADD":
            found.append("ADD fetches and unpacks what it pleases")
        if name in ("ARG", "ENV") and SECRET.search(argument):
            found.append(f"a secret by name: {argument}")
        if name == "RUN" and "pip install" in argument:
            if "--constraint constraints.txt" not in argument:
                found.append("installed without the constraints")
            if "--no-cache-dir" not in argument:
                found.append("pip's cache stays in the image")
    last = max(place for place, (name, _) in enumerate(steps) if name == "FROM")
    users = [argument for name, argument in steps[last:] if name == "USER"]
    if not users or not re.fullmatch(r"[1-9]\d*(:[1-9]\d*)?", users[-1]):
        found.append(f"runs as {users[-1:] or 'root'}")
    entries = [argument for name, argument in steps[last:] if name == "ENTRYPOINT"]
    if entries != ['["ectype"]']:
        found.append(f"starts {entries}")
    return found


def test_there_is_one_for_tpus_and_one_for_gpus():
    assert [path.name for path in FILES] == ["gpu.Dockerfile", "tpu.Dockerfile"]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_an_image_keeps_the_rules(path):
    text = path.read_text()
    assert faults(text) == []
    [extra] = re.findall(r"'\.\[(\w+)\]'", text)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert extra == path.stem.split(".")[0]
    assert extra in project["optional-dependencies"]
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    for copied in context_paths(text):
        assert copied == "./" or ((ROOT / copied).exists() and f"!{copied}" in ignored), copied
    # What the build reads, as pyproject.toml names it, is there.
    assert {project["readme"], *project["license-files"], "pyproject.toml", "src"} <= set(context_paths(text))


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ("python:3.11.14-slim-bookworm", "python:latest", "not pinned"),
        ("python:3.11.14-slim-bookworm", "python", "not pinned"),
        ("COPY src src", "ADD src src", "ADD"),
        ("PYTHONUNBUFFERED=1", "HF_TOKEN=x", "a secret by name"),
        ("WORKDIR /source", "ARG API_KEY", "a secret by name"),
        ("USER 10001:10001", "USER root", "runs as"),
        ("USER 10001:10001", "USER 0", "runs as"),
        ("USER 10001:10001\n", "", "runs as"),
        ("--constraint constraints.txt ", "", "without the constraints"),
        ("--no-cache-dir ", "", "cache"),
        ('["ectype"]', "ectype", "starts"),
    ],
)
def test_the_rules_catch_what_they_are_for(old, new, fault):
    text = FILES[1].read_text()
    assert old in text
    assert any(fault in one for one in faults(text.replace(old, new)))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_hadolint_has_nothing_to_say(path):
    command = shutil.which("hadolint", path=str(Path(sys.executable).parent)) or shutil.which("hadolint")
    if command is None:
        pytest.skip("hadolint is not installed (extra `dev`)")
    done = subprocess.run([command, str(path)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")
    bad = subprocess.run([command, "-"], input="FROM debian\nRUN cd /x\n", capture_output=True, text=True, check=False)
    assert bad.returncode == 1
    assert "DL3006" in bad.stdout
