"""The options that several commands share."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from math import inf, isfinite
from pathlib import Path
from typing import Any, TypeVar

import click

from lumc.limits import AGAIN, ENOUGH, LEVELS, MOST_NODES, MOST_THREADS
from lumc.voice import VOICE, voice

F = TypeVar("F", bound=Callable[..., Any])


class Number(click.FloatRange):
    """Of a range, and a number: NaN is in every range that click knows, infinity in open ones."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        found = super().convert(value, param, ctx)
        if not isfinite(found):
            self.fail(f"{value} is not a finite number.", param, ctx)
        return found


def thread_counts(_: click.Context, __: click.Parameter, value: str) -> tuple[int, ...]:
    """Numbers of threads, with commas between."""
    parts = value.split(",")
    if not all(p.isdecimal() and 1 <= int(p) <= MOST_THREADS for p in parts):
        what = f"{value!r}: expected numbers from 1 to {MOST_THREADS}, with commas between."
        raise click.BadParameter(what)
    return tuple(map(int, parts))


class Name(click.types.StringParamType):
    """Of a file or a folder: never empty, as a variable of the shell is that is not set."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return super().convert(value, param, ctx) or self.fail("an empty name.", param, ctx)


def arrays_file(_: click.Context, __: click.Parameter, value: str | None) -> str | None:
    """Where arrays are written: stdout, a device, a pipe, or a file that says what it holds."""
    there = Path(value or "-")
    if value and value != "-" and (there.is_file() or not there.exists()):
        if not value.endswith((".npy", ".npz")):
            raise click.BadParameter(f"{value!r}: a name that ends with .npy or .npz.")
        if re.fullmatch(r"\w+=.+", value):
            raise click.BadParameter(f"{value!r}: FILE alone; a file of this name is ./{value}.")
    return value


def no_stream(_: click.Context, __: click.Parameter, value: str) -> str:
    """Where a bundle is written."""
    if value == "-":
        raise click.BadParameter("a bundle is no stream: -o model.lb; a file called - is ./-.")
    return value


def cluster(_: click.Context, __: click.Parameter, value: str) -> str:
    """Where machines are found that measure."""
    if value and not re.fullmatch(r"ray(://[\w.:\[\]-]+)?|ssh-hosts:.+", value):
        what = "expected ray, ray://HOST:PORT, or ssh-hosts FILE"
        raise click.BadParameter(f"{value!r}: {what}.")
    return value


class Machines(click.Option):
    """An option of which one value, ``ssh-hosts``, is followed by the name of a file."""

    def add_to_parser(self, parser: Any, ctx: click.Context) -> None:
        super().add_to_parser(parser, ctx)
        own = parser._long_opt[self.opts[0]]
        process = own.process

        def with_file(value: str, state: Any) -> None:
            if value == "ssh-hosts" and state.rargs and not state.rargs[0].startswith("-"):
                value = f"ssh-hosts:{state.rargs.pop(0)}"
            process(value, state)

        own.process = with_file


UNITS = {"us": 1.0, "ms": 1e3, "s": 1e6}


def microseconds(_: click.Context, __: click.Parameter, value: str | None) -> float:
    """``5ms`` in us, 0 for none."""
    if value is None:
        return 0.0
    for unit, factor in UNITS.items():
        with suppress(ValueError):
            found = float(value.removesuffix(unit)) * factor
            if value.endswith(unit) and 0 < found < inf:
                return found
    raise click.BadParameter(f"{value!r}: expected a time, such as 80us, 5ms or 0.1s.")


SIZES = {"B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9}
SIZES |= {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30}


def nbytes(_: click.Context, __: click.Parameter, value: str | None) -> int:
    """``5MB`` in bytes, 0 for none."""
    if value is None:
        return 0
    number = value.rstrip("BGKMik")
    with suppress(ValueError, KeyError, OverflowError):
        found = int(float(number) * SIZES[value[len(number) :] or "B"])
        if found > 0:
            return found
    raise click.BadParameter(f"{value!r}: expected bytes, such as 5000000, 5MB or 5MiB.")


def options(*names: str) -> Callable[[F], F]:
    """Attach options that several commands share."""

    def attach(function: F) -> F:
        for name in reversed(names):
            function = OPTIONS[name](function)
        return function

    return attach


OPTIONS: dict[str, Callable[[Any], Any]] = {
    "input": click.argument("source", metavar="[FILE|-]", default="-"),
    "out": click.option("-o", "--output", metavar="FILE|-", default="-", help="Default: stdout."),
    "bundle": click.option(
        *("-o", "--output"),
        metavar="BUNDLE",
        required=True,
        callback=no_stream,
        help="The bundle, model.lb.",
    ),
    "dim": click.option(
        *("--dim", "dims"),
        metavar="NAME=N",
        multiple=True,
        help="Bind a symbolic dim, or bound it: NAME=LEAST..MOST[:MULTIPLE]; repeatable.",
    ),
    "tune": click.option(
        *("--tune", "tuned"),
        metavar="NAME=N,N",
        multiple=True,
        help="Choose kernels at these values of a dim that runs choose, and at the greatest; "
        "repeatable.  [default: the least, 16 times it, .., the greatest]",
    ),
    "run-dim": click.option(
        *("--dim", "dims"),
        metavar="NAME=N",
        multiple=True,
        help="A dim of this run, if the shapes of the inputs do not tell it; repeatable.",
    ),
    "dtype": click.option(
        "--dtype",
        type=click.Choice(["bf16", "f16"]),
        help="Store weights and activations in 16 bits, compute in f32.",
    ),
    "weights": click.option(
        "--weights",
        type=click.Choice(["q8"]),
        help="Store weights of products as int8, with one scale for 32.",
    ),
    "activations": click.option(
        "--activations",
        type=click.Choice(["i8"]),
        help="Round what products with quantised weights read to 8 bits; see docs/precision.md.",
    ),
    "target": click.option(
        "--target",
        default="cpu:native",
        show_default=True,
        help="What to compile for, see 'lumc targets'; compile takes several, with commas between. "
        "cuda:sm_90+tf32 rounds operands of f32 products for the tensor cores; cpu:native+vnni "
        "multiplies quantised weights as integers, see docs/precision.md.",
    ),
    "estimate": click.option(
        "--estimate", is_flag=True, help="Choose by the roofline estimate; measure nothing."
    ),
    "allow-estimate": click.option(
        "--allow-estimate",
        is_flag=True,
        help="Choose by estimate where nothing could be measured, instead of exit code 6.",
    ),
    "budget": click.option(
        "--budget",
        metavar="TIME",
        default="60s",
        show_default=True,
        help="How long to measure: 60s, 5m.",
    ),
    "trials": click.option(
        "--trials",
        type=click.IntRange(0),
        default=0,
        help="Candidates of each kernel, at most; 0: as time allows.",
    ),
    "fraction": click.option(
        "--target-fraction",
        "fraction",
        type=Number(0, 1),
        default=ENOUGH,
        show_default=True,
        help="A kernel at this share of its roofline is good enough; 1: never.",
    ),
    "target-time": click.option(
        "--target-time",
        "target_us",
        metavar="TIME",
        callback=microseconds,
        help="End the search when the model is measured to take no longer: 80us, 5ms.",
    ),
    "memory": click.option(
        "--memory",
        metavar="BYTES",
        callback=nbytes,
        help="Of the arena and of scratch memory, at most: 5000000, 5MB or 5MiB.",
    ),
    "between": click.option(
        "--memory",
        metavar="BYTES",
        callback=nbytes,
        help="Of values between regions, at most; others are computed again.",
    ),
    "frozen": click.option(
        "--frozen", is_flag=True, help="Measure nothing; fail when a record is missing."
    ),
    "device-records": click.option(
        "--device-records",
        metavar="ID",
        default="",
        help="--frozen, with the records of another machine: see 'lumc cache list'.",
    ),
    "on": click.option(
        "--on",
        cls=Machines,
        type=click.types.StringParamType(),  # no name of a file: none is none
        metavar="ray|ray://HOST:PORT|ssh-hosts FILE",
        default="",
        callback=cluster,
        help="Measure on machines like this one: of a Ray cluster, or hosts that a file names.",
    ),
    "cache": click.option(
        "--cache",
        metavar="DIR",
        envvar="LUMC_CACHE",
        help="Of timing records; default: kernels_cache/ here or above, else of the user.",
    ),
    "allow": click.option(
        "--allow-path",
        "allowed",
        type=click.Path(exists=True, file_okay=False),
        metavar="DIR",
        multiple=True,
        help="Weights may lie there too, not only beside or below the file; repeatable.",
    ),
    "verbose": click.option(
        "-v",
        "--verbose",
        count=True,
        help="-v timings, -vv choices and tile programs, -vvv sources.",
    ),
    "seed": click.option(
        "--seed",
        type=click.IntRange(0),
        default=0,
        show_default=True,
        help="Seed of every random choice.",
    ),
    "json": click.option("--json", "as_json", is_flag=True, help="Machine-readable output."),
    "cc": click.option("--cc", envvar="CC", help="C compiler; default: $CC, gcc, cc, clang, zig."),
    "nvcc": click.option(
        "--nvcc", envvar="NVCC", help="CUDA compiler; default: $NVCC, NVRTC of its wheel, nvcc."
    ),
    "hipcc": click.option(
        "--hipcc", envvar="HIPCC", help="HIP compiler; default: $HIPCC, clang of ROCm, clang."
    ),
    "entry": click.option(
        "--entry", default="", help="Which function of the model; default: the first."
    ),
    "threads": click.option(
        "--threads",
        type=click.IntRange(1, MOST_THREADS),
        default=1,
        show_default=True,
        help="Threads that a run has.",
    ),
    "mesh": click.option(
        "--mesh",
        is_flag=True,
        help="Start all ranks of a bundle for a mesh, as processes on this machine.",
    ),
    "device": click.option(
        "--device",
        type=click.Choice(["cuda", "hip", "metal", "cpu"]),
        default=None,
        help="Default: the first of these that the bundle has a plan for and that works here.",
    ),
    "inputs": click.option(
        "--input",
        "inputs",
        metavar="[NAME=]FILE|-",
        multiple=True,
        help="A .npy (NAME= may be left out for a single input), - for one from stdin, or an .npz; "
        "repeatable.",
    ),
    "trace": click.option(
        "--trace",
        metavar="FILE",
        help="Write a timeline of what took how long, for ui.perfetto.dev.",
    ),
    "recompute": click.option(
        "--recompute",
        "again",
        type=click.Choice([str(n) for n in LEVELS]),
        callback=lambda _, __, value: int(value),
        default=str(AGAIN),
        show_default=True,
        help="Operations per element that regions do again to store less.",
    ),
    "limits": click.option(
        "--max-nodes",
        type=click.IntRange(1),
        default=MOST_NODES,
        show_default=True,
        help="Nodes of an e-graph, at most.",
    ),
    "emit": click.option(
        "--emit",
        type=click.Choice(["bundle", "zip", "c", "static", "triton"]),
        default="bundle",
        show_default=True,
        help="A folder for lumc-run, the same as one file, plain C with a CMakeLists.txt, an "
        "archive (.a) with its header, or a model for Triton Inference Server. C and archives need "
        "nothing of lumc.",
    ),
    "zip": click.option("--zip", "as_zip", is_flag=True, help="The same as --emit zip."),
    "triton": click.option("--triton", is_flag=True, help="The same as --emit triton."),
}


FILES = re.compile("FILE|DIR|BUNDLE")  # in what help says that an option takes


def hear(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    """-q and --log-json, before or behind the name of a command, or both."""
    said = ctx.meta.setdefault(__name__, {})
    said[param.name] = value or said.get(param.name, False)
    VOICE.set(voice(**said))


def voiced(command: click.Command) -> None:
    """Give a command, and those of a group, the options that say how messages are said, and names
    of files that are not empty."""
    for param in command.params:
        named = isinstance(param, click.Argument) or FILES.search(param.metavar or "")
        if named and param.type is click.STRING:
            param.type = Name()
    shared: dict[str, Any] = {"is_flag": True, "expose_value": False, "callback": hear}
    quiet, log_json = "Say only what went wrong.", "Messages on stderr as JSON, one object a line."
    command.params.append(click.Option(["-q", "--quiet"], help=quiet, **shared))
    command.params.append(click.Option(["--log-json"], help=log_json, **shared))
    for inner in command.commands.values() if isinstance(command, click.Group) else ():
        voiced(inner)


PROFILE = [
    "estimate",
    "allow-estimate",
    "budget",
    "trials",
    "fraction",
    "target-time",
    "memory",
    "seed",
    "threads",
    "frozen",
    "device-records",
    "on",
]
PROFILE += ["cc", "nvcc", "cache"]
