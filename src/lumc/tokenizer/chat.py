"""Conversations as texts, by the template of a file: a program in Jinja, which nobody has read.

It runs in Jinja's sandbox, as with transformers, and in little time and memory.
"""

from __future__ import annotations

import json
import resource
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any

from lumc.errors import Exit, LumcError
from lumc.limits import LIMITS, Limits, limited
from lumc.process import resident
from lumc.tokenizer.tokenizer import Tokenizer

SECONDS, MEGABYTES = 2.0, 256  # that a template may take
HUGE = 1 << 64  # numbers that a template may multiply are below
MAX_TEXT = 1 << 24  # characters of a conversation


def conversation(
    known: Tokenizer,
    messages: Sequence[Mapping[str, str]],
    answer: bool = True,
    template: str = "",
    **more: Any,
) -> str:
    """The text of messages, each with a ``role`` and ``content``, up to where the model goes on if
    it is to ``answer``. ``more`` is what the template may know besides. E0344, E0345."""
    template = template or known.template
    if not template:
        raise _refused("the file has no chat template", "give one, or the text without --chat")
    environment = _sandbox()
    given = {
        "messages": [dict(m) for m in messages],
        "bos_token": known.name("begin"),
        "eos_token": known.name("end"),
        "add_generation_prompt": answer,
        "tools": None,
        "documents": None,
        **more,
    }
    try:
        with _little():
            text = str(environment.from_string(template).render(given))
    except LumcError as e:
        raise _refused(e.what) from None
    except Exception as e:  # whatever the template does
        raise _refused(f"the chat template fails: {type(e).__name__}: {str(e)[:200]}") from None
    if len(text) > MAX_TEXT:
        raise _refused(f"the chat template makes {len(text)} characters")
    return text


def _refused(what: str, fix: str = "give another template") -> LumcError:
    return LumcError("E0345", what, fix=fix, exit=Exit.UNSUPPORTED)


@contextmanager
def _little() -> Iterator[None]:
    """A block in little time and memory, in the main thread of a process of its own."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    used = _mapped()
    most = used + (MEGABYTES << 20)
    if before[0] != resource.RLIM_INFINITY:
        most = min(most, before[0])
    token = LIMITS.set(Limits(SECONDS, resident() + (MEGABYTES << 20)))
    try:
        if used:
            resource.setrlimit(resource.RLIMIT_AS, (most, before[1]))
        with limited("the chat template"):
            yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
        LIMITS.reset(token)


def _mapped() -> int:
    """Bytes of memory that this process has mapped; 0 where nobody says."""
    try:
        with open("/proc/self/statm") as f:  # noqa: PTH123
            return int(f.read().split()[0]) * resource.getpagesize()
    except OSError:
        return 0


def _sandbox() -> Any:
    """The environment of Jinja that transformers has, with less that may take long."""
    try:
        from jinja2 import nodes
        from jinja2.exceptions import SecurityError, TemplateError
        from jinja2.ext import Extension
        from jinja2.sandbox import ImmutableSandboxedEnvironment
    except ImportError:
        what, fix = "the package jinja2 is not installed", "pip install 'lumc[llm]'"
        raise LumcError("E0344", what, fix=fix, exit=Exit.TOOLCHAIN) from None

    class Answers(Extension):
        """Marks of what the model says, which mean nothing here."""

        tags = {"generation"}  # noqa: RUF012

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return nodes.Scope(body, lineno=line)

    class Environment(ImmutableSandboxedEnvironment):
        intercepted_binops = frozenset({"*", "**"})

        def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
            """Numbers stay small: large ones are multiplied in one step that nothing can end."""
            numbers = [n for n in (left, right) if isinstance(n, int | float)]
            if any(abs(n) >= HUGE for n in numbers) or (operator == "**" and abs(right) > 64):
                raise SecurityError("a number that is too large")
            return super().call_binop(context, operator, left, right)

    def complain(message: object) -> None:
        raise TemplateError(str(message))

    def as_json(value: Any, indent: int | None = None) -> str:
        return json.dumps(value, ensure_ascii=False, indent=indent)

    made = Environment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", Answers]
    )
    made.filters["tojson"] = as_json
    made.globals["raise_exception"] = complain
    made.globals["strftime_now"] = datetime.now().strftime
    return made
