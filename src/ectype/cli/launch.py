"""`ectype launch`: a run as jobs on this machine, a cluster or Slurm."""

import typer

from ectype.cli import launch_local

app = typer.Typer(
    help="Run unattended: submit, watch, restart until done. Example: ectype launch local status runs/calm",
    no_args_is_help=True,
)  # fmt: skip
app.add_typer(launch_local.app, name="local")
