"""The commands for the timing records that are kept."""

from __future__ import annotations

import click

from lumc.cli.options import options
from lumc.disk.project import cache_folder
from lumc.environment import objects_folder


@click.group()
def cache() -> None:
    """Look after the timing records that 'profile' keeps."""


@cache.command("list")
@options("cache", "json")
def cache_list(cache: str | None, as_json: bool) -> None:
    """One line per kernel: trials, best time, why its search ended."""
    from lumc.report import cache as report

    report.list_(cache_folder(cache), as_json)


@cache.command("prune")
@options("cache")
def cache_prune(cache: str | None) -> None:
    """Drop records and objects of no use.

    Of every candidate the fastest record stays, of every choice the last; compiled objects stay if
    they are whole and were used lately.
    """
    from lumc.report import cache as report

    report.prune(cache_folder(cache), objects_folder())


@cache.command("merge")
@click.argument("sources", metavar="FILE|DIR...", nargs=-1, required=True)
@options("cache")
def cache_merge(sources: tuple[str, ...], cache: str | None) -> None:
    """Take in the records of other machines.

    Searches here try their schedules first, but measure them again.
    """
    from lumc.report import cache as report

    report.merge(cache_folder(cache), sources)


@cache.command("verify")
@options("cache")
def cache_verify(cache: str | None) -> None:
    """Read every record and compiled object.

    Exit code 5 when some are damaged.
    """
    from lumc.report import cache as report

    report.verify(cache_folder(cache), objects_folder())


@cache.command("export")
@options("cache", "out")
def cache_export(cache: str | None, output: str) -> None:
    """Write the records as one file.

    For another machine, or a repository.
    """
    from lumc.report import cache as report

    report.export(cache_folder(cache), output)
