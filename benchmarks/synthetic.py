"""A Hugging Face folder of random OLMo 3 weights in their real shapes, and children whose cost is counted.

Used by the benchmarks of part 4.
"""

import hashlib
import json
import math
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

SHARD_BYTES = 5_000_000_000
DIGESTS = "digests.json"
VOCABULARY = 100_278
WINDOW_TOKENS = 4096
INIT_STD = 0.02
NORM_SPREAD = 0.1
_DRAWN_AT_ONCE = 1 << 24


@dataclass(frozen=True)
class Size:
    """Sizes of one decoder; as many key/value heads as heads."""

    width: int
    layers: int
    heads: int
    ffn: int


SIZES = {"7b": Size(4096, 32, 32, 11008), "1b": Size(2048, 16, 16, 8192), "tiny": Size(256, 4, 4, 512)}
"""OLMo 3 7B; a decoder of 1.5 billion parameters in the same form; one to try the scripts with."""


def config_of(size: Size) -> dict[str, Any]:
    """`config.json` of an OLMo 3 decoder."""
    return {
        "architectures": ["Olmo3ForCausalLM"], "model_type": "olmo3", "dtype": "bfloat16", "hidden_size": size.width,
        "intermediate_size": size.ffn, "num_attention_heads": size.heads, "num_key_value_heads": size.heads,
        "num_hidden_layers": size.layers, "vocab_size": VOCABULARY, "rms_norm_eps": 1e-6, "hidden_act": "silu",
        "attention_bias": False, "attention_dropout": 0.0, "initializer_range": INIT_STD,
        "max_position_embeddings": 8192, "rope_theta": 500000.0, "rope_scaling": None,
        "sliding_window": WINDOW_TOKENS, "tie_word_embeddings": False, "bos_token_id": None, "eos_token_id": 100257,
        "pad_token_id": 100277, "use_cache": True,
    }  # fmt: skip


def shapes_of(size: Size) -> dict[str, tuple[int, ...]]:
    """Every tensor of the folder by name, in file order."""
    width, ffn = size.width, size.ffn
    square, shapes = (width, width), {"model.embed_tokens.weight": (VOCABULARY, width)}
    for layer in range(size.layers):
        prefix = f"model.layers.{layer}."
        shapes |= {
            **{f"{prefix}self_attn.{name}_proj.weight": square for name in "qkvo"},
            **{f"{prefix}self_attn.{name}_norm.weight": (width,) for name in "qk"},
            f"{prefix}mlp.gate_proj.weight": (ffn, width), f"{prefix}mlp.up_proj.weight": (ffn, width),
            f"{prefix}mlp.down_proj.weight": (width, ffn), f"{prefix}post_attention_layernorm.weight": (width,),
            f"{prefix}post_feedforward_layernorm.weight": (width,),
        }  # fmt: skip
    return shapes | {"model.norm.weight": (width,), "lm_head.weight": (VOCABULARY, width)}


def elements(shape: tuple[int, ...]) -> int:
    """Numbers in an array."""
    return math.prod(shape)


def total_bytes(size: Size) -> int:
    """Bytes of all tensors, two per element."""
    return sum(2 * elements(shape) for shape in shapes_of(size).values())


def require_space(folder: Path, needed_bytes: int) -> None:
    """End the script where the disk is too full."""
    folder.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(folder).free
    if free < needed_bytes:
        sys.exit(
            f"{folder} has {free / 1e9:.1f} GB free; {needed_bytes / 1e9:.1f} GB are needed (see --size, --folder)"
        )


def remove(*folders: Path) -> None:
    """Delete folders, those that are not there included."""
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


def is_written(folder: Path) -> bool:
    """Whether `write_checkpoint` has finished this folder."""
    return (folder / DIGESTS).is_file()


def write_checkpoint(folder: Path, size: Size) -> dict[str, str]:
    """Write the folder unless it is there in full; SHA-256 of each tensor by name.

    Linear weights are normal with deviation 0.02, norms normal about 1 with 0.1, both rounded to bfloat16. To be fast,
    they are cut at random places from one long draw.
    """
    if is_written(folder):
        return json.loads((folder / DIGESTS).read_text())
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config_of(size)))
    shapes, groups, filled = shapes_of(size), [[]], 0
    for name, shape in shapes.items():
        if groups[-1] and filled + 2 * elements(shape) > SHARD_BYTES:
            groups.append([])
            filled = 0
        groups[-1].append(name)
        filled += 2 * elements(shape)
    generator, digests, weight_map = np.random.Generator(np.random.SFC64(0)), {}, {}
    drawn = np.float32(INIT_STD) * generator.standard_normal(2 * _DRAWN_AT_ONCE, np.float32)
    pool = drawn.astype(ml_dtypes.bfloat16)
    for number, names in enumerate(groups, 1):
        file_name = f"model-{number:05d}-of-{len(groups):05d}.safetensors"
        weight_map |= dict.fromkeys(names, file_name)
        _write_shard(folder / file_name, {name: shapes[name] for name in names}, pool, generator, digests)
    index = {"metadata": {"total_size": total_bytes(size)}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / DIGESTS).write_text(json.dumps(digests))
    return digests


def _write_shard(
    file: Path,
    shapes: Mapping[str, tuple[int, ...]],
    pool: Any,
    generator: np.random.Generator,
    digests: dict[str, str],
) -> None:
    header, offset = {}, 0
    for name, shape in shapes.items():
        end = offset + 2 * elements(shape)
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header).encode()
    with file.open("wb", buffering=0) as stream:
        stream.write(len(text).to_bytes(8, "little") + text)
        for name, shape in shapes.items():
            digest, count = hashlib.sha256(), elements(shape)
            for first in range(0, count, _DRAWN_AT_ONCE):
                start = int(generator.integers(_DRAWN_AT_ONCE))
                values = pool[start : start + min(_DRAWN_AT_ONCE, count - first)]
                if name.endswith("norm.weight"):
                    values = (1 + NORM_SPREAD / INIT_STD * values.astype(np.float32)).astype(values.dtype)
                data = values.view(np.uint8).data
                digest.update(data)
                stream.write(data)
            digests[name] = digest.hexdigest()
        os.fsync(stream.fileno())


def read_digests(folder: Path) -> dict[str, str]:
    """SHA-256 of each tensor in a folder's safetensors files, read without the code that is measured."""
    digests = {}
    for file in sorted(folder.glob("*.safetensors")):
        with file.open("rb") as stream:
            length = int.from_bytes(stream.read(8), "little")
            header = json.loads(stream.read(length))
            header.pop("__metadata__", None)
            for name, entry in header.items():
                first, end = entry["data_offsets"]
                stream.seek(8 + length + first)
                digest = hashlib.sha256()
                for start in range(first, end, 2 * _DRAWN_AT_ONCE):
                    digest.update(stream.read(min(2 * _DRAWN_AT_ONCE, end - start)))
                digests[name] = digest.hexdigest()
    return digests


def sync(folder: Path) -> None:
    """Wait until a folder's files are on the disk."""
    for file in folder.rglob("*"):
        if file.is_file():
            handle = os.open(file, os.O_RDONLY)
            os.fsync(handle)
            os.close(handle)


def forget(folder: Path) -> None:
    """Drop a folder's files from the page cache, so that the next reader meets the disk."""
    sync(folder)
    for file in folder.rglob("*"):
        if file.is_file():
            handle = os.open(file, os.O_RDONLY)
            os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(handle)


@dataclass(frozen=True)
class Child:
    """What one process was and what it took. `written_bytes` is what it made the file system write."""

    code: int
    seconds: float
    cpu_seconds: float
    peak_bytes: int
    written_bytes: int
    output: str


def run_child(arguments: list[str], kill_when: Callable[[], bool] | None = None) -> Child:
    """Run `ectype ARGUMENTS --json` in a process of its own, and kill it outright once `kill_when` holds.

    A negative verdict (exit 1 with its result) is returned like a positive one.
    """
    command = [sys.executable, "-m", "ectype.cli", *arguments, "--json"]
    started = time.monotonic()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        killed = False
        while kill_when is not None and not killed and _running(process.pid):
            if killed := kill_when():
                process.kill()
            time.sleep(0.01)
        output, errors = process.stdout.read(), process.stderr.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    seconds = time.monotonic() - started
    if process.returncode and not killed and not output:
        raise RuntimeError(f"exit {process.returncode} of ectype {' '.join(arguments)}:\n{errors}")
    return Child(
        process.returncode, seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024, usage.ru_oublock * 512,
        output,
    )  # fmt: skip


def _running(pid: int) -> bool:
    """Whether the child has not ended; it stays to be waited for."""
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None
