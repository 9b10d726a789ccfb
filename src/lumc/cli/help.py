"""The command line as others read it: completion for shells, a page for man."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import click

from lumc.errors import Exit

SHELLS = ("bash", "zsh", "fish")


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the completion script of a shell.

    \b
    bash: lumc completion bash > ~/.local/share/bash-completion/completions/lumc
    zsh:  lumc completion zsh > FOLDER/_lumc, with FOLDER in $fpath
    fish: lumc completion fish > ~/.config/fish/completions/lumc.fish
    """
    from click.shell_completion import get_completion_class

    found = get_completion_class(shell)
    assert found is not None
    made = found(ctx.find_root().command, {}, "lumc", "_LUMC_COMPLETE")
    click.echo(found.source_template % made.source_vars())


@click.command()
@click.pass_context
def man(ctx: click.Context) -> None:
    """Print the manual page of all commands.

    To read it: lumc man > lumc.1; man ./lumc.1
    """
    from lumc import __version__

    root = click.Context(ctx.find_root().command, info_name="lumc")
    lines = [
        f'.TH LUMC 1 "" "lumc {__version__}"',
        ".SH NAME",
        "lumc \\- make neural networks fast",
    ]
    lines += [".SH SYNOPSIS", ".B lumc", "[OPTIONS] COMMAND [ARGS]..."]
    lines += [".SH DESCRIPTION", *paragraphs(root.command.help or ""), *options_of(root)]
    lines.append(".SH COMMANDS")
    lines += commands_of(root)
    lines.append(".SH EXIT STATUS")
    for code in Exit:
        lines += [".TP", f".B {code.value}", code.name.lower()]
    lines += [".P", *roff("lumc explain E0312 says what the code of an error means.")]
    click.echo("\n".join(lines))


def commands_of(ctx: click.Context) -> Iterator[str]:
    """All commands of a group, and those of groups in it."""
    group = ctx.command
    assert isinstance(group, click.Group)
    for name, command in group.commands.items():
        inner = click.Context(command, info_name=name, parent=ctx)
        usage = " ".join([inner.command_path, *command.collect_usage_pieces(inner)])
        yield from (".SS", *roff(usage))
        yield from paragraphs(command.help or "")
        yield from options_of(inner)
        if isinstance(command, click.Group):
            yield from commands_of(inner)


def options_of(ctx: click.Context) -> Iterator[str]:
    options = (p for p in ctx.command.get_params(ctx) if isinstance(p, click.Option))
    for names, said in filter(None, (p.get_help_record(ctx) for p in options)):
        yield from (".TP", *(f".B {line}" for line in roff(names)), *roff(said))


def paragraphs(text: str) -> Iterator[str]:
    """A help text; paragraphs that click is told to leave alone keep their lines."""
    for part in inspect.cleandoc(text).split("\n\n"):
        kept = part.startswith("\b")
        lines = [line for line in part.replace("\b", "").split("\n") if line.strip()]
        yield ".P"
        yield from [".nf", *(r for x in lines for r in roff(x)), ".fi"] if kept else roff(part)


def roff(text: str) -> list[str]:
    """Text whose lines no one takes for requests."""
    said = text.replace("\\", "\\e").replace("-", "\\-")
    return [f"\\&{line}" if line[:1] in (".", "'") else line for line in said.split("\n")]
