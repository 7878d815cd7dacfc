"""Weighted mixtures: OLMo-core's own shares and windows, and a change of mix that repeats nothing."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from data_makers import index_of, make_data, write_tokens

from ectype.data.audit import audit_plan
from ectype.data.host_stages import parse_host_stages
from ectype.data.index import load_index, write_index
from ectype.data.loader import open_loader
from ectype.data.mixture import Mixture, Source, change_mix_of_run, load_mixture, mix_index
from ectype.data.order import make_order
from ectype.data.tokenindex import TokenIndex
from ectype.data.windows import WindowReader
from ectype.errors import EctypeError

SIZES = {"web/0": 1000, "web/1": 333, "web/2": 100, "code/0": 700, "code/1": 20, "wiki/0": 260}
LENGTH, BATCH = 16, 4


def corpus_index(folder: Path, names: list[str], dtype: str = "<u2") -> TokenIndex:
    generator = np.random.default_rng(0)
    tokens = {name: generator.integers(2, 999, size) for name, size in SIZES.items()}
    return index_of([write_tokens(folder / f"{name}.npy", tokens[name], dtype) for name in names], LENGTH)


def mixture(requested: int, **ratios: tuple[float, float, float]) -> Mixture:
    """Sources by label: target ratio, most repetitions, largest fraction."""
    sources = [
        Source(name=n, labels=(n,), target_ratio=r, max_repetition_ratio=m, max_source_fraction=f)
        for n, (r, m, f) in ratios.items()
    ]
    return Mixture(requested_tokens=requested, sources=tuple(sources))


MIXTURES = [
    mixture(1200, web=(0.6, 1, 1), code=(0.25, 1, 1), wiki=(0.15, 1, 1)),
    mixture(1000, web=(0.5, 1, 0.5), code=(0.5, 1, 1)),
    mixture(2000, web=(0.3, 1, 1), code=(0.3, 1, 1), wiki=(0.4, 4, 1)),
    mixture(64, web=(1.0, 1, 1)),
    mixture(1433, web=(1.0, 1, 1)),
    mixture(3000, wiki=(0.9, 12, 1), web=(0.1, 1, 1)),
]


@pytest.mark.reference
@pytest.mark.parametrize("number", range(len(MIXTURES)))
def test_equal_to_olmo_core(tmp_path: Path, number: int) -> None:
    core, mixes = pytest.importorskip("olmo_core.data"), pytest.importorskip("olmo_core.data.source_mixture")
    dtypes = pytest.importorskip("olmo_core.data.types")
    mix = MIXTURES[number]
    base = corpus_index(tmp_path, list(SIZES))
    paths = {name: [f.path for f in base.files if f.label == name] for name in ("web", "code", "wiki")}
    sources = [
        mixes.SourceMixtureConfig(
            source_name=s.name, target_ratio=s.target_ratio, paths=paths[s.name],
            max_repetition_ratio=s.max_repetition_ratio, max_source_fraction=s.max_source_fraction,
        )
        for s in mix.sources
    ]  # fmt: skip
    config = mixes.SourceMixtureDatasetConfig(
        source_list=mixes.SourceMixtureList(sources=sources), requested_tokens=mix.requested_tokens,
        global_batch_size=BATCH * LENGTH, render_tables=False, quiet=True,
    )  # fmt: skip
    dataset = core.NumpyFSLDatasetConfig.from_src_mix(
        config, tokenizer=core.TokenizerConfig(vocab_size=1000, eos_token_id=0, pad_token_id=1),
        sequence_length=LENGTH, dtype=dtypes.NumpyDatasetDType.uint16, work_dir=str(tmp_path),
    ).build()  # fmt: skip
    index = mix_index(base, mix, BATCH)
    assert index.windows == dataset.offsets[-1][1]
    tokens = WindowReader(index).read(np.arange(index.windows))
    for window in range(index.windows):
        assert (dataset[window]["input_ids"].numpy() == tokens[window]).all()


def test_shares_fill_whole_batches(tmp_path: Path) -> None:
    index = mix_index(corpus_index(tmp_path, list(SIZES)), MIXTURES[0], BATCH)
    assert index.windows % BATCH == 0
    assert index.windows * LENGTH >= 1200


def test_a_source_with_too_few_tokens_is_refused(tmp_path: Path) -> None:
    base = corpus_index(tmp_path, list(SIZES))
    with pytest.raises(EctypeError, match="source 'wiki': 500 tokens wanted, 260 allowed of 260"):
        mix_index(base, mixture(1000, web=(0.5, 1, 1), wiki=(0.5, 1, 1)), BATCH)
    with pytest.raises(EctypeError, match="source 'none' matches no file"):
        mix_index(base, mixture(1000, none=(1.0, 1, 1)), BATCH)


def test_mixtures_are_read_strictly(tmp_path: Path) -> None:
    path = tmp_path / "mix.yaml"
    path.write_text("requested_tokens: 10\nsources:\n- {name: a, target_ratio: 0.5, paths: ['*/web/*']}\n")
    with pytest.raises(EctypeError, match=r"target ratios sum to 0.5"):
        load_mixture(path)
    path.write_text("requested_tokens: 10\nsources: []\nsurplus: 1\n")
    with pytest.raises(EctypeError, match="surplus"):
        load_mixture(path)
    with pytest.raises(EctypeError, match="gone"):
        load_mixture(tmp_path / "gone.yaml")


def test_a_mixture_is_stored_and_read_back(tmp_path: Path) -> None:
    index = mix_index(corpus_index(tmp_path, list(SIZES)), MIXTURES[2], BATCH)
    write_index(index, tmp_path / "mix.json")
    data = make_data(LENGTH, BATCH)
    again = load_index(tmp_path / "mix.json", data, 1000)
    assert again.fingerprint == index.fingerprint != corpus_index(tmp_path, list(SIZES)).fingerprint
    assert (again.physical(np.arange(index.windows)) == index.physical(np.arange(index.windows))).all()
    side = next(tmp_path.glob("*.i64"))
    side.write_bytes(side.read_bytes()[:-16])
    with pytest.raises(EctypeError, match="changed since the index was written"):
        load_index(tmp_path / "mix.json", data, 1000)


@pytest.mark.parametrize("target", [None, 32])
def test_a_mix_that_changes_mid_run_repeats_no_used_window(tmp_path: Path, target: int | None) -> None:
    """Web and code for 9 steps, then more code and wiki, which is a new file: two changes in a row."""
    data = make_data(LENGTH, BATCH, target=target)
    old = corpus_index(tmp_path, [name for name in SIZES if "wiki" not in name])
    old = replace(old, max_target_length_tokens=target)
    if target:
        old = index_of([Path(f.path) for f in old.files], LENGTH, max_target_length_tokens=target)
    first = mix_index(old, mixture(960, web=(0.7, 1, 1), code=(0.3, 1, 1)), BATCH)
    new = corpus_index(tmp_path, list(SIZES))
    files = index_of([Path(f.path) for f in new.files], LENGTH, max_target_length_tokens=target)
    second = change_mix_of_run(first, data, files, mixture(448, code=(0.5, 1, 1), wiki=(0.5, 1, 1)), 9)
    assert second.continues(first.fingerprint, 9)
    assert not second.continues(first.fingerprint, 8)
    order = make_order(second.order_phases, data)
    before = make_order(first.order_phases, data)
    assert all((order.batch_ids(k) == before.batch_ids(k)).all() for k in range(9))
    third = change_mix_of_run(second, data, files, mixture(128, web=(1.0, 1, 1)), 12)
    write_index(third, tmp_path / "third.json")
    third = load_index(tmp_path / "third.json", data, 1000)
    order = make_order(third.order_phases, data)
    with open_loader(third, data, first_batch=0, end_batch=14) as loader:
        physical = [third.physical(batch.window_ids) for batch in loader]
    read = np.concatenate(physical)
    assert len(set(read.tolist())) == len(read) == 14 * BATCH
    labels = [{third.files[n].label for n in third.locate(order.batch_ids(k))[0]} for k in (0, 9, 12)]
    assert labels[0] <= {"web", "code"}
    assert labels[1] <= {"code", "wiki"}
    assert labels[2] == {"web"}
    assert audit_plan(order, parse_host_stages("2", 14)).clean


def test_a_new_mix_of_other_lengths_is_refused(tmp_path: Path) -> None:
    old, files = corpus_index(tmp_path, list(SIZES)), corpus_index(tmp_path, list(SIZES))
    with pytest.raises(EctypeError, match="lengths or id space differ"):
        change_mix_of_run(old, make_data(LENGTH, BATCH), replace(files, vocab_size=1001), MIXTURES[0], 3)
