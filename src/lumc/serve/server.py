"""``lumc serve``: open the bundles, listen, and end when asked without losing a request."""

from __future__ import annotations

import asyncio
import re
import signal
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from lumc.errors import Exit, LumcError
from lumc.process import settle
from lumc.serve.jobs import Gate
from lumc.serve.metrics import AccessLog, Metrics
from lumc.serve.pool import Heard, Pool, Settings
from lumc.serve.protocol import largest
from lumc.serve.service import Service
from lumc.voice import VOICE

NEEDED = (
    *("starlette", "uvicorn", "httptools", "uvloop"),
    *("grpc", "google.protobuf", "prometheus_client"),
)
DRAIN_S = 0.5  # in which clients that keep a connection hear that it ends
GRACE_S = 2.0  # beyond the time of a request, until what is left is cut
NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,99}")  # of a model
BACKLOG = 256
CONNECTIONS = 1000


@dataclass(frozen=True)
class Listening:
    """Where and how much is listened to."""

    host: str = "127.0.0.1"
    http: int = 8080  # 0: any free port
    grpc: int | None = None  # none: no gRPC
    queue: int = 64  # requests that may wait
    most: int = 0  # bytes of a body; 0: what the models need
    log: bool = True


@dataclass
class Stop:
    """Set by the first SIGTERM or SIGINT; the second one ends at once."""

    asked: asyncio.Event = field(default_factory=asyncio.Event)
    now: asyncio.Event = field(default_factory=asyncio.Event)

    def __call__(self) -> None:
        (self.now if self.asked.is_set() else self.asked).set()


def serve(settings: Settings, listening: Listening) -> None:
    """Serve until SIGTERM or SIGINT. Raises E0623 without the packages, E0624 for a port that is
    taken, and what opening the bundles raises."""
    if missing := [n for n in NEEDED if not there(n)]:
        what = f"serving needs packages that are not installed: {', '.join(missing)}"
        raise LumcError("E0623", what, fix="pip install 'lumc[serve]'", exit=Exit.TOOLCHAIN)
    import uvloop

    sockets = [bound(listening.host, listening.http)]
    # asyncio's own loop takes 0.2 ms more of a request that comes alone: what is run seldom is cold
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(until_asked(settings, listening, sockets))


def there(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def bound(host: str, port: int) -> socket.socket:
    """A socket that will listen there. Raises E0624."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        # only of a socket that says TCP does asyncio send small answers at once: others wait for an
        # acknowledgement that clients put off, 40 ms
        made = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((host, port))
    except OSError as e:
        what = f"cannot listen at {host}:{port}: {e.strerror or e}"
        raise LumcError("E0624", what, exit=Exit.USAGE) from None
    return made


async def until_asked(
    settings: Settings, listening: Listening, sockets: Sequence[socket.socket]
) -> None:
    """Open, listen, drain, end."""
    say, metrics, stop = VOICE.get().say, Metrics(), Stop()
    heard = Heard(metrics.ran, metrics.replaced.inc, metrics.swapped.inc, lambda line: say(0, line))
    pool, log = Pool(settings, heard), AccessLog(listening.log)
    with stopped_by(stop):
        try:
            await pool.start()
            settle()
            most = listening.most or largest(pool.specs.values())
            gate = Gate(listening.queue + settings.workers * settings.batch)
            service = Service(pool, gate, metrics, log, most)
            await listen(service, listening, sockets, stop, settings.seconds + GRACE_S)
        finally:
            await pool.stop()
            log.close()


async def listen(
    service: Service,
    listening: Listening,
    sockets: Sequence[socket.socket],
    stop: Stop,
    grace: float,
) -> None:
    """Answer until asked to stop, and then what is there already."""
    from lumc.serve.rpc import server

    web = web_server(service)
    remote = server(service, service.most)
    if listening.grpc is not None:
        at = f"{bracketed(listening.host)}:{listening.grpc}"
        port = remote.add_insecure_port(at)
        if not port:
            raise LumcError("E0624", f"cannot listen at {at}", exit=Exit.USAGE)
        await remote.start()
        announce("grpc", listening.host, port)
    for each in sockets:
        each.listen(BACKLOG)  # who hears of it may come at once
    running = asyncio.create_task(web.serve(sockets=list(sockets)))
    announce("http", listening.host, sockets[0].getsockname()[1])
    await first_of(stop.asked.wait(), running)
    service.draining = True
    with suppress(TimeoutError):
        await asyncio.wait_for(stop.now.wait(), DRAIN_S)
    ends = [asyncio.create_task(remote.stop(grace))] if listening.grpc is not None else []
    web.should_exit = True
    ends.append(running)
    await first_of(stop.now.wait(), asyncio.gather(*ends))
    web.force_exit = True


async def first_of(*things: Any) -> None:
    """Wait for one of these; the others go on, or end with the loop."""
    tasks = [asyncio.ensure_future(t) for t in things]
    done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in done:
        task.result()


def web_server(service: Service) -> Any:
    """uvicorn with limits, and without handlers of signals of its own."""
    import uvicorn

    from lumc.serve.connection import Bounded
    from lumc.serve.openai import routes
    from lumc.serve.web import application

    config = uvicorn.Config(
        application(service, routes(service)),
        http=Bounded,
        loop="none",  # it is there
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        backlog=BACKLOG,
        limit_concurrency=CONNECTIONS,
        timeout_keep_alive=65,  # more than proxies have
        timeout_graceful_shutdown=int(service.pool.settings.seconds + GRACE_S),
    )
    server = uvicorn.Server(config)
    server.capture_signals = nullcontext  # they are heard by ``stopped_by``
    return server


@contextmanager
def stopped_by(stop: Stop) -> Iterator[None]:
    """SIGTERM and SIGINT ask it to end."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    try:
        yield
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)


def announce(protocol: str, host: str, port: int) -> None:
    VOICE.get().say(0, f"serving {protocol} at {bracketed(host)}:{port}")


def bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def of_models(given: Sequence[str], models: Mapping[str, str]) -> dict[str, str]:
    """Tokenizers by the names of models: ``NAME=FILE``, or the file for all of them. Raises
    E0203."""
    out = dict[str, str]()
    for text in given:
        name, sign, path = text.partition("=")
        if sign and name in models:
            out[name] = path
        elif sign and not Path(text).exists():
            what, fix = f"no model is called '{name}'", f"one of: {', '.join(models)}"
            raise LumcError("E0203", what, fix=fix, exit=Exit.USAGE)
        else:
            out |= {name: text for name in models if name not in out}
    return out


def named(models: Sequence[str]) -> dict[str, str]:
    """Paths of bundles by the names of models: ``NAME=PATH``, or the name of the file. Raises
    E0203 for two of one name, and for one that no address can have."""
    out = dict[str, str]()
    for text in models:
        name, sign, path = text.partition("=")
        if not sign or "/" in name:
            name, path = Path(text).name.removesuffix(".zip").removesuffix(".lb"), text
        if name in out or not NAME.fullmatch(name):
            what = f"two models are called '{name}'" if name in out else f"a model called {name!r}"
            fix = "NAME=PATH, a name of letters, digits, '-', '_' and '.'"
            raise LumcError("E0203", what, fix=fix, exit=Exit.USAGE)
        out[name] = path
    return out
