"""The command that makes a failing graph small."""

from __future__ import annotations

import click

from lumc.cli.options import Number, options


@click.command("reduce")
@click.argument("source", metavar="FILE.lg")
@click.option(
    "--check",
    metavar="CMD",
    required=True,
    help="Run on each smaller graph, whose path follows CMD or takes the place of {}.",
)
@click.option(
    "--timeout",
    type=Number(0, min_open=True),
    default=120.0,
    show_default=True,
    help="Seconds of a check.",
)
@options("out")
def reduce_(source: str, check: str, timeout: float, output: str) -> None:
    """Make a graph that shows a fault small.

    The result is a .lg of a few lines that still shows it.

    The fault is how CMD ends on FILE: its exit status, which must not be 0, or that it takes longer
    than the timeout. A smaller graph is taken when it is legal and CMD ends in the same way on it.
    No shell reads CMD: for pipes, and to say more closely what the fault is, give a script.

    \b
    lumc reduce model.lg --check 'lumc compile --estimate -o fault.lb' -o small.lg
    lumc reduce model.lg --check ./wrong.sh -o small.lg
    """
    from lumc.command import reduce

    reduce.reduce_graph(source, check, output, timeout)
