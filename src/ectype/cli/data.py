"""`ectype data`: index token files, audit what a run reads, list and show windows."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ectype.cli.output import JSON_OPTION, REMAP_OPTION, ProgressBar, emit, verb
from ectype.errors import EXIT_DONE, EXIT_NEGATIVE, EctypeError

if TYPE_CHECKING:
    from ectype.data.tokenindex import TokenIndex
    from ectype.recipe.spec import Recipe

app = typer.Typer(help="Index token files; audit and show what a run reads.", no_args_is_help=True)

SOURCE_ARGUMENT = typer.Argument(
    metavar="SOURCE", help="Manifest of `label,path` lines, folder of .npy files, or index JSON."
)
RECIPE_OPTION = typer.Option("--recipe", help="Recipe name or YAML path.")
SET_OPTION = typer.Option("--set", help="section.key=value; may repeat.")
INDEX_OPTION = typer.Option("--index", help="Index JSON, manifest or folder.")
CACHE_OPTION = typer.Option("--order-cache", help="Folder for orders and packing plans; by default the user's cache.")


@app.command()
@verb
def index(
    source: Annotated[str, SOURCE_ARGUMENT],
    out: Annotated[Path, typer.Option("--out", help="Index JSON to write.")],
    sequence_length: Annotated[int | None, typer.Option(help="Tokens in a window; needed without --recipe.")] = None,
    vocab_size: Annotated[int | None, typer.Option(help="Id space; 100278 (OLMo 3) when no recipe is given.")] = None,
    recipe: Annotated[str | None, RECIPE_OPTION] = None,
    overrides: Annotated[list[str] | None, SET_OPTION] = None,
    dtype: Annotated[str | None, typer.Option(help="Width of the files when wider than the id space needs.")] = None,
    max_target_length: Annotated[int | None, typer.Option(help="OLMo-core's max target length.")] = None,
    root: Annotated[str | None, typer.Option(help="Where relative paths begin; default the manifest's folder.")] = None,
    remap: Annotated[list[str] | None, REMAP_OPTION] = None,
    tokenizer: Annotated[str | None, typer.Option(help="What to put for {TOKENIZER}; default OLMo 3's.")] = None,
    mix: Annotated[Path | None, typer.Option(help="YAML mixture of sources.")] = None,
    batch_windows: Annotated[
        int | None, typer.Option(min=1, help="Windows in a batch, for --mix without --recipe.")
    ] = None,
    continue_run: Annotated[Path | None, typer.Option(help="Run whose mix changes to --mix.")] = None,
    step: Annotated[int | None, typer.Option(min=0, help="Step of --continue-run after which the mix changes.")] = None,
    skip_malformed: Annotated[bool, typer.Option("--skip-malformed", help="Leave malformed lines out.")] = False,
    allow_missing: Annotated[bool, typer.Option("--allow-missing", help="Leave missing files out.")] = False,
    allow_duplicates: Annotated[
        bool, typer.Option("--allow-duplicates", help="Read files listed twice twice.")
    ] = False,
    json_output: Annotated[bool, JSON_OPTION] = False,
) -> None:
    """Write the index of token files that a run reads.

    A MaxText index is written anew. Example: ectype data index mix.txt --sequence-length 8192 --out index.json
    """
    from ectype.data.index import make_index, write_index
    from ectype.data.manifest import OLMO3_TOKENIZER, OLMO3_VOCAB_SIZE
    from ectype.data.run_inputs import mixed_index
    from ectype.data.tokenindex import report
    from ectype.recipe.load import load_recipe, parse_remap

    _refuse_idle("--recipe", recipe, {"--set": overrides or None})
    _refuse_idle("--mix", mix, {"--continue-run": continue_run, "--batch-windows": batch_windows})
    _refuse_idle("--continue-run", continue_run, {"--step": step})
    if recipe is not None:
        spec = load_recipe(recipe, overrides or ())
        max_target_length = spec.data.order.max_target_length_tokens if max_target_length is None else max_target_length
        sequence_length = spec.data.sequence_length_tokens if sequence_length is None else sequence_length
        vocab_size = spec.model.vocab_size if vocab_size is None else vocab_size
        batch_windows = spec.data.global_batch_windows if batch_windows is None else batch_windows
    if sequence_length is None:
        raise EctypeError("no sequence length", "--sequence-length or --recipe", "say how long a window is")
    with ProgressBar() as progress:
        built = make_index(
            source, sequence_length_tokens=sequence_length,
            vocab_size=OLMO3_VOCAB_SIZE if vocab_size is None else vocab_size, dtype=dtype,
            max_target_length_tokens=max_target_length, root=root,
            tokenizer=OLMO3_TOKENIZER if tokenizer is None else tokenizer, prefixes=parse_remap(remap or ()),
            skip_malformed=skip_malformed, allow_missing=allow_missing, allow_duplicates=allow_duplicates,
            progress=progress,
        )  # fmt: skip
    if mix is not None:
        built = mixed_index(built, mix, batch_windows=batch_windows, run_dir=continue_run, step=step, remap=remap or ())
    write_index(built, out)
    result = report(built) | {"index": str(out)}
    emit(result, json_output, lambda: _show_report(result))


@app.command()
@verb
def audit(
    run: Annotated[Path | None, typer.Option("--run", help="Run folder: prove what happened.")] = None,
    index: Annotated[str | None, INDEX_OPTION] = None,
    recipe: Annotated[str | None, RECIPE_OPTION] = None,
    schedule: Annotated[str, typer.Option(help="Host counts of the planned run.")] = "1 host",
    overrides: Annotated[list[str] | None, SET_OPTION] = None,
    remap: Annotated[list[str] | None, REMAP_OPTION] = None,
    order_cache: Annotated[Path | None, CACHE_OPTION] = None,
    json_output: Annotated[bool, JSON_OPTION] = False,
) -> int:
    """Prove that every window is read exactly once.

    Of a plan (--recipe, --index) or of a run, from its ledger (--run). Exit code 1 when it is not so. The record
    of a run's audit also goes to RUN/audit.json.
    Example: ectype data audit --index I --recipe R --schedule "64 hosts to step 1050000, then 16"
    """
    from ectype.data.audit import audit_plan
    from ectype.data.audit_record import audit_record
    from ectype.data.audit_run import record_audit
    from ectype.data.host_stages import parse_host_stages
    from ectype.data.source import open_order

    spec, opened = _open(run, index, recipe, overrides, remap)
    order = open_order(opened, spec.data, order_cache)
    with ProgressBar() as progress:
        if run is not None:
            record = record_audit(run, order, opened, spec.data, progress)
        else:
            plan = audit_plan(order, parse_host_stages(schedule, spec.duration_steps), progress)
            record = audit_record(plan, opened.fingerprint)
    result = record.model_dump(mode="json")
    emit(result, json_output, lambda: _show_audit(result))
    return EXIT_DONE if record.clean else EXIT_NEGATIVE


@app.command()
@verb
def which(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of the run.")],
    step: Annotated[int, typer.Option(help="Update number, from 1.")],
    index: Annotated[str | None, INDEX_OPTION] = None,
    remap: Annotated[list[str] | None, REMAP_OPTION] = None,
    order_cache: Annotated[Path | None, CACHE_OPTION] = None,
    json_output: Annotated[bool, JSON_OPTION] = False,
) -> None:
    """List the windows of a step with file and offset. Example: ectype data which RUN --step 640"""
    from ectype.data.source import open_order, open_source
    from ectype.data.where import places

    spec, opened = _open(run, index, None, None, remap)
    if not 1 <= step <= spec.duration_steps:
        raise EctypeError(
            f"step {step}", f"an update number from 1 to {spec.duration_steps}", "update n reads the order's n-th batch"
        )
    order = open_order(opened, spec.data, order_cache)
    ids = order.batch_ids(step - 1)
    _, epoch, batch = order.place(step - 1)
    source, _ = open_source(opened, spec.data, order_cache)
    windows = [{"row": row, **place} for row, place in enumerate(places(opened, source, ids))]
    result = {"step": step, "epoch": epoch, "batch_of_epoch": batch, "windows": windows}

    def text() -> None:
        print(f"step {step}: epoch {epoch}, batch {batch} of it, counted from 0")
        for window in windows:
            parts = ", ".join(f"{part['path']} tokens {part['first']}-{part['last']}" for part in window["parts"])
            print(f"  row {window['row']}: window {window['window']}: {parts}")

    emit(result, json_output, text)


@app.command()
@verb
def show(
    window: Annotated[int, typer.Option(help="Window id.")],
    run: Annotated[Path | None, typer.Option("--run", help="Run folder, for its recipe and index.")] = None,
    index: Annotated[str | None, INDEX_OPTION] = None,
    recipe: Annotated[str | None, RECIPE_OPTION] = None,
    overrides: Annotated[list[str] | None, SET_OPTION] = None,
    tokenizer: Annotated[Path | None, typer.Option(help="tokenizer.json; without it ids are shown.")] = None,
    remap: Annotated[list[str] | None, REMAP_OPTION] = None,
    order_cache: Annotated[Path | None, CACHE_OPTION] = None,
    json_output: Annotated[bool, JSON_OPTION] = False,
) -> None:
    """Show a window's tokens or text. Example: ectype data show --run RUN --window 7 --tokenizer tokenizer.json"""
    import numpy as np

    from ectype.data.documents import document_lengths
    from ectype.data.source import open_source
    from ectype.data.where import decoder, places

    decode = None if tokenizer is None else decoder(tokenizer)
    spec, opened = _open(run, index, recipe, overrides, remap)
    source, phases = open_source(opened, spec.data, order_cache)
    windows = sum(phase.windows for phase in phases)
    if not 0 <= window < windows:
        raise EctypeError(f"window {window}", f"0 to {windows - 1}", "list a step's windows with `ectype data which`")
    ids = np.array([window], np.uint32)
    tokens = source.read(ids)[0][0]
    cuts = np.cumsum(document_lengths(tokens, spec.data.eos_id))[:-1]
    documents = [{"ids": part.tolist()} for part in np.split(tokens, cuts)]
    if decode is not None:
        documents = [document | {"text": decode(document["ids"])} for document in documents]
    result = places(opened, source, ids)[0] | {"documents": documents}

    def text() -> None:
        for part in result["parts"]:
            print(f"# window {window}: {part['path']} tokens {part['first']}-{part['last']}")
        for number, document in enumerate(documents):
            print(f"# document {number} ({len(document['ids'])} tokens)")
            print(document.get("text", " ".join(map(str, document["ids"]))))

    emit(result, json_output, text)


def _refuse_idle(needed: str, given: object, options: dict[str, object]) -> None:
    """An option that would change nothing without another one is a mistake."""
    idle = [name for name, value in options.items() if value is not None]
    if given is None and idle:
        raise EctypeError(f"{idle[0]} without {needed}", f"{needed} beside it", f"add {needed}, or leave {idle[0]} out")


def _open(
    run: Path | None,
    index_path: str | None,
    recipe: str | None,
    overrides: list[str] | None,
    remap: list[str] | None,
) -> "tuple[Recipe, TokenIndex]":
    """The recipe and index that a run folder or the options name; a plan takes OLMO_INDEX_PATH as training does."""
    from ectype.data.run_inputs import open_index
    from ectype.recipe.load import load_recipe
    from ectype.run.manifest import load_run_recipe

    if (run is None) == (recipe is None):
        raise EctypeError("neither or both of a run and a recipe", "--run DIR, or --recipe R", "give one of them")
    if run is None:
        spec, named = load_recipe(str(recipe), overrides or ()), os.environ.get("OLMO_INDEX_PATH") or None
    elif not run.is_dir():
        raise EctypeError(f"no run folder {run}", "a folder that `ectype train` wrote", "check the path")
    else:
        spec, named = load_run_recipe(run, overrides or ()), None
    return spec, open_index(spec, named if index_path is None else index_path, remap or (), run)


def _show_report(result: dict[str, Any]) -> None:
    for key, value in result.items():
        if isinstance(value, list):
            print(f"{key}: {len(value)}")
            for item in value:
                print(f"  {item}")
        else:
            print(f"{key}: {value:,}" if isinstance(value, int) else f"{key}: {value}")


def _show_audit(result: dict[str, Any]) -> None:
    for epoch in result["epochs"]:
        phase = f"phase {epoch['phase']}, " if len({e["phase"] for e in result["epochs"]}) > 1 else ""
        print(
            f"{phase}epoch {epoch['epoch']}, {epoch['steps']:,} steps: of {epoch['windows']:,} windows "
            f"{epoch['read_once']:,} read once, {epoch['read_twice']:,} read twice or more, {epoch['unread']:,} unread "
            f"({epoch['unread_dropped_tail']:,} dropped tail, {epoch['unread_not_reached']:,} not reached, "
            f"{epoch['missed']:,} missed)"
        )
        if epoch["dropped_windows"]:
            print(f"  dropped tail: windows {', '.join(map(str, epoch['dropped_windows']))}")
    for fault in result["faults"]:
        hosts = ", ".join(map(str, fault["hosts"])) or "unknown"
        windows = f"; windows {fault['windows']}" if fault["windows"] else ""
        print(f"steps {fault['first_step']}-{fault['last_step']}, hosts {hosts}: {fault['what']}{windows}")
    for note in result["notes"]:
        print(f"note: {note}")
    print("every window of these steps exactly once" if result["clean"] else "NOT every window exactly once")
