"""Bad paths, numbers, files and disks: one clear error, exit 2, and nothing half-written."""

import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from data_makers import index_of, make_data, write_tokens
from typer.testing import CliRunner

from ectype.cli.main import app
from ectype.data.index import write_index
from ectype.data.ledger import Ledger
from ectype.data.order import make_order
from ectype.data.packed import open_packed
from ectype.errors import EctypeError
from ectype.recipe.load import load_recipe, parse_remap, with_inputs
from ectype.recipe.spec import Packing

LENGTHS = ("--sequence-length", "16", "--vocab-size", "1000")


def run(*words: str | Path, code: int = 0) -> Any:
    result = CliRunner().invoke(app, [*map(str, words), "--json"])
    assert result.exit_code == code, result.output + result.stderr
    return json.loads(result.stdout)


def refused(*words: str | Path) -> str:
    """What was found wrong, of a call that must end in exit 2 and leave no file."""
    return run(*words, code=2)["error"]["found"]


@contextmanager
def disk_with_room(size_bytes: int) -> Iterator[None]:
    """No file may grow beyond `size_bytes`, as on a disk that is nearly full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def files_below(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


@pytest.fixture
def manifest(corpus: Callable[..., list[Path]], tmp_path: Path) -> Path:
    corpus(160, 90)
    (tmp_path / "mix.txt").write_text("web,f0.npy\nweb,f1.npy\n")
    return tmp_path / "mix.txt"


@pytest.mark.parametrize("out", ["mix.txt/i.json", "taken", "n" * 300, "."])
def test_an_output_that_can_not_be_written(manifest: Path, tmp_path: Path, out: str) -> None:
    (tmp_path / "taken").mkdir()
    before = files_below(tmp_path)
    assert "can't write" in refused("data", "index", manifest, *LENGTHS, "--out", tmp_path / out)
    assert files_below(tmp_path) == before


@pytest.mark.parametrize("old", [None, "precious"])
def test_a_full_disk_leaves_the_old_index(manifest: Path, tmp_path: Path, old: str | None) -> None:
    out = tmp_path / "i.json"
    if old is not None:
        out.write_text(old)
    before = files_below(tmp_path)
    with disk_with_room(200):
        assert "File too large" in refused("data", "index", manifest, *LENGTHS, "--out", out)
    assert files_below(tmp_path) == before
    assert old is None or out.read_text() == old


def test_a_full_disk_leaves_no_order_and_no_plan(tmp_path: Path) -> None:
    documents, rule, cache = write_tokens(tmp_path / "d.npy", [5, 6, 0] * 500), Packing(), tmp_path / "cache"
    data = make_data(16, 2, packing=rule)
    with disk_with_room(100):
        with pytest.raises(EctypeError, match=r"order .*File too large"):
            make_order(1000, data, cache).batch_ids(0)
        with pytest.raises(EctypeError, match=r"packing plan .*(File too large|requested)"):
            open_packed(index_of([documents]), data, rule, cache)
    assert [name for name in files_below(cache) if not name.endswith(".lock")] == []
    assert len(make_order(1000, data, cache).batch_ids(0)) == 2


def test_a_full_disk_is_a_clear_error_of_the_ledger_and_the_next_start_goes_on(tmp_path: Path) -> None:
    order = make_order(1000, make_data())
    ledger = Ledger(tmp_path, 0, 1)
    ledger.begin(0)
    ledger.append(0, np.arange(2), order.batch_ids(0))
    with disk_with_room(32 * 2 + 5), pytest.raises(EctypeError, match=r"ledger .*File too large"):
        ledger.flush()
    again = Ledger(tmp_path, 0, 1)
    again.begin(0)
    again.append(0, np.arange(2), order.batch_ids(0))
    again.flush()
    assert (tmp_path / "ledger/process-00000.ledger").stat().st_size % 32 == 0


def test_a_killed_build_leaves_nothing_that_stays(tmp_path: Path) -> None:
    """kill -9 while an order is written: no order, and the next build removes what was left."""
    program = (
        "import os, signal, sys; from pathlib import Path; from ectype.data import orderfile; import numpy as np\n"
        "orderfile.os.fsync = lambda _: os.kill(os.getpid(), signal.SIGKILL)\n"
        "orderfile.open_or_build(Path(sys.argv[1]), 1000, lambda: np.arange(1000, dtype=np.uint32))\n"
    )
    path = tmp_path / "order.u32"
    for _ in range(2):
        assert subprocess.run([sys.executable, "-c", program, str(path)], check=False).returncode == -signal.SIGKILL
        assert not path.exists()
    left = [name for name in files_below(tmp_path) if not name.endswith(".lock")]
    assert len(left) == 1, left
    subprocess.run([sys.executable, "-c", program.replace("SIGKILL", "SIGCHLD"), str(path)], check=True)
    assert [name for name in files_below(tmp_path) if not name.endswith(".lock")] == ["order.u32"]


def test_an_interrupt_in_the_middle_of_a_build_ends_the_program_soon(tmp_path: Path) -> None:
    """NumPy's shuffle of a large order does not look at signals; a user's Ctrl-C must not wait for it."""
    write_index(index_of([write_tokens(tmp_path / "t.npy", np.full(2000, 5))], 2), tmp_path / "i.json")
    program = (
        "import sys, numpy as np; import ectype.data.order as order\n"
        "real = order.shuffled_range\n"
        "order.shuffled_range = lambda units, seed: print('building', file=sys.stderr, flush=True) or "
        "real(100_000_000, seed)[:units].copy()\n"
        "from ectype.cli.main import app; app()\n"
    )
    sets = ("data.sequence_length_tokens=2", "data.order.max_target_length_tokens=null", "model.vocab_size=1000")
    command = [
        sys.executable,
        "-c",
        program,
        "data",
        "audit",
        "--recipe",
        "toy-calm",
        "--index",
        str(tmp_path / "i.json"),
    ]
    command += ["--order-cache", str(tmp_path / "cache"), *(word for item in sets for word in ("--set", item))]
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as process:
        assert process.stderr is not None
        assert any("building" in line for line in process.stderr)
        time.sleep(0.5)
        process.send_signal(signal.SIGINT)
        sent = time.monotonic()
        said = process.stderr.read()
        assert process.wait(timeout=60) == 75, said
        assert time.monotonic() - sent < 10
    assert "nothing half-written" in said
    assert not list(tmp_path.glob("cache/*.u32"))


@pytest.mark.parametrize(
    ("options", "words"),
    [(("--vocab-size", "0"), "vocab_size 0"), (("--max-target-length", "0"), "max target length 0"),
     (("--sequence-length", "-5"), "sequence length -5"), (("--sequence-length", str(10**30)), "hold no window"),
     (("--vocab-size", str(2**64)), "vocab_size"), (("--dtype", "float"), "unknown dtype"),
     (("--remap", "=b"), "remap '=b'"), (("--remap", "gs://b="), "remap 'gs://b='"),
     (("--set", "duration_steps=3"), "--set without --recipe"), (("--step", "3"), "--step without --continue-run"),
     (("--batch-windows", "4"), "--batch-windows without --mix"), (("--continue-run", "r"), "without --mix")],
)  # fmt: skip
def test_numbers_and_options_that_make_no_sense(
    manifest: Path, tmp_path: Path, options: tuple[str, str], words: str
) -> None:
    asked = dict(zip(LENGTHS[::2], LENGTHS[1::2], strict=True)) | {options[0]: options[1]}
    flat = [word for pair in asked.items() for word in pair]
    assert words in refused("data", "index", manifest, *flat, "--out", tmp_path / "i.json")
    assert not (tmp_path / "i.json").exists()


def test_names_in_any_script(tmp_path: Path) -> None:
    write_tokens(tmp_path / "täst/fü 日本.npy", range(2, 66))
    (tmp_path / "mix.txt").write_text("wéb,täst/fü 日本.npy\n", encoding="utf-8")
    out = tmp_path / "índice.json"
    assert run("data", "index", tmp_path / "mix.txt", *LENGTHS, "--out", out)["windows"] == 4
    assert run("data", "index", out, *LENGTHS, "--out", tmp_path / "again.json")["windows"] == 4


def test_an_index_is_written_anew_from_an_index(manifest: Path, tmp_path: Path) -> None:
    """A MaxText index says nothing of content; ours made of it tells a replaced file by name."""
    entries = [
        {
            "path": f"gs://b/f{n}.npy",
            "label": "web",
            "n_tokens": size,
            "n_instances": size // 16,
            "instance_offset": first,
        }
        for n, (size, first) in enumerate(((160, 0), (90, 10)))
    ]
    value = {"format_version": "1", "sequence_length": 16, "dtype": "uint16", "total_instances": 15, "files": entries}
    (tmp_path / "theirs.json").write_text(json.dumps(value))
    make = ("data", "index", tmp_path / "theirs.json", "--remap", f"gs://b={tmp_path}", "--out", tmp_path / "ours.json")
    found = run(*make, *LENGTHS)
    direct = run("data", "index", manifest, *LENGTHS, "--out", tmp_path / "direct.json")
    assert found["fingerprint"] == direct["fingerprint"]
    assert "windows of 16 tokens" in refused(*make, "--sequence-length", "8", "--vocab-size", "1000")
    assert "uint16" in refused(*make, *LENGTHS, "--dtype", "uint32")
    write_tokens(tmp_path / "f1.npy", range(500, 590))
    assert "f1.npy was replaced" in refused("data", "index", tmp_path / "ours.json", *LENGTHS, "--out", tmp_path / "x")


def test_a_plan_reads_what_training_would_read(manifest: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """OLMO_INDEX_PATH names the index, and --remap its files, as for `ectype train`; an empty --index is no path."""
    (tmp_path / "far.txt").write_text("web,gs://b/f0.npy\nweb,gs://b/f1.npy\n")
    sets = ("data.sequence_length_tokens=16", "data.global_batch_windows=4", "duration_steps=6", "landmarks=[]",
            "data.order.max_target_length_tokens=null")  # fmt: skip
    plan = ("data", "audit", "--recipe", "toy-calm", *(word for item in sets for word in ("--set", item)))
    monkeypatch.setenv("OLMO_INDEX_PATH", str(tmp_path / "far.txt"))
    assert "missing" in refused(*plan) or "fsspec" in refused(*plan) or "gcsfs" in refused(*plan)
    found = run(*plan, "--remap", f"gs://b={tmp_path}")
    assert found["epochs"][0]["windows"] == 15
    assert run(*plan, "--set", f"inputs.remap=['gs://b={tmp_path}']")["fingerprint"] == found["fingerprint"]
    assert "empty path" in refused(*plan, "--index", "")
    refused(*plan, "--index", tmp_path / "gone.json")


def test_remap_is_kept_with_the_recipe_and_the_later_item_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    recipe = load_recipe("toy-calm", ["inputs.remap=['gs://b=old', 'gs://c=gs://d']"])
    kept = with_inputs(recipe, remap=["gs://b=new"], index="i.json")
    assert kept.inputs.remap == (f"gs://b={tmp_path}/new", "gs://c=gs://d")
    assert kept.inputs.index == f"{tmp_path}/i.json"
    assert with_inputs(kept) == kept
    for item in ("", "=", "a", "a=", "=b"):
        with pytest.raises(EctypeError, match="FROM=TO"):
            parse_remap([item])


def test_a_step_beyond_the_run_is_refused(manifest: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    sets = ["data.sequence_length_tokens=16", "data.global_batch_windows=4", "duration_steps=6", "landmarks=[]",
            "data.order.max_target_length_tokens=null", f"inputs.index={manifest}"]  # fmt: skip
    from ectype.recipe.load import to_yaml

    (folder / "recipe.yaml").write_text(to_yaml(load_recipe("toy-calm", sets)))
    assert run("data", "which", folder, "--step", "6")["epoch"] == 2
    for step in ("0", "-1", "7", "9" * 30):
        assert f"step {step}" in refused("data", "which", folder, "--step", step)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs a user whose rights can be dropped")
def test_files_without_access_rights_are_named(manifest: Path, tmp_path: Path) -> None:
    """As another user: an unreadable token file, and a folder that takes no output."""
    for path in (tmp_path, *tmp_path.parents):
        if not path.stat().st_mode & 0o001:
            pytest.skip("the temporary folder is closed to other users")
    (tmp_path / "f1.npy").chmod(0)
    program = (
        "import os, sys; os.setgid(65534); os.setuid(65534); from ectype.cli.main import app\n"
        "app(sys.argv[1:], standalone_mode=True)\n"
    )
    for out, words in ((tmp_path / "i.json", "f1.npy"), (tmp_path / "i.json", "can't write")):
        command = [sys.executable, "-c", program, "data", "index", str(manifest), *LENGTHS, "--out", str(out)]
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
        assert ended.returncode == 2, ended.stderr
        assert words in ended.stderr
        assert "Permission denied" in ended.stderr
        assert not out.exists()
        (tmp_path / "f1.npy").chmod(0o644)
