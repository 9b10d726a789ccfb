"""The commands: each parses its options, calls one function and writes the result."""

from __future__ import annotations

import os
import signal
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lumc import __version__
from lumc.command.options import PROFILE, options
from lumc.errors import Exit, LumcError

if TYPE_CHECKING:
    from lumc.command.passes import ProfileOptions


def main() -> None:
    """Run the command line; every failure is one message and the right exit code."""
    warnings.showwarning = lambda message, *_: click.echo(f"warning: {message}", err=True)
    try:
        code = commands.main(standalone_mode=False)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # it is done: too late for ^C
        sys.stdout.flush()
        sys.exit(code or 0)
    except LumcError as e:
        click.echo(str(e), err=True)
        sys.exit(int(e.exit))
    except click.exceptions.Abort:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # one more finds nothing left to interrupt
        click.echo("interrupted", err=True)
        sys.exit(int(Exit.INTERRUPTED))
    except click.ClickException as e:
        e.show()
        sys.exit(e.exit_code)
    except BrokenPipeError:  # the reader went away, as in `lumc show x | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except Exception as e:
        from lumc.report.log import unexpected

        click.echo(unexpected(e, sys.argv), err=True)
        sys.exit(int(Exit.FAILED))


def cache_folder(chosen: str | None) -> Path:
    """Where timing records are: as told, with the project, or with the user."""
    if chosen:
        return Path(chosen)
    return Path("kernels_cache") if Path("kernels_cache").is_dir() else user_folder()


def user_folder() -> Path:
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "lumc"


def objects_folder() -> Path | None:
    """Where compiled objects are kept: with the user, in $LUMC_OBJECTS, or not if that is empty."""
    chosen = os.environ.get("LUMC_OBJECTS", str(user_folder() / "objects"))
    return Path(chosen) if chosen else None


def profile_options(cache: str | None, **chosen: Any) -> ProfileOptions:
    from lumc.command.passes import ProfileOptions

    return ProfileOptions(cache=cache_folder(cache), **chosen)


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="lumc")
def commands() -> None:
    """Make neural networks fast by search.

    \b
    lumc import bert/ --dim b=1 --dim s=128 -o bert.lg
    lumc compile bert.lg -o bert.lb
    lumc run bert.lb --input input_ids=ids.npy --input attention_mask=mask.npy -o out.npz

    'compile' is search | profile | codegen | link; every pass reads one file and writes one file.
    """


@commands.command("import")
@click.argument("source", metavar="FOLDER|MODEL.onnx|SCRIPT.py:FUNCTION")
@options("out", "dim")
@click.option("--copy-weights", is_flag=True, help="Copy the weights beside the graph.")
@options("dtype", "weights", "verbose")
def import_(
    source: str,
    output: str,
    dims: tuple[str, ...],
    copy_weights: bool,
    dtype: str | None,
    weights: str | None,
    verbose: int,
) -> None:
    """Lower a model to the twelve primitives: a .lg graph.

    SOURCE is a Hugging Face folder (config.json + safetensors), an ONNX file, or a Python script
    whose FUNCTION returns a lumc Model (the script is run: use only code you trust). Weights are
    referenced where they lie unless --copy-weights is given; --dtype and --weights say how they
    are read.
    """
    from lumc.command import passes

    wanted = passes.Precision(dtype, weights)
    passes.import_model(source, output, dims, copy_weights, wanted, verbose)


@commands.command()
@options("input", "out", "target", "dim", "dtype", "weights", "limits", "seed", "verbose")
def search(
    source: str,
    output: str,
    target: str,
    dims: tuple[str, ...],
    dtype: str | None,
    weights: str | None,
    max_nodes: int,
    seed: int,
    verbose: int,
) -> None:
    """Find equivalent programs: .lg in, .ls search space out."""
    from lumc.command import passes

    wanted = passes.Precision(dtype, weights)
    passes.search(source, output, target, dims, wanted, max_nodes, seed, verbose)


@commands.command()
@options("input", "out", *PROFILE, "trace", "verbose")
def profile(source: str, output: str, trace: str | None, verbose: int, **chosen: Any) -> None:
    """Choose the fastest program by measuring: .ls in, .lp plan out.

    Stops when no kernel can gain, or after the budget; Ctrl-C writes the best plan so far.
    Times are kept: the next search goes on where this one ended.
    """
    from lumc.command import passes

    passes.profile(source, output, profile_options(**chosen), verbose, trace)


@commands.command()
@click.option("--check-tiles", is_flag=True, help="Verify tile programs after every pass (E0417).")
@options("input", "out", "verbose")
def codegen(source: str, output: str, check_tiles: bool, verbose: int) -> None:
    """Print the chosen kernels: .lp in, .lk kernels out."""
    from lumc.command import passes

    passes.codegen(source, output, check_tiles, verbose)


@commands.command()
@click.argument("sources", metavar="[FILE|-]...", nargs=-1)
@click.option("-o", "--output", metavar="BUNDLE", required=True, help="The bundle, model.lb.")
@options("zip", "cc", "nvcc", "verbose")
def link(
    sources: tuple[str, ...],
    output: str,
    as_zip: bool,
    cc: str | None,
    nvcc: str | None,
    verbose: int,
) -> None:
    """Compile the kernels and pack the weights: .lk in, .lb bundle out.

    Several .lk files of one graph, each for another target, make one bundle that runs on all.
    """
    from lumc.command import passes

    compilers = passes.Compilers(cc, nvcc, objects_folder())
    passes.link(sources or ("-",), output, as_zip, compilers, verbose)


@commands.command("compile")
@options("input")
@click.option("-o", "--output", metavar="BUNDLE", required=True, help="The bundle, model.lb.")
@options(*PROFILE, "target", "dim", "dtype", "weights", "limits", "zip")
@click.option("--save-temps", metavar="DIR", help="Keep the artifact of every pass here.")
@options("trace", "verbose")
def compile_(
    source: str,
    output: str,
    target: str,
    dims: tuple[str, ...],
    dtype: str | None,
    weights: str | None,
    max_nodes: int,
    as_zip: bool,
    save_temps: str | None,
    trace: str | None,
    verbose: int,
    **chosen: Any,
) -> None:
    """All passes in a row: a .lg graph (or anything 'import' reads) to a bundle."""
    from lumc.command import passes

    measuring, kept = profile_options(**chosen), objects_folder()
    how = passes.CompileOptions(
        measuring, target, dims, max_nodes, as_zip, save_temps, kept, verbose, trace
    )
    passes.compile_model(source, output, how, passes.Precision(dtype, weights))


@commands.command()
@click.argument("bundle")
@options("inputs")
@click.option("-o", "--output", metavar="FILE", help=".npz, or .npy for a single output.")
@click.option("--state", metavar="FILE.npz", help="Start from this state and write the new one.")
@options("entry", "device", "threads", "trace", "json")
def run(
    bundle: str,
    inputs: tuple[str, ...],
    output: str | None,
    state: str | None,
    entry: str,
    device: str | None,
    threads: int,
    trace: str | None,
    as_json: bool,
) -> None:
    """Run a bundle on .npy or .npz inputs.

    --trace times every launch on every thread of a second run; it costs a few ns per launch.
    """
    from lumc.command import bundles

    bundles.run(bundle, inputs, output, state, entry, threads, as_json, trace, device or "")


@commands.command()
@click.argument("bundle")
@options("inputs")
@click.option("--source", "model", help="Compare with this .lg, .onnx or Hugging Face folder too.")
@click.option(
    "--tolerance",
    type=float,
    help="Relative L2 error; default: 1e-5, f16 2e-3, bf16 1e-2, q8 weights 2e-2, ints 0.",
)
@options("entry", "device", "threads", "seed", "json")
def verify(
    bundle: str,
    inputs: tuple[str, ...],
    model: str | None,
    tolerance: float | None,
    entry: str,
    device: str | None,
    threads: int,
    seed: int,
    as_json: bool,
) -> None:
    """Compare a bundle with the float64 oracle; exit code 3 on a difference.

    Inputs that are not given are drawn at random. With --source, the original model is also run by
    onnxruntime (ONNX) or by torch and transformers (Hugging Face), when they are installed. A .lg
    is computed in float64: so is shown what reduced precision costs.
    """
    from lumc.command import bundles

    bundles.verify(bundle, inputs, model, tolerance, entry, threads, seed, as_json, device or "")


@commands.command()
@click.argument("bundle")
@options("inputs")
@click.option("--seconds", default=1.0, show_default=True, help="How long to sample.")
@options("entry", "device", "threads", "seed", "json")
def bench(
    bundle: str,
    inputs: tuple[str, ...],
    seconds: float,
    entry: str,
    device: str | None,
    threads: int,
    seed: int,
    as_json: bool,
) -> None:
    """Time a bundle; the minimum is the figure to compare."""
    from lumc.command import bundles

    bundles.bench(bundle, inputs, seconds, entry, threads, seed, as_json, device or "")


@commands.command()
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


@commands.command()
@options("input")
@click.option("--kernel", metavar="NAME", help="Only this kernel: its name or its key.")
@click.option("--best", metavar="FILE|-", help="Write the best configuration as records instead.")
@options("cache", "json")
def explain(
    source: str, kernel: str | None, best: str | None, cache: str | None, as_json: bool
) -> None:
    """Say why a plan is as it is: .lp in (or .lk, .lb with the plan beside it; .ls: an estimate).

    For every kernel: what it computes, how it runs, its time and roofline, which laws led to it,
    which candidates lost and by how much, and why the search ended. Losing candidates come from
    the records, laws from the .ls beside the plan. The records that --best writes make the same
    plan on an equal machine: 'lumc cache merge' takes them, 'lumc compile --frozen' uses them.
    """
    from lumc.report import explain as report

    report.explain(source, kernel, best, cache_folder(cache), as_json)


@commands.command()
@options("input")
@click.option("-o", "--output", metavar="FILE|-", required=True, help="The page, report.html.")
@options("cache")
def report(source: str, output: str, cache: str | None) -> None:
    """Draw a plan as one HTML page: .lp in (or .lk, .lb with the plan beside it).

    Timeline, kernels, roofline, graph, progress of the search, sources. The page needs no network.
    """
    from lumc.report import page

    page.report(source, output, cache_folder(cache))


@commands.command()
@options("nvcc", "json")
def targets(nvcc: str | None, as_json: bool) -> None:
    """List the targets, and which of them this machine can run."""
    from lumc.report import machine

    machine.targets(nvcc, as_json)


@commands.command()
@options("cc", "nvcc", "json")
@click.option("--report", metavar="FILE", help="Write it to a file as well, to send it along.")
def doctor(cc: str | None, nvcc: str | None, as_json: bool, report: str | None) -> None:
    """Say what lumc finds on this machine and what is missing; a Mac's GPU is tested."""
    from lumc.report import machine

    machine.doctor(cc, nvcc, as_json, report)


@commands.group()
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
    """Drop records that are slower, older or damaged, and compiled objects of no use."""
    from lumc.report import cache as report

    report.prune(cache_folder(cache), objects_folder())


@cache.command("merge")
@click.argument("sources", metavar="FILE|DIR...", nargs=-1, required=True)
@options("cache")
def cache_merge(sources: tuple[str, ...], cache: str | None) -> None:
    """Take in the records of other machines; they seed searches and pass for none here."""
    from lumc.report import cache as report

    report.merge(cache_folder(cache), sources)


@cache.command("verify")
@options("cache")
def cache_verify(cache: str | None) -> None:
    """Read every record and compiled object; exit code 5 when some are damaged."""
    from lumc.report import cache as report

    report.verify(cache_folder(cache), objects_folder())


@cache.command("export")
@options("cache", "out")
def cache_export(cache: str | None, output: str) -> None:
    """Write the records as one file, for another machine or a repository."""
    from lumc.report import cache as report

    report.export(cache_folder(cache), output)
