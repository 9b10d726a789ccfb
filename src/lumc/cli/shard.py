"""``lumc shard``: one graph as what every rank of a mesh runs."""

from __future__ import annotations

import re
from math import isfinite

import click
from click.core import ParameterSource

from lumc.cli.options import Number, options

UNITS = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
QUANTITY = re.compile(r"([0-9.]+)([kMGT]?)(B/s|FLOP/s)")
FOR_MESH = (
    "output",
    "link",
    "compute",
    "whole",
    "check",
    "batches",
)  # options, by the names of parameters
FOR_PLAN = "dtype", "top", "as_json"
SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}


def mesh(_: click.Context, __: click.Parameter, value: str | None) -> dict[str, int]:
    """``tp=4,dp=2``: axes with their ranks, in order."""
    found = dict[str, int]()
    if value is None:
        return found
    for text in value.split(","):
        name, ranks = (*text.split("=", 1), "")[:2]
        fits = re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]{0,31}=[0-9]{1,5}", text) and int(ranks) > 1
        if not fits or name in found:
            what = f"{value!r}: expected axes of 2 or more ranks, each once, such as tp=4,dp=2."
            raise click.BadParameter(what)
        found[name] = int(ranks)
    return found


def plan(_: click.Context, __: click.Parameter, value: str | None) -> tuple[int, str] | None:
    """``1024xH100``: how many devices, and which."""
    if value is None:
        return None
    from lumc.shard.devices import DEVICES

    found = re.fullmatch(r"([1-9][0-9]{0,6})x(\w+)", value)
    if not found or found[2] not in DEVICES:
        what = f"{value!r}: expected devices such as 1024xH100, of {', '.join(DEVICES)}."
        raise click.BadParameter(what)
    return int(found[1]), found[2]


def require_one_task(ctx: click.Context, planned: bool) -> None:
    """A mesh or a plan, and the options of the other one left out."""
    if bool(ctx.params["mesh"]) == planned:
        raise click.UsageError("name a --mesh, or devices to --plan for.")
    other = FOR_MESH if planned else FOR_PLAN
    given = [n for n in other if ctx.get_parameter_source(n) is ParameterSource.COMMANDLINE]
    if given:
        names = {p.name: max(p.opts, key=len) for p in ctx.command.params}
        what = f"{names[given[0]]} goes with {'--mesh' if planned else '--plan'}."
        raise click.UsageError(what)


def speed(text: str, unit: str) -> float:
    """``200GB/s`` in bytes, ``400TFLOP/s`` in operations a second."""
    found = QUANTITY.fullmatch(text)
    try:
        value = float(found[1]) * UNITS[found[2]] if found and found[3] == unit else 0.0
    except ValueError:
        value = 0.0
    if not (isfinite(value) and value > 0):
        raise click.BadParameter(f"{text!r}: expected a speed, such as 200G{unit}.")
    return value


def duration(text: str) -> float:
    """``8us`` in seconds."""
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)(us|ms|s)", text)
    if not found:
        raise click.BadParameter(f"{text!r}: expected a time, such as 8us.")
    return float(found[1]) * SECONDS[found[2]]


def link(_: click.Context, __: click.Parameter, value: str) -> tuple[float, float]:
    """``200GB/s,8us``"""
    bandwidth, latency = (*value.split(",", 1), "")[:2]
    return speed(bandwidth, "B/s"), duration(latency)


def compute(_: click.Context, __: click.Parameter, value: str) -> tuple[float, float]:
    """``400TFLOP/s,2TB/s``"""
    flops, stream = (*value.split(",", 1), "")[:2]
    return speed(flops, "FLOP/s"), speed(stream, "B/s")


@click.command()
@click.option(
    "--mesh",
    metavar="AXIS=N,..",
    callback=mesh,
    help="Axes of the mesh with their ranks, in the order in which values are dealt: tp=4,dp=2. "
    "The ranks along pp are stages of a pipeline.",
)
@click.option(
    "--link",
    metavar="SPEED,TIME",
    default="200GB/s,8us",
    callback=link,
    show_default=True,
    help="What a rank sends in a second, and what a step of a collective takes besides.",
)
@click.option(
    "--compute",
    metavar="SPEED,SPEED",
    default="400TFLOP/s,2TB/s",
    callback=compute,
    show_default=True,
    help="Products of a rank, and bytes of its memory, in a second.",
)
@click.option(
    "--price",
    type=Number(0.0),
    default=1.0,
    metavar="SECONDS",
    show_default=True,
    help="What a gigabyte of weights and states costs that a rank holds; 0: memory is free.",
)
@click.option(
    "--batches",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Micro-batches: so many parts of the inputs are taken one after the other.",
)
@click.option("--whole", metavar="OUTPUT", multiple=True, help="Every rank has it; repeatable.")
@click.option("--check", is_flag=True, help="Compute both graphs in float64 and compare them.")
@click.option(
    "--plan",
    metavar="NxDEVICE",
    callback=plan,
    help="Instead: which meshes of so many devices are expected to be fastest, such as 1024xH100.",
)
@click.option(
    "--top",
    type=click.IntRange(1),
    default=10,
    show_default=True,
    help="How many meshes --plan lists.",
)
@click.option(
    "--timeline",
    metavar="FILE",
    help="What stages do when (of --plan those of the first mesh), for ui.perfetto.dev.",
)
@options("input", "out", "dim", "dtype", "json", "verbose")
@click.pass_context
def shard(
    ctx: click.Context,
    source: str,
    output: str,
    mesh: dict[str, int],
    link: tuple[float, float],
    compute: tuple[float, float],
    price: float,
    batches: int,
    whole: tuple[str, ...],
    check: bool,
    dims: tuple[str, ...],
    plan: tuple[int, str] | None,
    top: int,
    timeline: str | None,
    dtype: str | None,
    as_json: bool,
    verbose: int,
) -> None:
    """Divide a graph among the ranks of a mesh: .lg in, .lg out.

    The result is what every rank runs on its parts of inputs, weights and states, with the
    collectives between them. How each value is divided follows from the index maps; of what is
    possible the choice takes least by --link, --compute and --price.

    \b
    lumc shard model.lg --mesh tp=4,dp=2 -o ranks.lg
    lumc shard model.lg --mesh pp=2,tp=2 -o ranks.lg
    lumc shard step.lg --plan 1024xH100 --dtype bf16
    """
    require_one_task(ctx, plan is not None)
    if plan:
        from lumc.command import planning

        said = planning.Saying(top, timeline, as_json, verbose)
        planning.plan(source, *plan, dims, bool(dtype), price / 1e9, said)
        return
    from lumc.command import shard

    speeds = shard.Speeds(*compute, *link, price / 1e9)
    shard.divide(source, output, mesh, speeds, whole, check, dims, batches, timeline, verbose)
