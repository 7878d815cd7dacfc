"""All 640 batches of OLMo-core's run, and its own loader on other sizes: ids, tokens, filter."""

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
from data_makers import index_of, make_data, write_tokens

from ectype.data.loader import BatchReader, open_loader
from ectype.data.source import open_order, open_source
from ectype.recipe.spec import RepetitionFilter


def test_every_batch_of_the_reference_run(tiny: Path, tiny_paths: list[Path]) -> None:
    data = make_data(256, 8, seed=34521, target=256, repetition_filter=RepetitionFilter())
    with open_loader(index_of(tiny_paths, 256), data, first_batch=0, end_batch=640) as loader:
        for batch, logged in zip(loader, json.loads((tiny / "batches.json").read_text()), strict=True):
            assert batch.batch_number == logged["step"] - 1
            assert batch.window_ids.tolist() == logged["index"]
            assert hashlib.sha256(batch.tokens.astype("<u2").tobytes()).hexdigest() == logged["tokens_sha256"]
            assert batch.window_ids[~batch.keep].tolist() == logged["masked"]


@pytest.mark.reference
@pytest.mark.parametrize(
    ("sizes", "length", "target", "batch", "seed", "epoch"),
    [((1000, 333, 64, 5), 16, None, 4, 1, 1), ((1000, 333, 640), 16, 64, 8, 34521, 2), ((4099,), 8, 16, 16, 1337, 3)],
)  # fmt: skip
def test_batches_of_olmo_core_ranks(
    tmp_path: Path, sizes: tuple[int, ...], length: int, target: int | None, batch: int, seed: int, epoch: int
) -> None:  # fmt: skip
    """OLMo-core's dataset and loader over random files, for 1, 2, 4 and 8 ranks: the rows they take of our batches."""
    core = pytest.importorskip("olmo_core.data")
    dtypes = pytest.importorskip("olmo_core.data.types")
    generator = np.random.default_rng(seed)
    paths = [write_tokens(tmp_path / f"{n}.npy", generator.integers(0, 999, size)) for n, size in enumerate(sizes)]
    data = make_data(length, batch, seed=seed, target=target)
    index = index_of(paths, length, max_target_length_tokens=target)
    source, _ = open_source(index, data)
    reader = BatchReader(source, open_order(index, data), data, None)
    tokenizer = core.TokenizerConfig(vocab_size=1000, eos_token_id=0, pad_token_id=1)
    dataset = core.NumpyFSLDatasetConfig(
        tokenizer=tokenizer, paths=[str(path) for path in paths], sequence_length=length, work_dir=str(tmp_path),
        max_target_sequence_length=target, dtype=dtypes.NumpyDatasetDType.uint16,
    ).build()  # fmt: skip
    dataset.prepare()
    assert len(dataset) == index.windows
    for ranks in (1, 2, 4, 8):
        for rank in range(0, min(ranks, batch)):
            if batch % ranks:
                continue
            loader = core.data_loader.NumpyDataLoaderBase.wrap_numpy_dataset(
                dataset, global_batch_size=batch * length, collator=core.DataCollator(pad_token_id=1),
                work_dir=tmp_path, seed=seed, dp_world_size=ranks, dp_rank=rank,
            )  # fmt: skip
            loader.reshuffle(epoch=epoch, in_memory=True)
            first = (epoch - 1) * loader.total_batches
            for number, theirs in zip(range(4), loader, strict=False):
                ours = reader.read(first + number)
                assert (theirs["input_ids"].numpy() == ours.tokens[rank::ranks]).all()
                assert theirs["index"].tolist() == ours.window_ids[rank::ranks].tolist()
            loader.reset()
