"""Two thousand broken manifests, indexes, token files and ledgers: each is read, or refused with a clear error."""

import contextlib
import gzip
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from data_makers import index_of, make_data, write_tokens

from ectype.data.audit_run import audit_run
from ectype.data.index import load_index, write_index
from ectype.data.ledger import Ledger
from ectype.data.loader import BatchReader
from ectype.data.mixture import Mixture, Source, load_mixture, mix_index
from ectype.data.order import make_order
from ectype.data.packed import plan_packing
from ectype.data.source import open_source
from ectype.data.windows import WindowReader
from ectype.errors import EctypeError
from ectype.recipe.spec import Packing

ROUNDS = 500
DATA = make_data(16, 2)
ODD_VALUES = [
    None,
    True,
    -1,
    0,
    1,
    2**40,
    2**63,
    2**70,
    1.5,
    1e400,
    "",
    "x",
    "0" * 64,
    [],
    {},
    [[]],
    "../f1.npy",
    "\x00",
]


def mutated(generator: np.random.Generator, content: bytes) -> bytes:
    """`content` with a few bytes changed, cut, doubled or inserted."""
    data = bytearray(content)
    for _ in range(int(generator.integers(1, 5))):
        if not data:
            break
        start = int(generator.integers(0, len(data)))
        stop = min(len(data), start + int(generator.integers(1, 12)))
        match int(generator.integers(0, 5)):
            case 0:
                data[start:stop] = generator.integers(0, 256, stop - start, np.uint8).tobytes()
            case 1:
                del data[start:stop]
            case 2:
                del data[start:]
            case 3:
                data[start:start] = data[start:stop]
            case _:
                data[start:start] = generator.choice([b"\r\n", b",", b"\x00", b"{", b'"', b"\xef\xbb\xbf", b"9", b"-"])
    return bytes(data)


def odd_json(generator: np.random.Generator, value: dict[str, object]) -> bytes:
    """`value` with one field, at any depth, replaced, removed or doubled."""
    value = json.loads(json.dumps(value))
    node: object = value
    while True:
        keys = list(node) if isinstance(node, dict) else list(range(len(node)))  # type: ignore[arg-type, call-overload]
        if not keys:
            break
        key = keys[int(generator.integers(0, len(keys)))]
        child = node[key]  # type: ignore[index]
        if isinstance(child, dict | list) and child and generator.random() < 0.7:
            node = child
            continue
        if generator.random() < 0.2:
            del node[key]  # type: ignore[attr-defined]
        else:
            node[key] = ODD_VALUES[int(generator.integers(0, len(ODD_VALUES)))]  # type: ignore[index]
        break
    return json.dumps(value).encode()


def survives(path: Path) -> bool:
    """Whether the index is read and its first and last windows, too; False when it was refused clearly."""
    try:
        index = load_index(path, DATA, 1000)
        tokens = WindowReader(index).read(np.array([0, index.windows - 1]))
        reader = BatchReader(open_source(index, DATA)[0], make_order(index.order_phases, DATA), DATA, None)
        reader.read(0)
    except EctypeError as error:
        refused = error
    else:
        assert tokens.shape == (2, 16)
        return True
    assert refused.found
    assert refused.expected
    assert refused.mend
    return False


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    generator = np.random.default_rng(0)
    return [
        write_tokens(tmp_path / f"f{n}.npy", generator.integers(0, 1000, size)) for n, size in enumerate((70, 33, 0))
    ]


def test_manifests(files: list[Path], tmp_path: Path) -> None:
    generator = np.random.default_rng(1)
    content = b"\xef\xbb\xbf# mix\r\nweb,f0.npy\r\n\r\nf1.npy\r\ncode,f2.npy\r\n"
    read = 0
    for _ in range(ROUNDS):
        (tmp_path / "mix.txt").write_bytes(mutated(generator, content))
        read += survives(tmp_path / "mix.txt")
    assert ROUNDS / 20 < read < ROUNDS


@pytest.mark.parametrize("form", ["own", "maxtext"])
def test_index_json(files: list[Path], tmp_path: Path, form: str) -> None:
    generator = np.random.default_rng(2)
    index = index_of(files)
    if form == "own":
        index = mix_index(
            index, Mixture(requested_tokens=64, sources=(Source(name="a", target_ratio=1, paths=("*",)),)), 2
        )
        write_index(index, tmp_path / "index.json")
        value = json.loads((tmp_path / "index.json").read_text())
    else:
        entries = [
            {"path": f.path, "label": "", "n_tokens": f.tokens, "n_instances": f.windows,
             "instance_offset": f.first_window}
            for f in index.files
        ]  # fmt: skip
        value = {
            "format_version": "1",
            "sequence_length": 16,
            "dtype": "uint16",
            "total_instances": 6,
            "files": entries,
        }
    (tmp_path / "fuzzed.json").write_text(json.dumps(value))
    assert survives(tmp_path / "fuzzed.json")
    read = 0
    for number in range(ROUNDS):
        content = odd_json(generator, value) if number % 2 else mutated(generator, json.dumps(value).encode())
        (tmp_path / "fuzzed.json").write_bytes(content)
        read += survives(tmp_path / "fuzzed.json")
    assert read < ROUNDS / 2


def test_token_files(tmp_path: Path) -> None:
    generator = np.random.default_rng(3)
    np.save(tmp_path / "plain.npy", generator.integers(0, 1000, 100).astype("<u2"))
    content, fuzzed = (tmp_path / "plain.npy").read_bytes(), tmp_path / "t/f.npy"
    fuzzed.parent.mkdir()
    read = 0
    for number in range(ROUNDS):
        fuzzed.write_bytes(mutated(generator, content if number % 2 else content[128:]))
        read += survives(fuzzed.parent)
    assert 10 < read < ROUNDS


def test_files_that_change_after_indexing(tmp_path: Path) -> None:
    generator = np.random.default_rng(4)
    content = generator.integers(0, 1000, 100).astype("<u2").tobytes()
    (tmp_path / "f.npy").write_bytes(content)
    write_index(index_of([tmp_path / "f.npy"]), tmp_path / "index.json")
    for _ in range(ROUNDS // 2):
        changed = mutated(generator, content)
        (tmp_path / "f.npy").write_bytes(changed)
        assert survives(tmp_path / "index.json") == (changed == content)


def test_mixtures(files: list[Path], tmp_path: Path) -> None:
    generator = np.random.default_rng(6)
    content = (
        b"requested_tokens: 64\nsources:\n- {name: a, target_ratio: 0.75, labels: [web], max_repetition_ratio: 9}\n"
        b"- {name: b, target_ratio: 0.25, paths: ['*f1*'], max_source_fraction: 1.0}\n"
    )
    index = replace(index_of(files), files=tuple(replace(file, label="web") for file in index_of(files).files))
    read = 0
    for number in range(ROUNDS):
        (tmp_path / "mix.yaml").write_bytes(mutated(generator, content) if number else content)
        with contextlib.suppress(EctypeError):
            read += mix_index(index, load_mixture(tmp_path / "mix.yaml"), 2).windows > 0
    assert 1 < read < ROUNDS


def test_lists_of_documents(tmp_path: Path) -> None:
    """The `.csv.gz` beside a remote file: its lines and its compressed bytes."""
    memory = pytest.importorskip("fsspec").filesystem("memory")
    generator = np.random.default_rng(7)
    tokens = np.resize(np.array([5, 6, 7, 0, 8, 0]), 600)
    memory.pipe_file("/fuzzed/a.npy", tokens.astype("<u2").tobytes())
    local = index_of([write_tokens(tmp_path / "a.npy", tokens)])
    remote = replace(local, files=(replace(local.files[0], path="memory://fuzzed/a.npy"),))
    ends = np.flatnonzero(tokens == 0) + 1
    lines = "".join(f"{a},{b},x\n" for a, b in zip([0, *ends[:-1]], ends, strict=True)).encode()
    rule, read = Packing(), 0
    for number in range(ROUNDS // 2):
        changed = gzip.compress(mutated(generator, lines)) if number % 2 else mutated(generator, gzip.compress(lines))
        memory.pipe_file("/fuzzed/a.csv.gz", changed)
        with contextlib.suppress(EctypeError):
            read += len(plan_packing(remote, make_data(packing=rule), rule).lengths) > 0
    assert 1 < read < ROUNDS / 2


def test_ledgers(tmp_path: Path) -> None:
    generator = np.random.default_rng(5)
    order = make_order(100, make_data(16, 4))
    for host in (0, 1):
        ledger = Ledger(tmp_path, host, 2)
        for first in (0, 5):
            ledger.begin(first)
            for k in range(first, 10):
                ledger.append(k, np.arange(2) + 2 * host, order.batch_ids(k)[2 * host : 2 * host + 2])
            ledger.flush()
    path = tmp_path / "ledger/process-00001.ledger"
    content = path.read_bytes()
    assert audit_run(tmp_path, order).clean
    clean = 0
    for _ in range(ROUNDS // 2):
        path.write_bytes(mutated(generator, content))
        with contextlib.suppress(EctypeError):
            clean += audit_run(tmp_path, order, checkpoint_step=10).clean
    assert clean < ROUNDS / 20
