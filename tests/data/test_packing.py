"""Document packing: OLMo-core's windows bit for bit where its sort leaves no choice, and with its sort here."""

import hashlib
import itertools
import json
from pathlib import Path

import numpy as np
import pytest
from data_makers import index_of, make_data, write_tokens

from ectype.data.documents import document_lengths
from ectype.data.loader import open_loader
from ectype.data.packed import PackedWindows, open_packed
from ectype.data.packing import best_fit, cut_documents, longest_first, permuted_files
from ectype.data.source import open_order
from ectype.data.tokenindex import TokenIndex
from ectype.errors import EctypeError
from ectype.recipe.spec import Packing, RepetitionFilter


def packed(index: TokenIndex, cache: Path, length: int = 256, **rule: object) -> PackedWindows:
    packing = Packing(**rule)  # type: ignore[arg-type]
    return open_packed(index, make_data(length, 8, packing=packing), packing, cache)


def all_windows(source: PackedWindows) -> tuple[np.ndarray, np.ndarray]:
    return source.read(np.arange(len(source.plan.window_firsts) - 1))


@pytest.mark.parametrize("number", [0, 1, 2])
def test_reference_packing_as_far_as_ties_do_not_matter(
    tiny: Path, tiny_paths: list[Path], tmp_path: Path, number: int
) -> None:  # fmt: skip
    """Window count, padding, file order, and the last windows' document lengths do not depend on the order of ties."""
    stored = json.loads((tiny / "components/packed.json").read_text())[number]
    paths = [path for path in tiny_paths if "devil" not in str(path)]
    order = permuted_files(len(paths), 123)
    assert [str(paths[n].relative_to(tiny)) for n in order] == stored["order"]
    group, long = stored["source_group_size"], stored["long_doc_strategy"]
    source = packed(index_of(paths, 256), tmp_path, source_group_size=group, long_documents=long)
    tokens, mask = all_windows(source)
    assert len(tokens) == stored["n_instances"]
    assert int((~mask).sum()) == stored["total_pad"]
    assert [document_lengths(row, 0).tolist() for row in tokens[-4:]] == stored["last4_doc_lens"]


@pytest.mark.reference
@pytest.mark.parametrize(("group", "strategy"), [(1, "truncate"), (3, "fragment"), (8, "truncate")])
def test_equal_to_olmo_core_bit_for_bit(
    tiny_paths: list[Path], tmp_path: Path, group: int, strategy: str, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    core = pytest.importorskip("olmo_core.data")
    dtypes = pytest.importorskip("olmo_core.data.types")
    dataset_module = pytest.importorskip("olmo_core.data.numpy_dataset")
    from concurrent.futures import ThreadPoolExecutor

    monkeypatch.setattr(dataset_module.concurrent.futures, "ProcessPoolExecutor", ThreadPoolExecutor)
    paths = [path for path in tiny_paths if "devil" not in str(path)]
    dataset = core.NumpyPackedFSLDatasetConfig(
        tokenizer=core.TokenizerConfig(vocab_size=1000, eos_token_id=0, pad_token_id=1),
        paths=[str(path) for path in paths], sequence_length=256, dtype=dtypes.NumpyDatasetDType.uint16,
        work_dir=str(tmp_path / "theirs"), generate_doc_lengths=True, source_group_size=group,
        source_permutation_seed=123, long_doc_strategy=core.types.LongDocStrategy(strategy),
    ).build()  # fmt: skip
    dataset.prepare()
    source = packed(index_of(paths, 256), tmp_path, source_group_size=group, long_documents=strategy, ties="numpy")
    tokens, mask = all_windows(source)
    assert len(dataset) == len(tokens)
    for number in (*range(0, len(tokens), 7), len(tokens) - 1):
        item = dataset[number]
        assert (item["input_ids"].numpy() == tokens[number]).all()
        assert (item["label_mask"].numpy() == mask[number]).all()
        assert item["doc_lens"].tolist() == document_lengths(tokens[number], 0).tolist()


@pytest.mark.reference
def test_equal_to_olmo_core_without_ties() -> None:
    """Documents of different lengths: its packer and ours agree with either rule for ties."""
    utils = pytest.importorskip("olmo_core.data.utils")
    generator = np.random.default_rng(0)
    lengths = generator.permutation(np.arange(1, 257))
    ends = np.cumsum(lengths)
    theirs, documents, _ = utils.InstancePacker(256).pack_documents(np.stack([ends - lengths, ends], axis=1))
    for ties in ("stable", "numpy"):
        order = longest_first(lengths, Packing(ties=ties))  # type: ignore[arg-type]
        assert ((ends - lengths)[order] == documents[:, 0]).all()
        chosen, firsts = best_fit(lengths[order], 256)
        assert [chosen[a:b].tolist() for a, b in itertools.pairwise(firsts)] == theirs


def test_ties_keep_file_order() -> None:
    assert longest_first(np.array([3, 5, 3, 5, 5, 1]), Packing()).tolist() == [1, 3, 4, 0, 2, 5]


def test_best_fit_takes_the_least_space_and_the_longest_waiting() -> None:
    documents, firsts = best_fit(np.array([7, 7, 6, 3, 3, 3, 1]), 10)
    groups = [documents[a:b].tolist() for a, b in itertools.pairwise(firsts)]
    assert groups == [[0, 3], [1, 4], [2, 5, 6]]


def test_long_documents() -> None:
    spans = np.array([[0, 25], [25, 35], [35, 36]])
    assert cut_documents(spans, 10, Packing()).tolist() == [[0, 10], [25, 35], [35, 36]]
    fragments = cut_documents(spans, 10, Packing(long_documents="fragment"))
    assert fragments.tolist() == [[0, 10], [10, 20], [20, 25], [25, 35], [35, 36]]


def test_packed_batches_through_the_loader(tmp_path: Path) -> None:
    """Padding is no target, documents are numbered, every document is read exactly once; a repeat of it is filtered."""
    generator = np.random.default_rng(3)
    lengths = generator.integers(1, 40, 200)
    documents = [[*generator.integers(2, 999, n - 1), 0] for n in lengths]
    paths = [write_tokens(tmp_path / f"{n}.npy", np.concatenate(documents[n * 50 : n * 50 + 50])) for n in range(4)]
    rule = Packing(source_group_size=3, source_permutation_seed=5)
    data = make_data(64, 4, packing=rule, document_masks=True, repetition_filter=RepetitionFilter())
    index = index_of(paths, 64)
    order = open_order(index, data, tmp_path / "cache")
    read = []
    with open_loader(
        index, data, first_batch=0, end_batch=order.steps_per_epoch, cache_dir=tmp_path / "cache"
    ) as loader:
        for batch in loader:
            assert batch.target_mask is not None
            assert batch.segment_ids is not None
            assert (batch.tokens[~batch.target_mask] == 1).all()
            padded = (~batch.target_mask).sum(axis=1)
            assert (batch.keep == (padded < 32)).all()
            for row, mask, segments in zip(batch.tokens, batch.target_mask, batch.segment_ids, strict=True):
                read += [tuple(part.tolist()) for part in np.split(row[mask], np.flatnonzero(row[mask] == 0) + 1)][:-1]
                assert segments[-1] == (row[:-1] == 0).sum()
    left = order.dropped_ids(0, 1)
    source = open_packed(index, data, rule, tmp_path / "cache")
    for row, mask in zip(*source.read(left), strict=True):
        read += [tuple(part.tolist()) for part in np.split(row[mask], np.flatnonzero(row[mask] == 0) + 1)][:-1]
    assert sorted(read) == sorted(tuple(int(token) for token in document) for document in documents)


def test_a_plan_is_stored_once_and_keyed_by_content_and_rule(tmp_path: Path) -> None:
    path = write_tokens(tmp_path / "a.npy", np.resize([5, 6, 7, 0], 4000))
    index = index_of([path], 64)
    first = packed(index, tmp_path / "c", 64)
    assert hashlib.sha256(all_windows(first)[0].tobytes()).digest()
    packed(index, tmp_path / "c", 64)
    assert len(list((tmp_path / "c").glob("packed-*/"))) == 1
    packed(index, tmp_path / "c", 64, source_group_size=1)
    assert len([p for p in (tmp_path / "c").glob("packed-*") if p.is_dir()]) == 2


@pytest.mark.parametrize("content", [b"", b"noise", None])
def test_a_damaged_plan_is_refused_by_name(tmp_path: Path, content: bytes | None) -> None:
    index = index_of([write_tokens(tmp_path / "a.npy", np.resize([5, 6, 7, 0], 4000))], 64)
    packed(index, tmp_path / "c", 64)
    part = next((tmp_path / "c").glob("packed-*/starts.npy"))
    part.unlink() if content is None else part.write_bytes(content)
    with pytest.raises(EctypeError, match="packing plan"):
        packed(index, tmp_path / "c", 64)


def test_documents_of_remote_files_come_from_their_lists(tmp_path: Path) -> None:
    import gzip

    memory = pytest.importorskip("fsspec").filesystem("memory")
    tokens = np.resize(np.array([5, 6, 7, 0, 8, 0]), 600)
    memory.pipe_file("/packed/a.npy", tokens.astype("<u2").tobytes())
    index = index_of([write_tokens(tmp_path / "a.npy", tokens)], 64)
    remote = TokenIndex(
        tuple(type(f)(**{**vars(f), "path": "memory://packed/a.npy"}) for f in index.files), index.dtype, 1000, 64
    )  # fmt: skip
    with pytest.raises(EctypeError, match=r"a.csv.gz"):
        packed(remote, tmp_path / "none", 64)
    ends = np.flatnonzero(tokens == 0) + 1
    lines = "".join(f"{a},{b},x\n" for a, b in zip([0, *ends[:-1]], ends, strict=True))
    memory.pipe_file("/packed/a.csv.gz", gzip.compress(lines.encode()))
    ours, theirs = all_windows(packed(index, tmp_path / "l", 64))[0], all_windows(packed(remote, tmp_path / "r", 64))[0]
    assert (ours == theirs).all()
    memory.pipe_file("/packed/a.csv.gz", gzip.compress(b"0,601\n"))
    with pytest.raises(EctypeError, match="documents outside 600 tokens"):
        packed(remote, tmp_path / "bad", 64)


def test_files_without_documents_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(EctypeError, match="hold no document"):
        packed(index_of([write_tokens(tmp_path / "a.npy", [5] * 100)], 64), tmp_path, 64)
