"""The command that makes services of bundles."""

from __future__ import annotations

from typing import Any

import click

from lumc.cli.options import Number, options

PORT = click.IntRange(0, 65535)


@click.command()
@click.argument("models", metavar="[NAME=]BUNDLE...", nargs=-1, required=True)
@click.option("--host", default="127.0.0.1", show_default=True, help="0.0.0.0: every network.")
@click.option("--http", type=PORT, default=8080, show_default=True, help="0: any free port.")
@click.option("--grpc", type=PORT, help="Listen there too, as gRPC.")
@click.option(
    "--workers",
    type=click.IntRange(1, 64),
    default=1,
    show_default=True,
    help="Processes that run models, each with --threads.",
)
@click.option(
    "--batch",
    type=click.IntRange(1, 1 << 16),
    default=8,
    show_default=True,
    help="Rows of several requests in one run, at most.",
)
@click.option(
    "--queue",
    type=click.IntRange(0, 1 << 16),
    default=64,
    show_default=True,
    help="Requests that may wait; more are told to come again: 503.",
)
@click.option(
    "--tokenizer",
    "tokenizers",
    multiple=True,
    metavar="[NAME=]FILE|FOLDER",
    help="Of a model of texts, if the bundle has none, or another one; can be repeated.",
)
@click.option(
    "--timeout",
    type=Number(0.1),
    default=60.0,
    show_default=True,
    help="Seconds of a request.",
)
@click.option(
    "--max-body",
    type=click.IntRange(1),
    metavar="BYTES",
    help="Of a request.  [default: what the inputs of the models need as JSON]",
)
@click.option(
    "--manifest",
    type=click.Choice(["kserve", "container", "ray"]),
    help="Print what another system needs to run this, and do not serve.",
)
@click.option("--no-access-log", is_flag=True, help="No line of JSON on stdout per request.")
@options("device", "threads")
def serve(models: tuple[str, ...], device: str | None, **chosen: Any) -> None:
    """Serve bundles over HTTP and gRPC.

    The Open Inference Protocol v2: POST /v2/models/NAME/infer; of models of texts OpenAI's
    /v1/embeddings, /v1/completions and /v1/chat/completions, too. A model is called what its file
    is, or NAME. Ends at SIGTERM, when all that was asked is answered.
    """
    from lumc.serve.manifest import manifest
    from lumc.serve.pool import Settings
    from lumc.serve.server import Listening, named, of_models
    from lumc.serve.server import serve as run

    paths = named(models)
    settings = Settings(
        paths=paths,
        tokenizers=of_models(chosen["tokenizers"], paths),
        device=device or "",
        threads=chosen["threads"],
        workers=chosen["workers"],
        batch=chosen["batch"],
        seconds=chosen["timeout"],
    )
    if chosen["manifest"]:
        given = {
            n: chosen[n] for n in ("threads", "workers", "batch", "queue", "timeout", "max_body")
        }
        arguments = [
            x for n, v in given.items() if v for x in (f"--{n.replace('_', '-')}", f"{v:g}")
        ]
        asked = chosen["threads"], chosen["workers"], chosen["queue"], chosen["timeout"]
        click.echo(manifest(chosen["manifest"], paths, arguments, *asked), nl=False)
        return
    listening = Listening(
        host=chosen["host"],
        http=chosen["http"],
        grpc=chosen["grpc"],
        queue=chosen["queue"],
        most=chosen["max_body"] or 0,
        log=not chosen["no_access_log"],
    )
    run(settings, listening)
