"""Index building and reading: manifests, folders, MaxText's and our own JSON, changed files, remote paths."""

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from data_makers import index_of, make_data, write_tokens

from ectype.data.index import entries_of, load_index, read_index_json, write_index
from ectype.data.manifest import parse_manifest
from ectype.data.mixture import Mixture, Source, mix_index
from ectype.data.storage import remap
from ectype.data.tokenindex import TokenIndex, build_index, verify
from ectype.data.width import dtype_of_id_space, looks_narrower, looks_wider
from ectype.data.windows import WindowReader
from ectype.errors import EctypeError

DATA = make_data()


def manifest(folder: Path, text: str | bytes) -> Path:
    path = folder / "mix.txt"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def test_manifest_with_byte_order_mark_crlf_blank_and_comment_lines(corpus, tmp_path: Path) -> None:
    corpus(40, 33)
    path = manifest(tmp_path, b"\xef\xbb\xbf# a mix\r\nweb , f0.npy\r\n\r\n   \r\nf1.npy\r\n")
    index = load_index(path, DATA, 1000)
    assert [(Path(f.path).name, f.label, f.windows) for f in index.files] == [("f0.npy", "web", 2), ("f1.npy", "", 2)]


def test_tokenizer_placeholder() -> None:
    entries, _ = parse_manifest(b"a,x/{TOKENIZER}/0.npy", "m")
    assert entries[0].path == "x/allenai/dolma3-tokenizer/0.npy"
    entries, _ = parse_manifest(b"a,x/{TOKENIZER}/0.npy", "m", tokenizer="toy")
    assert entries[0].path == "x/toy/0.npy"


@pytest.mark.parametrize("line", ["a,b,c.npy", ",a.npy", "a,", "a,x/", "a,{VOCAB}/0.npy", "a,{TOKENIZER/0.npy", "a\tb"])
def test_malformed_lines_are_named_and_may_be_skipped(line: str) -> None:
    content = f"# head\n{line}\nok.npy\n".encode()
    with pytest.raises(EctypeError, match="1 malformed lines: line 2"):
        parse_manifest(content, "m")
    entries, faults = parse_manifest(content, "m", skip_malformed=True)
    assert [entry.path for entry in entries] == ["ok.npy"]
    assert len(faults) == 1


@pytest.mark.parametrize("content", [b"", b"\n# only a comment\n", b"\xff\xfe\x00"])
def test_manifest_without_entries_is_an_error(content: bytes) -> None:
    with pytest.raises(EctypeError):
        parse_manifest(content, "m")


def test_missing_and_duplicate_files_are_errors_unless_allowed(corpus, tmp_path: Path) -> None:
    corpus(40)
    entries, _ = entries_of(str(manifest(tmp_path, "f0.npy\ngone.npy\nf0.npy\n")))
    options = {"sequence_length_tokens": 16, "vocab_size": 1000}
    with pytest.raises(EctypeError, match=r"listed twice.*line 1 and line 3"):
        build_index(entries, **options)
    with pytest.raises(EctypeError, match=r"1 of 3 files are missing.*gone.npy \(line 2\)"):
        build_index(entries, allow_duplicates=True, **options)
    index = build_index(entries, allow_duplicates=True, allow_missing=True, **options)
    assert [file.windows for file in index.files] == [2, 2]
    assert index.skipped == (f"missing: {tmp_path}/gone.npy (line 2)",)


def test_one_file_spelled_in_two_ways_is_a_duplicate(corpus, tmp_path: Path) -> None:
    corpus(40)
    with pytest.raises(EctypeError, match="2 files are listed twice"):
        load_index(manifest(tmp_path, "f0.npy\n./f0.npy\nx/..//f0.npy\n"), DATA, 1000)


@pytest.mark.parametrize("kind", ["folder", "pipe", "device"])
def test_what_is_no_regular_file_is_refused_by_name(tmp_path: Path, kind: str) -> None:
    """A pipe's size reads as 0, and would pass for an empty file."""
    path = Path("/dev/zero") if kind == "device" else tmp_path / "a.npy"
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    with pytest.raises(EctypeError, match=f"{path} is no regular file"):
        load_index(manifest(tmp_path, f"{path}\n"), DATA, 1000)


def test_a_folder_skips_folders_and_names_broken_links(corpus, tmp_path: Path) -> None:
    corpus(40)
    (tmp_path / "d.npy").mkdir()
    assert len(load_index(tmp_path, DATA, 1000).files) == 1
    (tmp_path / "link.npy").symlink_to("gone")
    with pytest.raises(EctypeError, match=r"1 of 2 files are missing: .*link\.npy"):
        load_index(tmp_path, DATA, 1000)


def test_folder_is_read_in_sorted_order(tmp_path: Path) -> None:
    for name in ("b/1.npy", "b/0.npy", "a/9.npy"):
        write_tokens(tmp_path / "t" / name, range(2, 34))
    index = load_index(tmp_path / "t", DATA, 1000)
    assert [(Path(file.path).name, file.label) for file in index.files] == [
        ("9.npy", "a"),
        ("0.npy", "b"),
        ("1.npy", "b"),
    ]


def test_real_npy_headers_are_skipped_by_index_and_reader(tmp_path: Path) -> None:
    tokens = np.arange(2, 42, dtype=np.uint16)
    np.save(tmp_path / "a.npy", tokens)
    plain = write_tokens(tmp_path / "b.npy", tokens)
    index = index_of([tmp_path / "a.npy", plain])
    assert [(file.tokens, file.windows) for file in index.files] == [(40, 2), (40, 2)]
    read = WindowReader(index).read(np.arange(4))
    assert (read[:2] == read[2:]).all()
    assert read[0].tolist() == list(range(2, 18))


@pytest.mark.parametrize(
    ("array", "words"),
    [(np.arange(40, dtype=np.uint32), "header says <u4"), (np.arange(40, dtype=np.float32), "header says <f4"),
     (np.arange(40, dtype=">u2"), "header says >u2")],
)  # fmt: skip
def test_headers_that_contradict_are_refused(tmp_path: Path, array: np.ndarray, words: str) -> None:
    np.save(tmp_path / "a.npy", array)
    with pytest.raises(EctypeError, match=words):
        index_of([tmp_path / "a.npy"])


def test_a_cut_npy_with_header_is_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.arange(2, 42, dtype=np.uint16))
    content = (tmp_path / "a.npy").read_bytes()
    (tmp_path / "a.npy").write_bytes(content[:-2])
    with pytest.raises(EctypeError, match="header announces"):
        index_of([tmp_path / "a.npy"])


def _written(corpus: Callable[..., list[Path]], tmp_path: Path, *sizes: int) -> tuple[Path, TokenIndex]:
    index = index_of(corpus(*sizes))
    write_index(index, tmp_path / "index.json")
    return tmp_path / "index.json", index


def test_own_index_reads_back_and_moves_with_its_folder(corpus, tmp_path: Path) -> None:
    path, index = _written(corpus, tmp_path, 40, 33)
    again = load_index(path, DATA, 1000)
    assert again.files == index.files
    assert again.fingerprint == index.fingerprint
    moved = shutil.copytree(tmp_path, tmp_path.parent / "elsewhere")
    assert load_index(moved / "index.json", DATA, 1000).fingerprint == index.fingerprint


@pytest.mark.parametrize(
    ("change", "words"),
    [(lambda p: p.write_bytes(p.read_bytes()[:-2]), "f1.npy was cut from 33 to 32 tokens"),
     (lambda p: p.write_bytes(p.read_bytes() + b"\5\0"), "f1.npy has grown from 33 to 34 tokens"),
     (lambda p: write_tokens(p, range(100, 133)), "f1.npy was replaced"),
     (lambda p: p.unlink(), "f1.npy is missing")],
)  # fmt: skip
def test_changed_files_are_refused_by_name(
    corpus, tmp_path: Path, change: Callable[[Path], object], words: str
) -> None:
    path, index = _written(corpus, tmp_path, 40, 33, 48)
    change(tmp_path / "f1.npy")
    with pytest.raises(EctypeError, match=rf"1 of 3 token files changed.*{words}"):
        load_index(path, DATA, 1000)
    with pytest.raises(EctypeError, match=words):
        verify(index)
    assert load_index(path, DATA, 1000, open_files=False).windows == index.windows


def test_identity_is_content_order_width_and_length_not_paths(corpus, tmp_path: Path) -> None:
    first, second = corpus(40, 48)
    fingerprint = index_of([first, second]).fingerprint
    copies = [Path(shutil.copy(path, tmp_path / f"copy-{path.name}")) for path in (first, second)]
    assert index_of(copies).fingerprint == fingerprint
    wide = [write_tokens(tmp_path / f"w{path.name}", np.fromfile(path, "<u2"), "<u4") for path in (first, second)]
    others = [
        index_of([second, first]), index_of([first]), index_of([first, second], length=8),
        index_of(wide, dtype="uint32"), index_of([first, second], length=8, max_target_length_tokens=16),
    ]  # fmt: skip
    assert len({fingerprint, *(index.fingerprint for index in others)}) == 6


def test_index_of_other_lengths_or_id_space_is_refused(corpus, tmp_path: Path) -> None:
    path, _ = _written(corpus, tmp_path, 40)
    with pytest.raises(EctypeError, match="windows of 16 tokens"):
        load_index(path, make_data(length=8), 1000)
    with pytest.raises(EctypeError, match="id space of 1000"):
        load_index(path, DATA, 1001)


@pytest.mark.parametrize("field", ["fingerprint", "dtype", "files", "windows_of_file", "tokens_of_file"])
def test_edited_index_is_refused(corpus, tmp_path: Path, field: str) -> None:
    path, _ = _written(corpus, tmp_path, 40, 33)
    value = json.loads(path.read_text())
    if field.endswith("_of_file"):
        value["files"][0][field.removesuffix("_of_file")] += 1
    else:
        value[field] = {"fingerprint": "0" * 64, "dtype": "uint32", "files": value["files"][::-1]}[field]
    path.write_text(json.dumps(value))
    with pytest.raises(EctypeError):
        load_index(path, DATA, 1000)


def maxtext_index(paths: list[Path], tokens: list[int], length: int = 16, **changes: object) -> bytes:
    counts = [count // length for count in tokens]
    offsets = np.cumsum([0, *counts]).tolist()
    files = [
        {"path": str(path), "label": "web", "n_tokens": count, "n_instances": n, "instance_offset": first}
        for path, count, n, first in zip(paths, tokens, counts, offsets, strict=False)
    ]
    value = {
        "format_version": "1", "sequence_length": length, "dtype": "uint16", "tokenizer": "toy",
        "total_instances": sum(counts), "total_tokens": sum(tokens), "fingerprint": "abc", "files": files,
    }  # fmt: skip
    return json.dumps(value | changes).encode()


def test_maxtext_index_works_as_it_is(corpus, tmp_path: Path) -> None:
    paths = corpus(40, 5, 33)
    (tmp_path / "olmo.json").write_bytes(maxtext_index(paths, [40, 5, 33]))
    index = load_index(tmp_path / "olmo.json", DATA, 1000)
    assert index.fingerprint == index_of(paths).fingerprint
    plan = load_index(tmp_path / "olmo.json", DATA, 1000, open_files=False)
    assert plan.windows == 4
    assert plan.fingerprint.startswith("unopened-")


def test_maxtext_index_is_compared_with_its_files(corpus, tmp_path: Path) -> None:
    paths = corpus(40, 33)
    with pytest.raises(EctypeError, match=r"f1.npy holds 33 tokens .* the index says 49 tokens"):
        read_index_json(maxtext_index(paths, [40, 49]), str(tmp_path / "i.json"), 1000)
    with pytest.raises(EctypeError, match="total_instances"):
        read_index_json(maxtext_index(paths, [40, 33], total_instances=5), str(tmp_path / "i.json"), 1000)
    with pytest.raises(EctypeError, match="unknown dtype 'int16'"):
        read_index_json(maxtext_index(paths, [40, 33], dtype="int16"), str(tmp_path / "i.json"), 1000)
    with pytest.raises(EctypeError, match="format '2'"):
        read_index_json(maxtext_index(paths, [40, 33], format_version="2"), str(tmp_path / "i.json"), 1000)


def test_maxtext_index_that_counted_a_header_as_tokens(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.arange(2, 42, dtype=np.uint16))
    np.save(tmp_path / "b.npy", np.arange(2, 34, dtype=np.uint16))
    size = [(tmp_path / name).stat().st_size // 2 for name in ("a.npy", "b.npy")]
    with pytest.raises(EctypeError, match="header bytes"):
        read_index_json(maxtext_index([tmp_path / "a.npy", tmp_path / "b.npy"], size), str(tmp_path / "i.json"), 1000)


def test_prefixes_match_whole_parts_and_the_longest_wins() -> None:
    prefixes = {"gs://b": "/mnt/b", "gs://b/deep": "/fast", "gs://c/": "/c/"}
    assert remap("gs://b/x.npy", prefixes) == "/mnt/b/x.npy"
    assert remap("gs://b/deep/x.npy", prefixes) == "/fast/x.npy"
    assert remap("gs://b/deeper/x.npy", prefixes) == "/mnt/b/deeper/x.npy"
    assert remap("gs://b2/x.npy", prefixes) == "gs://b2/x.npy"
    assert remap("gs://c/x.npy", prefixes) == "/c/x.npy"
    assert remap("gs://b", prefixes) == "/mnt/b"


def test_prefixes_apply_when_an_index_is_read(corpus, tmp_path: Path) -> None:
    corpus(40)
    index = load_index(manifest(tmp_path, "web,gs://b/f0.npy"), DATA, 1000, prefixes={"gs://b": str(tmp_path)})
    assert index.files[0].path == str(tmp_path / "f0.npy")


def test_prefixes_apply_to_the_index_itself_and_its_segments(corpus, tmp_path: Path) -> None:
    """An index made elsewhere, of a mixture, works with local paths."""
    index = index_of(corpus(64, 64))
    mixture = Mixture(requested_tokens=64, sources=(Source(name="all", target_ratio=1, paths=("*",)),))
    mixed = mix_index(index, mixture, 2)
    files = tuple(replace(file, path=f"gs://mix/t/{Path(file.path).name}") for file in mixed.files)
    write_index(replace(mixed, files=files), tmp_path / "mix.json")
    again = load_index(
        "gs://mix/mix.json", DATA, 1000, prefixes={"gs://mix": str(tmp_path), "gs://mix/t": str(tmp_path)}
    )
    assert again.fingerprint == mixed.fingerprint
    assert [file.path for file in again.files] == [str(tmp_path / "f0.npy"), str(tmp_path / "f1.npy")]


def test_remote_files_are_read_through_fsspec(tmp_path: Path) -> None:
    fsspec = pytest.importorskip("fsspec")
    memory = fsspec.filesystem("memory")
    tokens = np.random.default_rng(1).integers(2, 999, 70_000).astype("<u2")
    memory.pipe_file("/mix/x/0.npy", tokens.tobytes())
    memory.pipe_file("/mix/m.txt", b"web,x/0.npy\n")
    index = load_index("memory://mix/m.txt", DATA, 1000)
    assert index.files[0].path == "memory://mix/x/0.npy"
    assert index.fingerprint == index_of([write_tokens(tmp_path / "0.npy", tokens)]).fingerprint
    assert (WindowReader(index).read(np.array([0, 4000])) == [tokens[:16], tokens[64000:64016]]).all()
    write_index(index, tmp_path / "i.json")
    memory.pipe_file("/mix/x/0.npy", tokens[:-1].tobytes())
    with pytest.raises(EctypeError, match=r"0.npy was cut from 70000 to 69999"):
        load_index(tmp_path / "i.json", DATA, 1000)
    assert load_index("memory://mix/x/", DATA, 1000).windows == 4374


def test_unknown_scheme_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(EctypeError, match="nosuch"):
        load_index(manifest(tmp_path, "nosuch://b/f0.npy"), DATA, 1000)


@pytest.mark.parametrize(
    ("vocab", "name"), [(256, "uint8"), (257, "uint16"), (65536, "uint16"), (65537, "uint32"), (100278, "uint32")]
)
def test_width_comes_from_the_id_space(vocab: int, name: str) -> None:
    assert dtype_of_id_space(vocab) == name


def test_width_that_is_too_narrow_for_the_id_space_is_refused(corpus) -> None:
    with pytest.raises(EctypeError, match="uint16 for 100278 ids"):
        index_of(corpus(40), vocab_size=100278, dtype="uint16")


def test_ids_outside_the_id_space_are_refused(tmp_path: Path) -> None:
    with pytest.raises(EctypeError, match="holds the id 1000, and the id space ends at 999"):
        index_of([write_tokens(tmp_path / "a.npy", [5] * 30 + [1000] + [7] * 30)])


def test_bytes_in_range_are_no_sign_of_bytes(tmp_path: Path) -> None:
    ids = np.random.default_rng(0).integers(1000, 60_000, 400)
    with pytest.raises(EctypeError, match="and the id space ends at 999"):
        index_of([write_tokens(tmp_path / "a.npy", ids)])
    narrow = np.random.default_rng(0).integers(1, 200, 400).astype(np.uint8).view(np.uint16)
    with pytest.raises(EctypeError, match="pairs of uint8, read here as uint16"):
        index_of([write_tokens(tmp_path / "b.npy", narrow)], vocab_size=200, dtype="uint16")


def test_width_is_told_from_reference_files(tiny: Path, tiny_paths: list[Path]) -> None:
    wide = tiny / "tokens/format/tz-uint32.npy"
    with pytest.raises(EctypeError, match="halves of uint32"):
        index_of([wide])
    assert index_of([wide], dtype="uint32").windows == 3760
    for path in tiny_paths:
        tokens = np.fromfile(path, "<u2")
        assert not looks_wider(tokens)
        with pytest.raises(EctypeError, match=r"uint16|divide by 4"):
            index_of([path], dtype="uint32")


def test_true_widths_are_never_suspected() -> None:
    generator = np.random.default_rng(5)
    for vocab in (20, 50, 300, 1000, 50_000, 65_536):
        for size in (2, 6, 8, 64, 4096):
            for _ in range(200):
                assert not looks_wider(generator.integers(0, vocab, size).astype(np.uint16))
    for vocab in (100_278, 200_000):
        ids = generator.integers(0, vocab, 4096).astype(np.uint32)
        assert not looks_narrower(ids, vocab)
        assert looks_wider(ids.view(np.uint16))
        assert looks_narrower(generator.integers(1, 65_536, 4096).astype(np.uint16).view(np.uint32), vocab)
