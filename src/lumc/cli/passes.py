"""The passes as commands, and all of them in a row."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lumc.cli.options import PROFILE, options
from lumc.disk.project import cache_folder
from lumc.environment import objects_folder
from lumc.limits import MOST_SEQUENCES

if TYPE_CHECKING:
    from lumc.command.plan import ProfileOptions


def profile_options(
    cache: str | None, frozen: bool, device_records: str, **chosen: Any
) -> ProfileOptions:
    from lumc.command.plan import ProfileOptions

    if chosen["estimate"] and frozen:
        raise click.UsageError("--estimate and --frozen are two ways to choose: name one.")
    if device_records and chosen["estimate"]:
        raise click.UsageError("--device-records and --estimate are two choices: take one.")
    if chosen["on"] and (frozen or device_records or chosen["estimate"]):
        what = "--on measures; --estimate, --frozen and --device-records do not: choose one."
        raise click.UsageError(what)
    frozen = frozen or bool(device_records)
    folder = cache_folder(cache)
    return ProfileOptions(cache=folder, frozen=frozen, device_records=device_records, **chosen)


def form(emit: str, as_zip: bool, triton: bool) -> str:
    """What is written: bundle, zip, c, static or triton."""
    said = [f"--emit {emit}"] * (emit != "bundle") + ["--zip"] * as_zip + ["--triton"] * triton
    forms = {text.removeprefix("--").removeprefix("emit ") for text in said}
    if len(forms) > 1:
        raise click.UsageError(f"{' and '.join(said)} are two forms: choose one.")
    return next(iter(forms), emit)


@click.command("import")
@click.argument("source", metavar="FOLDER|MODEL.onnx|MODEL.pt2|SCRIPT.py:FUNCTION")
@options("out", "dim")
@click.option(
    *("--shape", "shapes"),
    metavar="INPUT=N,N,..",
    multiple=True,
    help="The shape of an input of an ONNX model, which binds its dims; repeatable.",
)
@click.option(
    *("--value", "values"),
    metavar="INPUT=NUMBERS",
    multiple=True,
    help="The value of an input of an ONNX model, which becomes a constant; repeatable.",
)
@click.option(
    *("--count", "counts"),
    metavar="NODE=N",
    multiple=True,
    help="How many positions a NonZero or NonMaxSuppression of an ONNX model gives; repeatable.",
)
@click.option("--copy-weights", is_flag=True, help="Copy the weights beside the graph.")
@click.option(
    "--context",
    type=click.IntRange(1),
    metavar="ROWS",
    help="Import a language model that keeps what it has seen of a text, so many tokens.",
)
@click.option(
    "--rows",
    type=click.IntRange(1),
    metavar="N",
    help="New tokens that a run may have, with --context.  [default: 256]",
)
@click.option("--all-logits", is_flag=True, help="Logits of every new token, with --context.")
@click.option(
    "--sequences",
    type=click.IntRange(1, MOST_SEQUENCES),
    metavar="N",
    help="Texts that are kept at once, with --context.  [default: 1]",
)
@options("dtype", "weights", "activations", "verbose")
def import_(
    source: str,
    output: str,
    dims: tuple[str, ...],
    shapes: tuple[str, ...],
    values: tuple[str, ...],
    counts: tuple[str, ...],
    copy_weights: bool,
    context: int | None,
    rows: int | None,
    all_logits: bool,
    sequences: int | None,
    dtype: str | None,
    weights: str | None,
    activations: str | None,
    verbose: int,
) -> None:
    """Lower a model to the twelve primitives: a .lg graph.

    SOURCE is a Hugging Face folder (config.json + safetensors), an ONNX, GGUF or .pt2 file, or a
    Python script whose FUNCTION returns a lumc Model (the script is run: use only code you trust).
    Weights are referenced where they lie unless --copy-weights is given; --dtype and --weights say
    how they are read.
    """
    from lumc.command import sources
    from lumc.frontend.models.cache import ROWS, Cache
    from lumc.frontend.precision import Precision

    if context is None and (rows or all_logits or sequences):
        what = "--rows, --all-logits and --sequences are for models with a --context."
        raise click.UsageError(what)
    cache = None
    if context:
        cache = Cache(context, rows or min(ROWS, context), all_logits, sequences or 1)
    wanted = Precision(dtype, weights, activations)
    given = sources.parse_given(values, shapes, counts)
    sources.import_model(source, output, dims, copy_weights, wanted, verbose, cache, given)


@click.command()
@click.option(
    "--loss",
    metavar="NAME",
    required=True,
    help="What is differentiated: an output or a node, of one float.",
)
@click.option(
    "--wrt",
    metavar="NAMES",
    multiple=True,
    required=True,
    help="By what: inputs, weights, states, nodes. 'w*' stands for the first three; repeatable.",
)
@click.option("--stop", metavar="NAMES", multiple=True, help="What counts as constant; repeatable.")
@click.option(
    "--train",
    type=click.Choice(["adam", "adamw", "lion", "momentum", "sgd"]),
    help="Make the weights of --wrt states, and every run a step at the rate 'lr', an input.",
)
@click.option(
    "--decay", type=click.FloatRange(0), help="Weight decay of --train. Default: 0, of adamw 0.01."
)
@click.option("--no-decay", metavar="NAMES", multiple=True, help="Without it; repeatable.")
@click.option(
    "--clip",
    type=click.FloatRange(0, min_open=True),
    help="Scale the gradients of --train where their norm is above this.",
)
@click.option(
    "--scale-loss", is_flag=True, help="For f16: scale the loss of --train as gradients allow."
)
@options("entry", "input", "out", "dim", "verbose")
def grad(
    source: str,
    output: str,
    loss: str,
    wrt: tuple[str, ...],
    stop: tuple[str, ...],
    train: str | None,
    decay: float | None,
    no_decay: tuple[str, ...],
    clip: float | None,
    scale_loss: bool,
    entry: str,
    dims: tuple[str, ...],
    verbose: int,
) -> None:
    """Add gradients to a graph, or a step of training: .lg in, .lg out.

    The result also has an output NAME.grad for every value that --wrt names, of the same shape.
    Weights among them become inputs of every run: training changes them. With --train they become
    states, which every run changes, and no gradient is an output.

    \b
    lumc grad model.lg --loss loss --wrt 'w*' -o train.lg
    lumc grad model.lg --loss loss --wrt 'w*' --train adamw -o step.lg
    """
    from lumc.command import grad

    if not train and (decay is not None or no_decay or clip is not None or scale_loss):
        raise click.UsageError("--decay, --no-decay, --clip and --scale-loss go with --train.")
    training = grad.Training(train, decay, no_decay, clip, scale_loss) if train else None
    grad.differentiate(source, output, loss, wrt, stop, entry, dims, training, verbose)


@click.command()
@options("input", "out", "target", "dim", "tune", "dtype", "weights", "activations", "recompute")
@options("between", "limits", "verbose")
def search(
    source: str,
    output: str,
    target: str,
    dims: tuple[str, ...],
    tuned: tuple[str, ...],
    dtype: str | None,
    weights: str | None,
    activations: str | None,
    again: int,
    memory: int,
    max_nodes: int,
    verbose: int,
) -> None:
    """Find equivalent programs: .lg in, .ls search space out."""
    from lumc.command import passes
    from lumc.frontend.precision import Precision

    wanted = Precision(dtype, weights, activations)
    how = max_nodes, tuned, again, memory
    passes.search(source, output, target, dims, wanted, *how, verbose)


@click.command()
@options("input", "out", *PROFILE, "trace", "verbose")
def profile(source: str, output: str, trace: str | None, verbose: int, **chosen: Any) -> None:
    """Choose the fastest program: .ls in, .lp plan out.

    Measures candidates until no kernel can gain, or the budget is spent; Ctrl-C and SIGTERM write
    the best plan so far. If nothing could be measured there is no plan, and the exit code is 6.
    Times are kept: the next search goes on where this one ended.
    """
    from lumc.command import passes

    passes.profile(source, output, profile_options(**chosen), verbose, trace)


@click.command()
@click.option("--check-tiles", is_flag=True, help="Verify tile programs after every pass (E0417).")
@options("input", "out", "verbose")
def codegen(source: str, output: str, check_tiles: bool, verbose: int) -> None:
    """Print the chosen kernels: .lp in, .lk kernels out."""
    from lumc.command import passes

    passes.codegen(source, output, check_tiles, verbose)


@click.command()
@click.argument("sources", metavar="[FILE|-]...", nargs=-1)
@options("bundle", "emit", "zip", "triton", "cc", "nvcc", "hipcc")
@click.option(
    "--triton-headers",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    metavar="DIR",
    envvar="LUMC_TRITON_HEADERS",
    help="Triton's own headers, DIR/triton/core/*.h; default: the declarations of lumc.",
)
@options("allow", "verbose")
def link(
    sources: tuple[str, ...],
    output: str,
    emit: str,
    as_zip: bool,
    triton: bool,
    cc: str | None,
    nvcc: str | None,
    hipcc: str | None,
    triton_headers: Path | None,
    allowed: tuple[str, ...],
    verbose: int,
) -> None:
    """Compile the kernels, pack the weights: .lk in, .lb out.

    Kernels are code: link only those of people whose programs you would run.
    Several .lk files of one graph, each for another target, make one bundle that runs on all.
    With --emit c or static, -o is a folder, whose name is the prefix of all names in C. With
    --triton it is the folder of a model in a model repository, whose name is that of the model.
    """
    from lumc.command import passes

    written = form(emit, as_zip, triton)
    compilers = passes.Compilers(cc, nvcc, hipcc, objects_folder(), triton_headers)
    passes.link(sources or ("-",), output, written, compilers, allowed, verbose)


@click.command("compile")
@options("input", "bundle")
@options(*PROFILE, "target", "dim", "tune", "dtype", "weights", "activations", "recompute")
@options("limits", "hipcc", "emit", "zip", "triton")
@click.option("--save-temps", metavar="DIR", help="Keep the artifact of every pass here.")
@click.option("--dry-run", is_flag=True, help="Say what would be done, and write nothing.")
@click.option("--json", "as_json", is_flag=True, help="With --dry-run: machine-readable output.")
@options("allow", "trace", "verbose")
def compile_(
    source: str,
    output: str,
    target: str,
    dims: tuple[str, ...],
    tuned: tuple[str, ...],
    dtype: str | None,
    weights: str | None,
    activations: str | None,
    again: int,
    max_nodes: int,
    hipcc: str | None,
    emit: str,
    as_zip: bool,
    triton: bool,
    save_temps: str | None,
    dry_run: bool,
    as_json: bool,
    allowed: tuple[str, ...],
    trace: str | None,
    verbose: int,
    **chosen: Any,
) -> None:
    """Compile a model: all passes in a row.

    Reads a .lg graph or anything that 'import' reads; writes a bundle, plain C, or a model for
    Triton.
    """
    from lumc.command import passes
    from lumc.frontend.precision import Precision

    measuring, kept = profile_options(**chosen), objects_folder()
    emit = form(emit, as_zip, triton)
    which = measuring, target, dims, max_nodes, tuned, again
    how = passes.CompileOptions(*which, emit, save_temps, kept, allowed, verbose, trace, hipcc)
    wanted = Precision(dtype, weights, activations)
    if as_json and not dry_run:
        raise click.UsageError("--json tells of a --dry-run; a log is --log-json.")
    if dry_run:
        from lumc.command import dry_run as dry

        dry.tell(source, output, how, wanted, as_json)
    else:
        passes.compile_model(source, output, how, wanted)
