"""Executables that stand in for xpk, kubectl and gcloud on PATH, and the world that they tell of."""

import json
import os
from pathlib import Path

FAKE = """#!/bin/sh
tool=${0##*/}
{ printf '%s\\0' "$tool" "$@"; printf '\\n'; } >> "$FAKE_WORLD/calls"
case "$tool" in
  xpk) key="xpk-$2" ;;
  kubectl) case "$5" in get) key="kubectl-${6%%.*}" ;; *) key="kubectl-$5" ;; esac ;;
  gcloud) case "$1-$2-$4$5" in
      storage-ls*) key=gcloud-ls ;;
      storage-cat*metrics.jsonl) key=gcloud-metrics ;;
      storage-cat*) key=gcloud-description ;;
      *) key="gcloud-$1" ;;
    esac ;;
esac
[ -s "$FAKE_WORLD/$key.out" ] && cat "$FAKE_WORLD/$key.out"
[ -s "$FAKE_WORLD/$key.err" ] && cat "$FAKE_WORLD/$key.err" >&2
code=0
[ -f "$FAKE_WORLD/$key.code" ] && read -r code < "$FAKE_WORLD/$key.code"
exit "$code"
"""
NOTHING = "ERROR: (gcloud.storage.ls) One or more URLs matched no objects."
UID = "uid-1"


class World:
    """What the stand-ins answer, as files; every call that they got."""

    def __init__(self, folder: Path, monkeypatch, uri: str = "gs://bucket/runs/stage1"):
        self.folder, self.uri = folder, uri
        tools = folder / "bin"
        tools.mkdir(parents=True)
        for name in ("xpk", "kubectl", "gcloud"):
            (tools / name).write_text(FAKE)
            (tools / name).chmod(0o755)
        monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
        monkeypatch.setenv("FAKE_WORLD", str(folder))
        self.no_run()
        self.no_job()

    def answer(self, key, out="", err="", code=0):
        for ending, text in (("out", out), ("err", err), ("code", f"{code}\n")):
            (self.folder / f"{key}.{ending}").write_text(text)

    def calls(self, *begin):
        lines = (self.folder / "calls").read_text().split("\n")[:-1] if (self.folder / "calls").is_file() else []
        found = [line.split("\0")[:-1] for line in lines]
        return [call for call in found if call[: len(begin)] == list(begin)]

    def list(self, kind, items):
        self.answer(f"kubectl-{kind}", json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))

    def job(self, name, *, suspend=False, queued=True, conditions=(), workload=None, pods=()):
        metadata = {"name": name, "uid": UID, "labels": {"kueue.x-k8s.io/queue-name": "q"} if queued else {}}
        self.list(
            "jobsets",
            [{"metadata": metadata, "spec": {"suspend": suspend}, "status": {"conditions": list(conditions)}}],
        )
        self.list(
            "workloads", [] if workload is None else [{"metadata": {"ownerReferences": [{"uid": UID}]}, **workload}]
        )
        self.list("pods", list(pods))

    def no_job(self):
        for kind in ("jobsets", "workloads", "pods"):
            self.list(kind, [])

    def no_run(self):
        self.answer("gcloud-ls", err=NOTHING, code=1)

    def run(self, completed, reached=None):
        path = f"{self.uri}/checkpoints/{completed:08d}/ectype/metadata"
        self.answer("gcloud-ls", out=f"{path}\n")
        self.answer("gcloud-description", json.dumps({"step": completed}))
        self.answer("gcloud-metrics", json.dumps({"step": reached or completed, "loss": 2.5}) + "\n")


def condition(kind, status="True", reason="", message=""):
    return {"type": kind, "status": status, "reason": reason, "message": message}


def pod(name, phase, *, code=None, reason="", at="2026-11-29T10:00:00Z", conditions=(), deleted=None):
    ended = {"terminated": {"exitCode": code, "reason": reason, "finishedAt": at}} if code is not None else {}
    metadata = {"name": name} | ({"deletionTimestamp": deleted} if deleted else {})
    status = {
        "phase": phase,
        "containerStatuses": [{"name": "jax-tpu", "state": ended}],
        "conditions": list(conditions),
    }
    return {"metadata": metadata, "status": status}
