"""The passes between files: read one artifact, do one thing, write one artifact.

A pass sees the same data whether it reads a file or runs inside ``lumc compile``, so both give the
same bytes.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from lumc.artifacts import files
from lumc.command.plan import ProfileOptions, make_plan, parse_seconds
from lumc.command.sources import graph_from_anything, parse_dims
from lumc.command.spaces import make_space, report_space
from lumc.disk import artifact
from lumc.disk.scratch import scratch
from lumc.errors import Exit, LumcError
from lumc.frontend.precision import Precision, reduce_precision
from lumc.report.log import Log, traced

if TYPE_CHECKING:
    from lumc.codegen.code import Code
    from lumc.codegen.tile.passes import Watch
    from lumc.codegen.tile.program import Program
    from lumc.frontend.api.model import Model
    from lumc.graph.graph import Graph
    from lumc.schedule.plan import Plan
    from lumc.search.space import Space


LESS = 16  # of --memory, by which values between regions take less at least, if a plan is too large

# ---- the passes


def check_output(output: str) -> None:
    """Artifacts of JSON are for files and pipes. Raises E0202, and E0203 for a terminal."""
    if output == "-" and sys.stdout and sys.stdout.isatty():
        what, fix = "the artifact is no text for a terminal", "-o FILE, or a pipe: | lumc show"
        raise LumcError("E0203", what, fix=fix, exit=Exit.USAGE)
    artifact.check_writable(output)


def search(
    source: str,
    output: str,
    target: str,
    dims: tuple[str, ...],
    wanted: Precision,
    max_nodes: int,
    tuned: tuple[str, ...],
    again: int,
    memory: int,
    verbose: int,
) -> None:
    """``lumc search``."""
    log = Log(verbose)
    check_output(output)
    with log.step("read"):
        graph = reduced(files.read_graph(source, parse_dims(dims), mesh=True), wanted)
    with log.step("search"):
        space = make_space(graph, target, max_nodes, tuned, again, memory, log)
    files.write(space, files.graph_digest(graph), output)
    report_space(space, log)


def reduced(graph: Graph, wanted: Precision) -> Graph:
    """With these choices. Raises E0140 for a graph for a mesh: choices come before ranks."""
    from lumc.graph.ranks import require_one_rank

    if wanted != Precision():
        require_one_rank(graph, "less precision")
    return reduce_precision(graph, wanted)


def profile(
    source: str, output: str, options: ProfileOptions, verbose: int, trace: str | None = None
) -> None:
    """``lumc profile``."""
    check_output(output)
    with traced("profile", verbose, trace) as log:
        with log.step("read"):
            space, digest = files.space_from_text(*artifact.read_text(source), source)
        with log.step("profile", parse_seconds(options.budget)):
            plan = make_plan(space, options, log)
        files.write(plan, digest, output)


def tile_programs(log: Log, check: bool = False) -> Watch:
    """Says with -vv what every pass made of a tile program, and may verify it."""
    from lumc.codegen.tile.text import program_text
    from lumc.codegen.tile.verify import verify

    known = [""]

    def watch(name: str, program: Program) -> None:
        if log.level > 1:
            said = program_text(program)
            log(2, f"{name}: as before" if said == known[0] else f"{name}:\n{said}")
            known[0] = said
        if check:
            verify(name, program)

    return watch


def generated(plan: Plan, log: Log, check: bool = False) -> Code:
    """The kernels of a plan; said with -vvv."""
    from lumc.codegen.generate import generate

    code = generate(plan, tile_programs(log, check))
    for kernel in code.kernels:
        log(3, kernel.source)
    return code


def codegen(source: str, output: str, check_tiles: bool, verbose: int) -> None:
    """``lumc codegen``."""
    log = Log(verbose)
    check_output(output)
    with log.step("read"):
        plan, digest = files.plan_from_text(*artifact.read_text(source), source)
    with log.step("codegen"):
        code = generated(plan, log, check_tiles)
    files.write(code, digest, output)


@dataclass(frozen=True)
class Compilers:
    """Which ones make the kernels and the runner of a bundle."""

    cc: str | None
    nvcc: str | None
    hipcc: str | None
    objects: Path | None  # the folder where compiled objects are kept, if they are
    triton_headers: Path | None = None  # Triton's own, for its backend


def link(
    sources: Sequence[str],
    output: str,
    emit: str,
    compilers: Compilers,
    allowed: Sequence[str],
    verbose: int,
) -> None:
    """``lumc link``: one bundle of several ``.lk`` files."""
    log = Log(verbose)
    with log.step("read"):
        parts = [files.code_from_text(*artifact.read_text(source), source) for source in sources]
    for (code, _), source in zip(parts, sources, strict=True):
        files.require_near(code.graph, source, allowed)
    with log.step("link"):
        write_bundle(parts, output, emit, compilers)


def write_bundle(
    codes: Sequence[tuple[Code, str]], output: str, emit: str, compilers: Compilers
) -> None:
    """Link codes, each with the digest of its ``.lk``, into one bundle, or into plain C."""
    from lumc.disk.weights import overflowing
    from lumc.link import cuda, hip
    from lumc.link.emit import emit_archive, emit_c
    from lumc.link.link import TargetCode, Tools, link
    from lumc.link.toolchain import find
    from lumc.link.triton import emit_triton

    parts = [TargetCode(code, digest) for code, digest in codes]
    out, base = Path(output), Path.cwd()
    if emit == "c":
        emit_c(parts, out, base)
        return
    kept, kinds = compilers.objects, {code.target.kind for code, _ in codes}
    tools = Tools(
        find(compilers.cc, kept),
        cuda.find(compilers.nvcc, kept) if "cuda" in kinds else None,
        hip.found(compilers.hipcc, kept) if "hip" in kinds else None,
    )
    if emit == "static":
        emit_archive(parts, out, base, tools)
        return
    if emit == "triton":
        notes = emit_triton(parts, out, base, tools, compilers.triton_headers)
    else:
        notes = link(parts, out, base, tools, single=emit == "zip")
    for note in notes:
        Log()(0, f"note: {note}")
    for weight, count in overflowing(codes[0][0].graph, Path.cwd()):
        Log()(0, f"warning: {count} values of weight '{weight}' are infinite in f16: try bf16")


@dataclass(frozen=True)
class CompileOptions:
    """The options of ``lumc compile``."""

    profile: ProfileOptions
    target: str
    dims: tuple[str, ...]
    max_nodes: int
    tuned: tuple[str, ...]  # which values of dims have schedules of their own
    again: int  # operations per element that are done again rather than stored
    emit: str  # bundle, zip, c, static or triton
    save_temps: str | None
    objects: Path | None  # where compiled objects are kept
    allowed: tuple[str, ...]  # folders of weights, besides that of the graph
    verbose: int
    trace: str | None = None
    hipcc: str | None = None  # the compiler of HIP, by its command


def compile_model(
    source: str | Model, output: str, options: CompileOptions, wanted: Precision = Precision()
) -> None:
    """``lumc compile``: the passes in a row; bytes are those of the single commands."""
    checked(output, options)
    with scratch() as folder:
        keep = Path(options.save_temps) if options.save_temps else None
        if keep:
            keep.mkdir(parents=True, exist_ok=True)
        stem = Path(output).name.removesuffix(".lb")
        with traced("compile", options.verbose, options.trace) as log:
            with log.step("read"):
                made = (keep or folder) / f"{stem}.lg"
                graph = graph_from_anything(source, made, options.dims, options.allowed)
                graph = reduced(graph, wanted)
            _compile(graph, output, options, log, keep, stem)


def checked(output: str, options: CompileOptions) -> None:
    """What can be refused before anything is done. Raises E0202, E0203, E0701 to E0714."""
    from lumc.kernel.machines import resolve_target
    from lumc.link import cross, cuda, emit, hip, link, triton
    from lumc.link.toolchain import find
    from lumc.profile import on_ray, on_ssh

    parse_seconds(options.profile.budget)
    if on := options.profile.on:
        on_ssh.require(on) if on.startswith(on_ssh.NAMED) else on_ray.require()
    artifact.check_writable(output, folder=True)
    as_text, names = options.emit in ("c", "static"), parse_targets(options.target)
    for_triton = options.emit == "triton"
    (emit if as_text else triton if for_triton else link).check_replaceable(Path(output))
    if as_text:
        emit.require_one_cpu(names)
    if options.emit != "c":
        tools = find(options.profile.cc)
        for target in map(resolve_target, names):
            if target.kind == "cuda":
                cuda.find(options.profile.nvcc)
            if target.kind == "hip":
                hip.found(options.hipcc)
            cross.for_target(tools, target)
        if for_triton:
            triton.compiler_for(names, tools)


def _compile(
    graph: Graph, output: str, options: CompileOptions, log: Log, keep: Path | None, stem: str
) -> None:
    from lumc.graph.ranks import require_one_rank

    if options.emit in ("c", "static", "triton"):
        require_one_rank(graph, "Triton" if options.emit == "triton" else "plain C")
    names = parse_targets(options.target)
    codes = []
    for name in names:
        stem_of = stem if len(names) == 1 else f"{stem}.{name.replace(':', '-')}"
        log.target = name if len(names) > 1 else ""
        codes.append(_code_for(name, graph, options, log, keep, stem_of))
    log.target = ""
    with log.step("link"):
        asked = options.profile
        chosen = Compilers(asked.cc, asked.nvcc, options.hipcc, options.objects)
        write_bundle(codes, output, options.emit, chosen)


def parse_targets(text: str) -> list[str]:
    """The names in ``cpu,cuda:sm_90``, each known and once. Raises E0401, E0203."""
    from lumc.kernel.machines import resolve_target

    names = [resolve_target(name.strip()).name for name in text.split(",")]
    if len(set(names)) < len(names):
        what, fix = f"--target {text}: a target is named twice", "name each once"
        raise LumcError("E0203", what, fix=fix, exit=Exit.USAGE)
    return names


def _code_for(
    target: str, graph: Graph, options: CompileOptions, log: Log, keep: Path | None, stem: str
) -> tuple[Code, str]:
    """The passes up to ``codegen`` for one target, and the digest of its result."""
    space, plan = _planned(target, graph, options, log)
    digest = _keep(space, files.graph_digest(graph), keep, f"{stem}.ls")
    digest = _keep(plan, digest, keep, f"{stem}.lp")
    with log.step("codegen"):
        code = generated(plan, log)
    return code, _keep(code, digest, keep, f"{stem}.lk")


def _planned(target: str, graph: Graph, options: CompileOptions, log: Log) -> tuple[Space, Plan]:
    """The plan, and what it was chosen from. With ``--memory`` the first that fits, of searches of
    graphs whose regions hand on less and less. Raises E0419."""
    from lumc.profile.memory import TooMuch

    between = memory = options.profile.memory
    short: TooMuch | None = None
    while True:
        try:
            with log.step("search"):
                which = options.max_nodes, options.tuned, options.again
                space = make_space(graph, target, *which, between, log)
        except LumcError as e:
            raise (short if short and e.code == "E0419" else e) from None
        report_space(space, log)
        try:
            with log.step("profile", parse_seconds(options.profile.budget)):
                return space, make_plan(space, options.profile, log)
        except TooMuch as e:
            short, between = e, between - max(e.least.total - memory, memory // LESS)
            if between <= 0:
                raise
            log(0, f"{log.named('compile')}: {e.what}: search --memory {between}")


def _keep(value: Space | Plan | Code, input: str, folder: Path | None, name: str) -> str:
    """The digest of an artifact; its file too, when artifacts are kept."""
    return files.write(value, input, str(folder / name)) if folder else files.digest(value)
