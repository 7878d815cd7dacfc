"""`ectype recipes`: list and show what ships."""

from typing import Annotated

import typer

from ectype.cli.output import JSON_OPTION, emit, verb

app = typer.Typer(help="List and show recipes and placements. Example: ectype recipes", invoke_without_command=True)
PLACEMENTS_OPTION = typer.Option("--placements", help="Placements instead of recipes.")


@app.callback()
def recipes(
    context: typer.Context,
    placements: Annotated[bool, PLACEMENTS_OPTION] = False,
    json_output: Annotated[bool, JSON_OPTION] = False,
) -> None:
    """List the shipped recipes. Example: ectype recipes"""
    if context.invoked_subcommand is None:
        _list(placements=placements, json_output=json_output)


@app.command()
@verb
def show(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Shipped name or YAML file.")],
    overrides: Annotated[list[str] | None, typer.Option("--set", help="section.key=value; may repeat.")] = None,
    placement: Annotated[bool, typer.Option("--placement", help="NAME is a placement.")] = False,
    json_output: Annotated[bool, JSON_OPTION] = False,
) -> None:
    """Print a resolved recipe with its hash. Example: ectype recipes show toy-calm --set schedule.peak=1e-3"""
    from ectype.recipe.load import load_placement, load_recipe, recipe_hash, to_yaml

    if placement:
        spec, header = load_placement(name, overrides or ()), {}
    else:
        spec = load_recipe(name, overrides or ())
        header = {"hash": recipe_hash(spec)}

    def text() -> None:
        for key, value in header.items():
            print(f"# {key}: {value}")
        print(to_yaml(spec), end="")

    emit(header | {"resolved": spec.model_dump(mode="json")}, json_output, text)


@verb
def _list(placements: bool, json_output: bool) -> None:
    from ectype.recipe.load import load_placement, load_recipe, shipped

    kind, load = ("placement", load_placement) if placements else ("recipe", load_recipe)
    found = {name: load(name).description for name in shipped(kind)}

    def text() -> None:
        width = max(map(len, found), default=0)
        for name, description in found.items():
            print(f"{name:{width}}  {description}")

    emit({f"{kind}s": found}, json_output, text)
