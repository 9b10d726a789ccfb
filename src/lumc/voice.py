"""How messages are said: on stderr as lines or as JSON, all or only what went wrong, or to whoever
imported lumc."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

from lumc.errors import LumcError

WARNING = "warning: "  # how a message begins that -q does not keep back


class Voice(NamedTuple):
    """``say`` hears each message with its level: the number of -v that it needs."""

    say: Callable[[int, str], None]
    bars: bool = False  # whether a bar may show how far a search is, on a terminal
    json: bool = False  # whether errors are JSON too


def to_stderr(_: int, message: str) -> None:
    print(message, file=sys.stderr, flush=True)


def as_json(level: int, message: str) -> None:
    """One object a line."""
    kind = "warning" if message.startswith(WARNING) else "info" if level == 0 else "debug"
    write(kind, message.removeprefix(WARNING))


def write(kind: str, message: str, **more: Any) -> None:
    import json
    from datetime import UTC, datetime

    now = datetime.now(UTC).isoformat(timespec="milliseconds")
    to_stderr(0, json.dumps({"time": now, "level": kind, "message": message, **more}))


def voice(quiet: bool = False, log_json: bool = False) -> Voice:
    """What -q and --log-json ask for."""
    say = as_json if log_json else to_stderr

    def warn(level: int, message: str) -> None:
        if message.startswith(WARNING):
            say(level, message)

    return Voice(warn if quiet else say, not quiet and not log_json, log_json)


STDERR = voice()
VOICE = ContextVar("voice", default=STDERR)


@contextmanager
def saying(say: Callable[[int, str], None]) -> Iterator[None]:
    """What is said in the block goes there."""
    token = VOICE.set(Voice(say))
    try:
        yield
    finally:
        VOICE.reset(token)


def say_error(error: LumcError | str) -> None:
    """The last message of a command that failed."""
    if not VOICE.get().json:
        to_stderr(0, str(error))
    elif isinstance(error, LumcError):
        more = {"code": error.code, "where": error.where, "fix": error.fix, "exit": int(error.exit)}
        write("error", error.what, **more)
    else:
        write("error", error)
