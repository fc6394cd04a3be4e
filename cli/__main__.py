"""``carillon``: one command for each thing that a person does; ``python -m cli`` is the same."""

from __future__ import annotations

import typer

from cli.inspect import inspect
from cli.plan import plan

app = typer.Typer(help="E-mail campaigns from your own AWS account.", no_args_is_help=True, add_completion=False)


@app.callback()
def _carillon() -> None:
    """A group of commands even while there is one of them."""


app.command()(inspect)
app.command()(plan)

if __name__ == "__main__":
    app(prog_name="carillon")
