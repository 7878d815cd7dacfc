"""`ectype launch`: a run as jobs on this machine, a cluster or Slurm."""

import typer

from ectype.cli import launch_files, launch_local, launch_xpk

app = typer.Typer(
    help="Run unattended: submit, watch, restart until done. Example: ectype launch local status runs/calm",
    no_args_is_help=True,
)  # fmt: skip
app.add_typer(launch_local.app, name="local")
app.add_typer(launch_xpk.app, name="xpk")
app.add_typer(launch_files.slurm_app, name="slurm")
app.command()(launch_files.manifest)
