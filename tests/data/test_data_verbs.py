"""`ectype data`: exit codes, JSON, and what people read."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from data_makers import write_tokens
from typer.testing import CliRunner

from ectype.cli.main import app
from ectype.data.audit_record import read_audit
from ectype.data.index import load_index
from ectype.data.ledger import Ledger
from ectype.data.order import make_order
from ectype.recipe.load import load_recipe, recipe_hash, to_yaml
from ectype.run.manifest import Manifest, write_manifest

SETS = ("data.sequence_length_tokens=16", "data.global_batch_windows=4", "duration_steps=30", "landmarks=[]")
TOY = "toy-calm"


def run(*words: str | Path, code: int = 0) -> Any:
    result = CliRunner().invoke(app, [*map(str, words)])
    assert result.exit_code == code, result.output + result.stderr
    return json.loads(result.stdout) if "--json" in words else result.stdout


def overrides() -> list[str]:
    return [word for item in (*SETS, "data.order.max_target_length_tokens=null") for word in ("--set", item)]


@pytest.fixture
def manifest(tmp_path: Path) -> Path:
    generator = np.random.default_rng(0)
    for n, size in enumerate((1000, 600, 5, 0)):
        write_tokens(tmp_path / f"tokens/f{n}.npy", generator.integers(2, 999, size))
    path = tmp_path / "mix.txt"
    path.write_text("".join(f"{label},tokens/f{n}.npy\n" for n, label in enumerate(("web", "code", "code", "web"))))
    return path


@pytest.fixture
def finished(manifest: Path, tmp_path: Path, make_manifest: Callable[..., Manifest]) -> Path:
    """A run folder as training leaves it: recipe, run.json, ledger of two hosts."""
    folder = tmp_path / "run"
    folder.mkdir()
    recipe = load_recipe(TOY, [*SETS, "data.order.max_target_length_tokens=null", f"inputs.index={manifest}"])
    (folder / "recipe.yaml").write_text(to_yaml(recipe))
    index = load_index(manifest, recipe.data, 1000)
    write_manifest(folder, make_manifest(index_fingerprint=index.fingerprint, recipe_hash=recipe_hash(recipe)))
    order = make_order(index.windows, recipe.data)
    for host in (0, 1):
        ledger = Ledger(folder, host, 2)
        ledger.begin(0)
        for k in range(30):
            ledger.append(k, np.arange(2) + 2 * host, order.batch_ids(k)[2 * host : 2 * host + 2])
        ledger.flush()
    return folder


def test_index_writes_and_reports(manifest: Path, tmp_path: Path) -> None:
    out = tmp_path / "index.json"
    found = run("data", "index", manifest, "--sequence-length", 16, "--vocab-size", 1000, "--out", out, "--json")
    assert (found["windows"], found["tokens"], found["dropped_tokens"]) == (99, 1605, 21)
    assert len(found["empty_files"]) == len(found["short_files"]) == 1
    assert (
        load_index(out, load_recipe(TOY, [*SETS, "data.order.max_target_length_tokens=null"]).data, 1000).windows == 99
    )
    text = run("data", "index", manifest, "--recipe", TOY, *overrides(), "--out", out)
    assert "windows: 99" in text
    assert f"fingerprint: {found['fingerprint']}" in text


def test_index_refuses_the_wrong_width_and_leaves_nothing(manifest: Path, tmp_path: Path) -> None:
    out = tmp_path / "none" / "index.json"
    found = run("data", "index", manifest, "--sequence-length", 16, "--out", out, "--json", code=2)
    assert "pairs of uint16" in found["error"]["found"]
    assert not out.parent.exists()


def test_index_flags(manifest: Path, tmp_path: Path) -> None:
    out = tmp_path / "i.json"
    manifest.write_text(manifest.read_text() + "a,b,c\ngone.npy\nweb,tokens/f0.npy\n")
    common = ("data", "index", manifest, "--sequence-length", 16, "--vocab-size", 1000, "--out", out, "--json")
    for flags in ((), ("--skip-malformed",), ("--skip-malformed", "--allow-missing"), ("--allow-missing",)):
        run(*common, *flags, code=2)
    found = run(*common, "--skip-malformed", "--allow-missing", "--allow-duplicates")
    assert found["windows"] == 99 + 62
    assert len(found["skipped"]) == 2
    run("data", "index", manifest, "--out", out, "--json", code=2)
    run(*common, "--remap", "nonsense", code=2)


def test_index_root_and_remap(manifest: Path, tmp_path: Path) -> None:
    other = tmp_path / "elsewhere" / "mix.txt"
    other.parent.mkdir()
    other.write_text(manifest.read_text())
    common = ("--sequence-length", 16, "--vocab-size", 1000, "--out", tmp_path / "i.json", "--json")
    run("data", "index", other, *common, code=2)
    direct = run("data", "index", other, *common, "--root", tmp_path)
    mapped = run("data", "index", other, *common, "--root", "gs://b", "--remap", f"gs://b={tmp_path}")
    assert direct["fingerprint"] == mapped["fingerprint"]


def test_plan_audit(manifest: Path) -> None:
    plan = ("data", "audit", "--index", manifest, "--recipe", TOY, *overrides())
    found = run(*plan, "--schedule", "4 hosts to step 7, then 2 hosts to step 21, then 1", "--json")
    assert found["clean"]
    assert (found["read_once"], found["read_twice"], found["missed"]) == (120, 0, 0)
    assert [epoch["unread_dropped_tail"] for epoch in found["epochs"]] == [3, 3]
    assert [len(epoch["dropped_windows"]) for epoch in found["epochs"]] == [3, 3]
    assert "dropped tail: windows " in run(*plan)
    assert "every window of these steps exactly once" in run(*plan)
    run(*plan, "--schedule", "3 hosts", code=2)


def test_run_audit_clean_and_not(finished: Path) -> None:
    found = run("data", "audit", "--run", finished, "--json")
    assert found["clean"]
    assert found["read_once"] == 120
    path = finished / "ledger/process-00001.ledger"
    content = path.read_bytes()
    path.write_bytes(content[: 32 * 10] + content[32 * 13 :])
    text = run("data", "audit", "--run", finished, code=1)
    assert "steps 9-11, hosts 1: rows read by nobody: 2-3" in text
    assert "NOT every window exactly once" in text


def test_a_runs_audit_is_kept_in_its_folder_and_a_failed_one_changes_nothing(finished: Path, manifest: Path) -> None:
    printed = run("data", "audit", "--run", finished, "--json")
    kept = read_audit(finished)
    assert kept.model_dump(mode="json") == printed
    (manifest.parent / "other.txt").write_text(manifest.read_text().splitlines()[0] + "\n")
    run("data", "audit", "--run", finished, "--index", manifest.parent / "other.txt", "--json", code=2)
    assert read_audit(finished) == kept


def test_run_audit_refuses_another_index(finished: Path, manifest: Path) -> None:
    lines = manifest.read_text().splitlines()
    (manifest.parent / "other.txt").write_text("\n".join(lines[::-1]))
    found = run("data", "audit", "--run", finished, "--index", manifest.parent / "other.txt", "--json", code=2)
    assert "fingerprint" in found["error"]["found"]
    run("data", "audit", "--run", finished / "gone", "--json", code=2)
    run("data", "audit", "--json", code=2)


def test_which_and_show(finished: Path) -> None:
    found = run("data", "which", finished, "--step", 25, "--json")
    assert (found["epoch"], found["batch_of_epoch"]) == (2, 0)
    assert [window["row"] for window in found["windows"]] == [0, 1, 2, 3]
    part = found["windows"][0]["parts"][0]
    tokens = np.fromfile(part["path"], "<u2")[part["first"] : part["last"] + 1]
    shown = run("data", "show", "--run", finished, "--window", found["windows"][0]["window"], "--json")
    assert [token for document in shown["documents"] for token in document["ids"]] == tokens.tolist()
    assert "row 3: window" in run("data", "which", finished, "--step", 1)
    run("data", "which", finished, "--step", 0, code=2)
    run("data", "show", "--run", finished, "--window", 99, code=2)


@pytest.mark.reference
def test_show_decodes(finished: Path, tiny: Path) -> None:
    pytest.importorskip("tokenizers")
    tokenizer = tiny / "tokenizer/tokenizer.json"
    shown = run("data", "show", "--run", finished, "--window", 5, "--tokenizer", tokenizer, "--json")
    assert all(isinstance(document["text"], str) and document["text"] for document in shown["documents"])
    run("data", "show", "--run", finished, "--window", 5, "--tokenizer", tiny / "README.md", code=2)


def test_a_mix_and_its_change(finished: Path, manifest: Path, tmp_path: Path) -> None:
    mix, out = tmp_path / "mix.yaml", tmp_path / "mixed.json"
    mix.write_text(
        "requested_tokens: 320\nsources:\n"
        "- {name: web, labels: [web], target_ratio: 0.75}\n- {name: code, labels: [code], target_ratio: 0.25}\n"
    )
    common = ("data", "index", manifest, "--recipe", TOY, *overrides(), "--mix", mix, "--out", out, "--json")
    assert run(*common)["windows"] == 20
    found = run(*common, "--continue-run", finished, "--step", 10)
    assert found["windows"] == 99 + 20
    recipe = load_recipe(TOY, [*SETS, "data.order.max_target_length_tokens=null"])
    index = load_index(out, recipe.data, 1000)
    order = make_order(index.order_phases, recipe.data)
    read = np.concatenate([index.physical(order.batch_ids(k)) for k in range(15)])
    assert len(set(read.tolist())) == 60
