"""The command that lets a language model go on with a text."""

from __future__ import annotations

from typing import Any

import click

from lumc.cli.options import Number, options


@click.command()
@click.argument("bundle")
@click.option("--prompt", metavar="TEXT", help="Default: stdin.")
@click.option(
    "--tokenizer",
    metavar="FILE|FOLDER",
    help="Another tokenizer: a GGUF file, a folder with tokenizer.json.  [default: the bundle's]",
)
@click.option(
    "--chat",
    is_flag=True,
    help="The prompt is what a user says; without one, each line of stdin is.",
)
@click.option("--system", default="", metavar="TEXT", help="What is said first, with --chat.")
@click.option(
    "-n",
    "--tokens",
    type=click.IntRange(1),
    default=256,
    show_default=True,
    help="New tokens at most.",
)
@click.option(
    "--stop",
    "stops",
    multiple=True,
    metavar="WORD",
    help="End where the model writes this; can be repeated.",
)
@click.option(
    "--temperature",
    type=Number(0),
    default=0.8,
    show_default=True,
    help="0 takes the most probable token.",
)
@click.option(
    "--top-k",
    type=click.IntRange(0),
    default=40,
    show_default=True,
    help="Of so many of the most probable tokens; 0: of all.",
)
@click.option(
    "--top-p",
    type=Number(0, 1, min_open=True),
    default=0.95,
    show_default=True,
    help="Of the fewest tokens that have this probability together.",
)
@click.option(
    "--min-p",
    type=Number(0, 1),
    default=0.05,
    show_default=True,
    help="Of tokens with this share of the greatest probability.",
)
@click.option(
    "--repetition",
    type=Number(0, min_open=True),
    default=1.0,
    show_default=True,
    help="Makes the last 64 tokens less probable, above 1.",
)
@options("seed", "device", "threads", "json")
def generate(
    bundle: str, prompt: str | None, as_json: bool, device: str | None, **chosen: Any
) -> None:
    """Let a language model go on with a text.

    BUNDLE is a model that was imported with --context. The same seed gives the same text. With
    --chat the template of the model makes a conversation of the prompt.
    """
    from lumc.command.generate import Wanted
    from lumc.command.generate import generate as run
    from lumc.generate.sampling import Sampling

    if chosen["system"] and not chosen["chat"]:
        raise click.UsageError("--system is for conversations: add --chat.")
    names = ("temperature", "top_k", "top_p", "min_p", "repetition", "seed")
    sampling = Sampling(**{name: chosen.pop(name) for name in names})
    count = chosen.pop("tokens")
    run(
        bundle,
        prompt,
        Wanted(count=count, device=device or "", as_json=as_json, **chosen),
        sampling,
    )
