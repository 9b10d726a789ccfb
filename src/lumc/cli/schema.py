"""The schemas of what is read by programs: of --json, of artifacts, of records."""

from __future__ import annotations

import json
from importlib.resources import files

import click

from lumc.errors import Exit, LumcError


@click.command()
@click.argument("name", required=False)
def schema(name: str | None) -> None:
    """Print a JSON schema, or list them.

    NAME is an output or a file; without one all are listed.
    What a schema says stays: fields are added, none is taken away or changes its meaning. A change
    that breaks this gets a new number in $id.
    """
    folder = files("lumc") / "schemas"
    every = {p.name.removesuffix(".json"): p for p in folder.iterdir() if p.name.endswith(".json")}
    if name is None:
        for known in sorted(every):
            click.echo(f"{known:<14} {json.loads(every[known].read_text())['title']}")
    elif name in every:
        click.echo(every[name].read_text(), nl=False)
    else:
        fix = f"there are: {', '.join(sorted(every))}"
        raise LumcError("E0203", f"there is no schema {name}", fix=fix, exit=Exit.USAGE)
