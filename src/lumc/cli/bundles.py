"""The commands that run a bundle."""

from __future__ import annotations

import click

from lumc.cli.options import Number, arrays_file, options, thread_counts


@click.command()
@click.argument("bundle")
@options("inputs")
@click.option(
    "-o",
    "--output",
    metavar="FILE|-",
    callback=arrays_file,
    help=".npz, or .npy for a single output; - writes the .npy to stdout.",
)
@click.option(
    "--state",
    metavar="FILE",
    help="Start from the states in this .safetensors or .npz, if it is there; without --save the "
    "new ones go there too.",
)
@click.option("--save", metavar="FILE", help="Write the states after the run to this one.")
@options("entry", "run-dim", "device", "threads", "mesh", "trace", "json")
def run(
    bundle: str,
    inputs: tuple[str, ...],
    output: str | None,
    state: str | None,
    save: str | None,
    entry: str,
    dims: tuple[str, ...],
    device: str | None,
    threads: int,
    mesh: bool,
    trace: str | None,
    as_json: bool,
) -> None:
    """Run a bundle on .npy or .npz inputs.

    --trace times every launch on every thread of a second run; it costs a few ns per launch.
    """
    from lumc.command import bundles

    how = entry, threads, as_json, trace, device or "", dims, save, mesh
    bundles.run(bundle, inputs, output, state, *how)


@click.command()
@click.argument("bundle")
@options("inputs")
@click.option(
    "--source", "model", help="Compare with this .lg, .onnx, .pt2 or Hugging Face folder too."
)
@click.option(
    "--tolerance",
    type=Number(0),
    help="Relative L2 error; default: 1e-5, f16 2e-3, bf16 1e-2, q8 weights 2e-2, ints 0.",
)
@click.option(
    "--rtol", type=Number(0), help="Every element too: |got - want| <= atol + rtol |want|."
)
@click.option("--atol", type=Number(0), help="See --rtol; the other one is 0 if it is not given.")
@click.option(
    "--bisect", is_flag=True, help="Name the first kernel that differs; needs the .lp beside it."
)
@click.option("--state", metavar="FILE", help="The states to start from; else random ones.")
@options("entry", "run-dim", "device", "threads", "mesh", "seed", "allow", "json")
def verify(
    bundle: str,
    inputs: tuple[str, ...],
    state: str | None,
    model: str | None,
    tolerance: float | None,
    rtol: float | None,
    atol: float | None,
    entry: str,
    dims: tuple[str, ...],
    device: str | None,
    threads: int,
    mesh: bool,
    seed: int,
    allowed: tuple[str, ...],
    as_json: bool,
    bisect: bool,
) -> None:
    """Compare a bundle with float64 arithmetic.

    The reference is the graph in the bundle, computed by numpy. Exit code 3 on a difference. Inputs
    and states that are not given are drawn at random; states are compared too, as they are after
    the run. Of dims that neither these nor --dim tell, several
    values are tried: the least, some between, the greatest that does not take long. With --source,
    the original model is also run by onnxruntime (ONNX) or by torch and transformers (Hugging
    Face), when they are installed. A .lg
    is computed in float64, which shows what reduced precision costs.

    --bisect runs the kernels one by one, on a CPU, and names the first that is wrong: its code does
    not compute its term, or its term is not what the graph says. The plan (.lp) is looked for
    beside the bundle and in the folders there: lumc compile --save-temps DIR keeps it.
    """
    from lumc.command import bundles

    source = bundles.Source(model, allowed) if model else None
    each = None if rtol is None and atol is None else (rtol or 0.0, atol or 0.0)
    how = entry, threads, seed, as_json, device or "", bisect, each, dims, state, mesh
    bundles.verify(bundle, inputs, source, tolerance, *how)


@click.command()
@click.argument("bundle")
@options("inputs")
@click.option(
    "--seconds",
    type=Number(0, min_open=True),
    default=1.0,
    show_default=True,
    help="How long to sample.",
)
@click.option(
    "--compare",
    "old",
    metavar="OLD.json",
    help="Say how much slower it is than in figures of --json.",
)
@click.option(
    "--fail-above",
    type=Number(0, min_open=True),
    help="Exit code 3 when the minimum is more than so many times the old one: 1.05.",
)
@click.option(
    "--threads",
    callback=thread_counts,
    default="1",
    show_default=True,
    help="A number, or several with commas between.",
)
@click.option(
    "--table",
    "form",
    type=click.Choice(["csv", "md"]),
    help="Print the figures as a table; times in us.",
)
@click.option(
    "--llm",
    is_flag=True,
    help="Tokens per second of a language model, as llama-bench tells them.",
)
@click.option(
    "--tests",
    metavar="pp512,tg32@512",
    help="With --llm: prompts of 512 tokens, 32 tokens after 512; several with commas between.",
)
@click.option(
    "--peer",
    "peers",
    multiple=True,
    metavar="NAME=FILE",
    help="With --llm: another engine in turn, and the model it reads; repeatable. llama.cpp, "
    "transformers, openvino-genai, onnxruntime-genai.",
)
@options("entry", "run-dim", "device", "seed", "json")
def bench(
    bundle: str,
    inputs: tuple[str, ...],
    seconds: float,
    llm: bool,
    tests: str | None,
    peers: tuple[str, ...],
    old: str | None,
    fail_above: float | None,
    form: str | None,
    threads: tuple[int, ...],
    entry: str,
    dims: tuple[str, ...],
    device: str | None,
    seed: int,
    as_json: bool,
) -> None:
    """Time a bundle.

    Dims that neither inputs nor --dim tell have their greatest value.

    Compare minima: they depend least on what else runs. The times in parentheses are the 95 %
    confidence interval of the median.

    With --llm a model that was imported with --context is timed on prompts and on tokens, beside
    other engines that pip installed here: all are asked in turn, and the fastest of at least three
    times counts. --seconds are those of each test.
    """
    from lumc.command import bench

    if as_json and form:
        raise click.UsageError(f"--json and --table {form} are two forms: choose one.")
    if llm:
        if inputs or dims or entry or old or fail_above or form or device not in (None, "cpu"):
            raise click.UsageError("--llm goes with --tests, --peer, --threads, --seconds, --json.")
        from lumc.command.bench_llm import TESTS, bench_llm

        return bench_llm(bundle, peers, tests or TESTS, threads, seconds, as_json)
    if tests or peers:
        raise click.UsageError("--tests and --peer go with --llm.")
    how = entry, threads, seed, as_json, device or "", old or "", fail_above, form, dims
    bench.bench(bundle, inputs, seconds, *how)
