"""The command that writes down what is said."""

from __future__ import annotations

from typing import Any

import click

from lumc.cli.options import options


@click.command()
@click.argument("bundle")
@click.argument("sound", metavar="SOUND.wav")
@click.option("--language", default="", metavar="CODE", help="en, de, ..  [default: what is heard]")
@click.option(
    "--task",
    type=click.Choice(["transcribe", "translate"]),
    default="transcribe",
    show_default=True,
    help="'translate' writes English.",
)
@click.option("--tokenizer", metavar="FILE|FOLDER", help="Another tokenizer than the bundle's.")
@options("device", "threads", "json")
def transcribe(bundle: str, sound: str, as_json: bool, device: str | None, **chosen: Any) -> None:
    """Write down what is said in a file of sound.

    BUNDLE is a model of Whisper, imported from its Hugging Face folder. SOUND is a .wav of
    integers, with any rate and any number of channels. Sound of more than half a minute is cut
    where it is quiet.
    """
    from lumc.command.transcribe import Asked
    from lumc.command.transcribe import transcribe as run

    run(bundle, sound, Asked(device=device or "", as_json=as_json, **chosen))
