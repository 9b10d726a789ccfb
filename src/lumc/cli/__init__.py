"""The command line: each command parses its options, calls one function and writes the result."""

from __future__ import annotations

import gc
import io
import os
import signal
import sys
import warnings
from typing import Any, NoReturn

import click

from lumc import __version__
from lumc.cli import (
    bundles,
    cache,
    generate,
    help,
    passes,
    reduce,
    reports,
    schema,
    serve,
    shard,
    transcribe,
)
from lumc.cli.options import Number, voiced
from lumc.errors import Exit, LumcError
from lumc.limits import LIMITS, Limits
from lumc.process import STOPS, Terminated, hear_again, is_terminated, terminate
from lumc.voice import VOICE, WARNING, say_error

# objects between two looks for cycles, of which passes make next to none; measured: a tenth of the
# time of a compile, and 1 MB
GARBAGE = 10_000


def main() -> None:
    """Run the command line; every failure is one message and the right exit code."""
    gc.set_threshold(GARBAGE)
    warnings.showwarning = lambda message, *_: VOICE.get().say(0, f"{WARNING}{message}")
    write_all()
    signal.signal(signal.SIGTERM, terminate)
    sys.unraisablehook = hear_again
    try:
        code = commands.main(prog_name="lumc", standalone_mode=False)
        ignore_stops()  # it is done: too late for ^C
        if sys.stdout:
            sys.stdout.flush()
        sys.exit(Exit.TERMINATED if is_terminated() else code or 0)
    except LumcError as e:
        say_error(guided(e))
        leave(e.exit)
    except (click.exceptions.Abort, Terminated):
        ignore_stops()  # one more finds nothing left to interrupt
        say_error("terminated" if is_terminated() else "interrupted")
        sys.exit(Exit.TERMINATED if is_terminated() else Exit.INTERRUPTED)
    except click.exceptions.NoArgsIsHelpError as e:
        e.show()
        sys.exit(e.exit_code)
    except click.ClickException as e:
        say_error(misused(e))
        sys.exit(e.exit_code)
    except (BrokenPipeError, ReaderLeft):  # as in `lumc show x | head`
        leave(Exit.OK)
    except Exception as e:
        from lumc.report.log import unexpected

        say_error(guided(unexpected(e, sys.argv)))
        leave(Exit.FAILED)


def misused(e: click.ClickException) -> LumcError:
    """What click says of a wrong call."""
    ctx = e.ctx if isinstance(e, click.UsageError) else None
    path = ctx.command_path if ctx else "lumc"
    what = " ".join(e.format_message().split()).removesuffix(".")
    what = what[:1].lower() + what[1:]
    return LumcError("E0211", f"{path}: {what}", fix=f"{path} --help", exit=Exit.USAGE)


def guided(said: LumcError | str) -> LumcError | str:
    """An error with a way out: that of its code, if it has none of its own."""
    from lumc.report.codes import meanings

    if isinstance(said, str) or said.fix:
        return said
    fix = meanings()[said.code].fix
    return LumcError(said.code, said.what, where=said.where, fix=fix, exit=said.exit)


class ReaderLeft(Exception):
    """Nobody reads stdout any more: no error here, where click makes exit code 1 of it."""


class Commands(click.Group):
    """The group of all commands."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            raise ReaderLeft from None


def write_all() -> None:
    """Without a buffer (PYTHONUNBUFFERED) Python takes no notice when a full disk takes only a part
    of a text: a buffer does. It is written at the end of every line. What is read is UTF-8 in every
    locale, and so is what is written."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8", errors="surrogateescape")
    if isinstance(getattr(sys.stdout, "buffer", None), io.RawIOBase):
        how: dict[str, Any] = {"encoding": sys.stdout.encoding, "errors": sys.stdout.errors}
        buffer = io.BufferedWriter(sys.stdout.buffer)
        sys.stdout = io.TextIOWrapper(buffer, line_buffering=True, **how)


def leave(code: Exit) -> NoReturn:
    """Exit; what could not be written to stdout is not tried again."""
    try:
        if sys.stdout:
            sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(int(code))


def ignore_stops() -> None:
    for number in STOPS:
        signal.signal(number, signal.SIG_IGN)


@click.group(
    cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
@click.version_option(__version__, prog_name="lumc")
@click.option(
    "--max-seconds",
    type=Number(0.1),
    help="CPU time of each pass; default: 600.",
)
@click.option("--max-gb", type=Number(0.1), help="Memory of each pass; default: all.")
def commands(max_seconds: float | None, max_gb: float | None) -> None:
    """Make neural networks fast by search.

    \b
    lumc import bert/ --dim b=1 --dim s=128 -o bert.lg
    lumc compile bert.lg -o bert.lb
    lumc run bert.lb --input input_ids=ids.npy --input attention_mask=mask.npy -o out.npz

    'compile' is search | profile | codegen | link; every pass reads one file and writes one file.
    """
    limits = Limits()
    nbytes = int(max_gb * (1 << 30)) if max_gb else limits.nbytes
    LIMITS.set(Limits(max_seconds or limits.seconds, nbytes))


for command in (
    *(
        passes.import_,
        passes.grad,
        shard.shard,
        passes.search,
        passes.profile,
        passes.codegen,
        passes.link,
        passes.compile_,
    ),
    *(bundles.run, bundles.verify, bundles.bench),
    *(generate.generate, transcribe.transcribe, serve.serve),
    *(reports.show, reports.diff, reports.explain, reports.report, reports.targets, reports.doctor),
    *(reduce.reduce_, cache.cache, schema.schema, help.completion, help.man),
):
    commands.add_command(command)
voiced(commands)
