"""`ectype weights`: Hugging Face folders to checkpoints and back, and proof that both compute the same."""

from pathlib import Path
from typing import Annotated, Any

import typer

from ectype.cli.output import JSON_OPTION, ProgressBar, console, emit, verb
from ectype.errors import EXIT_DONE, EXIT_NEGATIVE, EctypeError

app = typer.Typer(help="Import, export and compare weights.", no_args_is_help=True)
CHECKPOINT_ARGUMENT = typer.Argument(metavar="CKPT", help="Checkpoint, or a run folder (its newest checkpoint).")
DTYPE_HELP = "float32, bfloat16 or float16. Default: as stored."


@app.command("import")
@verb
def import_(
    source: Annotated[
        Path, typer.Argument(metavar="SOURCE", help="Hugging Face folder, or a checkpoint folder stepN of OLMo-core.")
    ],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="Checkpoint to write; must not exist.")],
    dtype: Annotated[str | None, typer.Option(help=DTYPE_HELP)] = None,
    padded_rows: Annotated[Path | None, typer.Option(help="Side file with the vocabulary rows SOURCE lacks.")] = None,
    trained_rows: Annotated[
        int | None, typer.Option(help="Draw the rows up to this count as at initialisation.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of drawn rows.")] = 0,
    recipe: Annotated[str | None, typer.Option(help="Recipe of an OLMo-core folder, which says its model.")] = None,
    json_output: Annotated[bool, JSON_OPTION] = False,
) -> None:
    """Convert a Hugging Face folder into a checkpoint.

    A killed import resumes. A checkpoint folder of OLMo-core itself is taken over with Adam's moments and count, as
    stored; that needs --recipe and the extra `reference`.
    Example: ectype weights import hf/step0 checkpoints/step0 --padded-rows padded_rows/step0.safetensors
    """
    from ectype.weights.distributed_files import METADATA_NAME, distributed_folder

    if distributed_folder(source) is not None:
        if dtype is not None or padded_rows is not None or trained_rows is not None:
            raise EctypeError(
                f"--dtype, --padded-rows or --trained-rows for {source}, which holds {METADATA_NAME}",
                "none: an OLMo-core folder holds all rows, and is taken as stored", "leave them out",
            )  # fmt: skip
        _import_olmo_core(source, out, recipe, json_output)
        return
    if recipe is not None:
        raise EctypeError(
            f"--recipe for {source}, which is no checkpoint folder of OLMo-core",
            "no recipe: config.json says what a Hugging Face folder holds", "leave it out, or check the path",
        )  # fmt: skip
    from ectype.weights.hf_import import import_weights

    with ProgressBar() as bar:
        result = import_weights(
            source, out, dtype=_known(dtype), padded_rows=padded_rows, trained_rows=trained_rows, seed=seed,
            progress=bar,
        )  # fmt: skip

    def show() -> None:
        print(f"{out}: {result['family']}, {result['parameters']:,} parameters, {_moved(result)}")
        if result["padded_rows"]:
            origin = result["padded_rows"]
            drawn = f"drawn with seed {origin.get('seed')}, not the reference's own"
            print(
                f"rows {result['vocab_size']}..{result['rows'] - 1}: "
                + (drawn if origin["from"] == "drawn" else f"from {origin['file']}")
            )
        print("optimiser state: none; a Hugging Face folder holds weights only")

    emit(result, json_output, show)


def _import_olmo_core(source: Path, out: Path, recipe_name: str | None, json_output: bool) -> None:
    if recipe_name is None:
        raise EctypeError(
            f"{source} is a checkpoint folder of OLMo-core, and no recipe is named",
            "the recipe whose model it holds, for example olmo3-7b-stage1", "give --recipe NAME",
        )  # fmt: skip
    from ectype.recipe.load import load_recipe
    from ectype.weights.olmo_core_import import import_olmo_core

    recipe = load_recipe(recipe_name)
    with ProgressBar() as bar:
        result = import_olmo_core(
            source, out, recipe.model, sequence_length_tokens=recipe.data.sequence_length_tokens, progress=bar
        )

    def show() -> None:
        step = "step unknown" if result["step"] is None else f"step {result['step']:,}"
        print(f"{out}: OLMo-core, {step}, {result['parameters']:,} parameters, {_moved(result)}")
        print(_adam(result["adam_count"], "none in this folder"))

    emit(result, json_output, show)


@app.command()
@verb
def export(
    ckpt: Annotated[Path, CHECKPOINT_ARGUMENT],
    out_dir: Annotated[Path, typer.Argument(metavar="OUT_DIR", help="Hugging Face folder to write; must not exist.")],
    dtype: Annotated[str | None, typer.Option(help=DTYPE_HELP)] = None,
    like: Annotated[Path | None, typer.Option(help="Hugging Face folder to take tokenizer files and ids from.")] = None,
    max_length: Annotated[int | None, typer.Option(help="max_position_embeddings to state, in tokens.")] = None,
    padded_rows: Annotated[Path | None, typer.Option(help="Side file for the rows past the vocabulary.")] = None,
    shard_bytes: Annotated[int, typer.Option(help="Largest safetensors file.")] = 5_000_000_000,
    json_output: Annotated[bool, JSON_OPTION] = False,
) -> None:
    """Convert a checkpoint into a Hugging Face folder.

    transformers loads it. A killed export resumes.
    Example: ectype weights export runs/calm hf/calm --like hf/step0
    """
    from ectype.run.checkpoints import find_checkpoint
    from ectype.weights.hf_export import export_weights

    with ProgressBar() as bar:
        result = export_weights(
            find_checkpoint(ckpt), out_dir, dtype=_known(dtype), like=like, max_length_tokens=max_length,
            padded_rows=padded_rows, shard_bytes=shard_bytes, progress=bar,
        )  # fmt: skip

    def show() -> None:
        print(f"{out_dir}: {result['family']}, {result['tensors']} tensors, {_moved(result)}")
        if result["rows_left_out"]:
            kept = f"kept in {padded_rows}" if padded_rows else "left out; --padded-rows keeps them"
            print(f"{result['rows_left_out']} rows past the vocabulary: {kept}")

    emit(result, json_output, show)


@app.command()
@verb
def merge(
    ckpts: Annotated[
        list[Path], typer.Argument(metavar="CKPT...", help="Two or more checkpoints, or run folders (their newest).")
    ],
    out: Annotated[Path, typer.Option(help="Checkpoint to write; must not exist.")],
    weights_only: Annotated[bool, typer.Option("--weights-only", help="Leave the optimisers' state out.")] = False,
    json_output: Annotated[bool, JSON_OPTION] = False,
) -> None:
    """Average checkpoints of one model.

    Weights, and Adam's moments and count where all hold them. The mean is taken in float32 and stored as they are. A
    killed merge resumes.
    Example: ectype weights merge runs/first runs/second --out checkpoints/mean
    """
    from ectype.run.checkpoints import find_checkpoint
    from ectype.weights.merge import merge_weights

    with ProgressBar() as bar:
        result = merge_weights(
            [find_checkpoint(path) for path in ckpts], out, weights_only=weights_only, progress=bar
        )  # fmt: skip

    def show() -> None:
        step = "" if result["step"] is None else f" at step {result['step']:,}"
        print(f"{out}: mean of {len(ckpts)}{step}, {result['parameters']:,} parameters, {_moved(result)}")
        print(_adam(result["adam_count"], "none; train from it with --reset moments --reset adam_count"))

    emit(result, json_output, show)


@app.command()
@verb
def parity(
    ckpt: Annotated[Path, CHECKPOINT_ARGUMENT],
    hf_dir: Annotated[
        Path, typer.Argument(metavar="HF_DIR", help="Hugging Face folder that transformers runs as the reference.")
    ],
    dtype: Annotated[str, typer.Option(help="Element type of our computation: float32 or bfloat16.")] = "float32",
    tokens: Annotated[Path | None, typer.Option(help="Token ids: JSON list, .npy, or headerless token file.")] = None,
    text: Annotated[str | None, typer.Option(help="Text, by the tokenizer in HF_DIR.")] = None,
    length: Annotated[int | None, typer.Option(help="Tokens to compare. Default: over twice the window.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of random tokens, when neither file nor text is given.")] = 0,
    json_output: Annotated[bool, JSON_OPTION] = False,
) -> int:
    """Compare logits with those of transformers.

    At every position; exit code 1 and the first differing tensor when they part. Of a run folder, the record also
    goes to RUN/parity.json. Needs the extra `reference`.
    Example: ectype weights parity checkpoints/step0 hf/step0 --dtype bfloat16
    """
    if dtype != "float32" and dtype != "bfloat16":
        raise EctypeError(f"--dtype {dtype}", "float32 or bfloat16", "choose one of the two")
    from ectype.run.checkpoints import find_checkpoint
    from ectype.weights import sample_tokens
    from ectype.weights.checkpoint import model_of, read_meta
    from ectype.weights.parity import measure_parity
    from ectype.weights.parity_record import write_parity
    from ectype.weights.reference_model import versions

    versions()
    checkpoint = find_checkpoint(ckpt)
    model = model_of(read_meta(checkpoint), checkpoint)
    if tokens is not None:
        ids = sample_tokens.read_tokens(tokens, model, length)
    elif text is not None:
        ids = sample_tokens.encode_text(hf_dir, text, length)
    else:
        ids = sample_tokens.random_tokens(model, length or sample_tokens.default_length(model), seed)
    with ProgressBar() as bar:
        record = measure_parity(checkpoint, hf_dir, ids, dtype=dtype, progress=bar)
    if checkpoint != ckpt:
        write_parity(ckpt, record)
    result = record.model_dump(mode="json")
    emit(result, json_output, lambda: _show_parity(result, record.logit_difference_limit))
    return EXIT_DONE if record.same else EXIT_NEGATIVE


def _show_parity(result: dict[str, Any], logit_limit: float) -> None:
    from rich.table import Table

    table = Table("", "measured", "tolerance", box=None, pad_edge=False)
    limits, exact = result["tolerances"], result["dtype"] == "float32"
    ratio = limits["bfloat16_kl_ratio"]
    table.add_row("KL(reference ‖ ours), mean", _number(result["kl_mean"]), "" if exact else f"≤ {ratio} × theirs")
    if not exact:
        table.add_row("transformers' own, mean", _number(result["reference_kl_mean"]), "")
    table.add_row("KL, 99th percentile", _number(result["kl_p99"]), "")
    table.add_row("KL, largest", _number(result["kl_max"]), f"≤ {limits['kl_max']:g}" if exact else "")
    limit = f"≤ {logit_limit:.3g}" if exact else ""
    table.add_row("|Δlogit|, largest", _number(result["logit_difference_max"]), limit)
    if result["reference_rounding_max"] is not None:
        table.add_row("transformers' float32 from its float64", _number(result["reference_rounding_max"]), "")
    table.add_row("|Δlogit|, mean", _number(result["logit_difference_mean"]), "")
    top1 = result["top1_agreement"]
    table.add_row("top-1 agreement", _number(top1), f"≥ {limits['top1_agreement']:g}" if exact else "")
    worst = max(result["layers"], key=lambda row: row["relative_error"] or float("inf"))
    table.add_row(f"largest drift: layer {worst['layer']}", _number(worst["relative_error"]), "")
    out = console()
    out.print("[bold green]same[/]" if result["same"] else "[bold red]not the same[/]", end="")
    transformers = result["versions"]["transformers"]
    out.print(f"  {result['dtype']}, {result['length_tokens']} tokens, against transformers {transformers} in float32")
    out.print(table)
    if result["window_tokens"] and result["length_tokens"] <= 2 * result["window_tokens"]:
        out.print(f"note: not over twice the window of {result['window_tokens']} tokens, so masks are barely tested")
    if result["first_fault"]:
        fault = result["first_fault"]
        place = "outside the layers" if fault["layer"] is None else f"layer {fault['layer']}"
        names = f": {', '.join(fault['tensors'])}" if fault["tensors"] else ""
        out.print(f"first to part: {place}, {fault['group']}{names} (relative {_number(fault['relative_error'])})")
    elif not result["same"]:
        out.print("no single tensor parts on equal inputs: rounding that adds up over layers")


def _number(value: float | None) -> str:
    return "NaN" if value is None else f"{value:.4g}"


def _adam(count: float | None, without: str) -> str:
    return f"optimiser state: {without}" if count is None else f"Adam: moments, and a count of {count:,.10g}"


def _moved(result: dict[str, Any]) -> str:
    rate = result["bytes"] / 1e6 / max(result["seconds"], 1e-9)
    resumed = f", {result['resumed_units']} units taken over" if result["resumed_units"] else ""
    return f"{result['dtype']}, {result['bytes']:,} bytes in {result['seconds']:.1f} s ({rate:.0f} MB/s{resumed})"


def _known(dtype: str | None) -> str | None:
    if dtype not in (None, "float32", "bfloat16", "float16"):
        raise EctypeError(f"--dtype {dtype}", "float32, bfloat16 or float16", "choose one of these")
    return dtype
