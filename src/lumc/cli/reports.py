"""The commands that say what is in a file, or on this machine."""

from __future__ import annotations

import click

from lumc.cli.options import options
from lumc.disk.project import cache_folder


@click.command()
@click.argument("file", default="-")
@click.option("--kernel", metavar="NAME", help="Only this kernel, with its source if there is one.")
@click.option("--tile", is_flag=True, help="Of a plan: the tile program of this kernel, or of all.")
@click.option("--dot", metavar="FILE|-", help="Draw the graph as Graphviz text.")
@click.option("--svg", metavar="FILE|-", help="Draw the graph as SVG.")
@options("entry", "json")
def show(
    file: str,
    kernel: str | None,
    tile: bool,
    dot: str | None,
    svg: str | None,
    entry: str,
    as_json: bool,
) -> None:
    """Print any artifact, one node per line; draw its graph."""
    from lumc.report import show as report

    report.show(file, kernel, tile, dot, svg, entry, as_json)


@click.command()
@click.argument("source", metavar="[FILE|CODE|-]", default="-")
@click.option("--kernel", metavar="NAME", help="Only this kernel: its name or its key.")
@click.option("--best", metavar="FILE|-", help="Write the best configuration as records instead.")
@options("cache", "json")
def explain(
    source: str, kernel: str | None, best: str | None, cache: str | None, as_json: bool
) -> None:
    """Say why a plan is as it is: .lp in (or .lk, .lb with the plan beside it; .ls: an estimate).
    Of the code of an error, such as E0312, say what it means.

    For every kernel: what it computes, how it runs, its time and roofline, which laws led to it,
    which candidates lost and by how much, and why the search ended. Losing candidates come from
    the records, laws from the .ls beside the plan. The records that --best writes make the same
    plan on an equal machine: 'lumc cache merge' takes them, 'lumc compile --frozen' uses them.
    """
    from lumc.report import codes
    from lumc.report import explain as report

    if codes.IS_CODE.fullmatch(source):
        codes.explain(source, as_json)
        return
    report.explain(source, kernel, best, cache_folder(cache), as_json)


@click.command()
@click.argument("a", metavar="A")
@click.argument("b", metavar="B")
@options("json")
def diff(a: str, b: str, as_json: bool) -> None:
    """Say what differs between two artifacts of one kind; exit code 3 if anything does.

    Of graphs the nodes that differ, whatever they are called; of plans kernels, schedules and
    times; of bundles what the manifest says, and the files.
    """
    from lumc.report import diff as report

    report.diff(a, b, as_json)


@click.command()
@options("input")
@click.option("-o", "--output", metavar="FILE|-", required=True, help="The page, report.html.")
@options("cache")
def report(source: str, output: str, cache: str | None) -> None:
    """Draw a plan as one HTML page: .lp in (or .lk, .lb with the plan beside it).

    Timeline, kernels, roofline, graph, progress of the search, sources. The page needs no network.
    """
    from lumc.report import page

    page.report(source, output, cache_folder(cache))


@click.command()
@options("cc", "nvcc", "json")
def targets(cc: str | None, nvcc: str | None, as_json: bool) -> None:
    """List the targets: which of them can be built and run on this machine."""
    from lumc.report import machine

    machine.targets(nvcc, as_json, cc)


@click.command()
@options("cc", "nvcc", "json")
@click.option("--report", metavar="FILE", help="Write it to a file as well, to send it along.")
def doctor(cc: str | None, nvcc: str | None, as_json: bool, report: str | None) -> None:
    """Say what lumc finds on this machine and what is missing; a Mac's GPU is tested."""
    from lumc.report import machine

    machine.doctor(cc, nvcc, as_json, report)
