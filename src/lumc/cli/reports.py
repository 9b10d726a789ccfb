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
@click.option("--timeline", metavar="FILE", help="When stages do what, for ui.perfetto.dev.")
@options("entry", "json")
def show(
    file: str,
    kernel: str | None,
    tile: bool,
    dot: str | None,
    svg: str | None,
    timeline: str | None,
    entry: str,
    as_json: bool,
) -> None:
    """Print any artifact, one node per line; draw its graph."""
    from lumc.report import show as report

    ways = {"--json": as_json, "--svg or --dot": svg or dot, "--kernel or --tile": kernel or tile}
    ways["--timeline"] = timeline
    if len(asked := [way for way, given in ways.items() if given]) > 1:
        raise click.UsageError(f"{asked[0]} and {asked[1]} are two forms: choose one.")
    report.show(file, kernel, tile, dot, svg, entry, timeline, as_json)


@click.command()
@click.argument("source", metavar="[FILE|CODE|-]", default="-")
@click.option("--kernel", metavar="NAME", help="Only this kernel: its name or its key.")
@click.option("--best", metavar="FILE|-", help="Write the best configuration as records instead.")
@options("cache", "json")
def explain(
    source: str, kernel: str | None, best: str | None, cache: str | None, as_json: bool
) -> None:
    """Say why a plan is as it is, or what E0312 means.

    Reads a plan (.lp), kernels or a bundle with the plan beside it, or a search space (.ls), of
    which the estimate is explained. For every kernel: what it computes, how it runs, its time and
    roofline, which laws led to it, which candidates lost and by how much, and why the search ended.
    Losing candidates come from the records, laws from the .ls beside the plan. The records that
    --best writes make the same plan on an equal machine: 'lumc cache merge' takes them, 'lumc
    compile --frozen' uses them.
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
    """Compare two artifacts of one kind.

    Exit code 3 if anything differs. Nodes of graphs are compared whatever their names are. Plans
    are compared by kernels, schedules and times, bundles by manifests and files.
    """
    from lumc.report import diff as report

    report.diff(a, b, as_json)


@click.command()
@options("input")
@click.option(
    "-o", "--output", metavar="FILE|-", required=True, help="The page, report.html; losses.svg."
)
@options("cache")
def report(source: str, output: str, cache: str | None) -> None:
    """Draw a plan as one HTML page, or losses as SVG.

    Reads a plan (.lp), or kernels or a bundle with the plan beside it. The page has timeline,
    kernels, roofline, graph, progress of the search and sources, and needs no network. Of a .csv
    that 'lumc-run --losses' wrote it draws the losses.
    """
    from lumc.report import losses, page

    if losses.is_losses(source):
        losses.draw(source, output)
        return
    page.report(source, output, cache_folder(cache))


@click.command()
@options("cc", "nvcc", "hipcc", "json")
def targets(cc: str | None, nvcc: str | None, hipcc: str | None, as_json: bool) -> None:
    """List the targets that build and run here."""
    from lumc.report import machine

    machine.targets(machine.Asked(cc, nvcc, hipcc), as_json)


@click.command()
@options("cc", "nvcc", "hipcc", "json")
@click.option("--report", metavar="FILE", help="Write it to a file as well, to send it along.")
def doctor(
    cc: str | None, nvcc: str | None, hipcc: str | None, as_json: bool, report: str | None
) -> None:
    """Say what this machine has and what is missing.

    On a Mac, its GPU is tested.
    """
    from lumc.report import machine

    machine.doctor(machine.Asked(cc, nvcc, hipcc), as_json, report)
