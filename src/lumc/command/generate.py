"""``lumc generate``: a text, and what a language model makes of it."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from lumc.errors import Exit, LumcError
from lumc.generate.language import Kept
from lumc.generate.sampling import Sampling
from lumc.generate.session import Barred, Session, Spent
from lumc.generate.stops import Stops
from lumc.report.log import Log
from lumc.tokenizer.chat import conversation
from lumc.tokenizer.encoding import Encoding, encoding
from lumc.tokenizer.sources import of_bundle, of_source


@dataclass(frozen=True)
class Wanted:
    """What is asked for besides the prompt."""

    count: int  # tokens at most
    tokenizer: str | None = None  # where it is taken from; by default the bundle
    stops: Sequence[str] = ()  # words
    system: str = ""  # what is said first in a conversation
    chat: bool = False
    threads: int = 1
    device: str = ""
    as_json: bool = False


def generate(path: str, prompt: str | None, wanted: Wanted, sampling: Sampling) -> None:
    """``lumc generate``: to stdout as it becomes known, or as JSON with what it took. In a chat
    without a prompt, every line of stdin is one turn."""
    from lumc.bundle.unpack import opened
    from lumc.runtime.choose import open_bundle

    with opened(path) as folder, open_bundle(folder, wanted.device, say=say) as bundle:
        model = Kept(bundle, wanted.threads)
        named = wanted.tokenizer
        known = of_source(named) if named else of_bundle(folder, path)
        words = encoding(known, named or path)
        if model.encodes and "start" not in known.special:
            what = f"the tokenizer of '{named or path}' does not say how an answer starts"
            raise LumcError("E0619", what, exit=Exit.USAGE)
        talk = Talk(words, model, wanted, sampling)
        if prompt is None and not wanted.chat:
            prompt = read_stdin()
        turns = iter(sys.stdin) if prompt is None else iter([prompt])
        for turn in turns:
            talk.answer(turn.rstrip("\n") if prompt is None else turn)


def say(line: str) -> None:
    Log()(0, f"note: {line}")


def read_stdin() -> str:
    if sys.stdin is None or sys.stdin.isatty():
        what = "no prompt: --prompt TEXT, or a text on stdin"
        raise LumcError("E0203", what, exit=Exit.USAGE)
    return sys.stdin.read()


class Talk:
    """A conversation, or one text."""

    def __init__(self, words: Encoding, model: Kept, wanted: Wanted, sampling: Sampling) -> None:
        self.words, self.model, self.wanted, self.sampling = words, model, wanted, sampling
        self.session = Session(model)
        first = [{"role": "system", "content": wanted.system}] if wanted.system else []
        self.messages: list[dict[str, str]] = first

    def answer(self, prompt: str) -> None:
        """What follows a prompt, written as it becomes known."""
        spent, stops, text = Spent(), Stops(self.wanted.stops), ""
        for piece in stops.until(self.pieces(prompt, spent)):
            text += piece
            if not self.wanted.as_json:
                print(piece, end="", flush=True)
        spent.ended = "word" if stops.found else spent.ended
        if self.wanted.as_json:
            print(json.dumps({"text": text, **told(spent), "sampling": asdict(self.sampling)}))
        else:
            print(flush=True)
        self.messages.append({"role": "assistant", "content": text})

    def pieces(self, prompt: str, spent: Spent) -> Iterator[str]:
        ids = self.ids(prompt)
        known, count = self.words.tokenizer, self.wanted.count
        barred = Barred(known.suppressed, known.not_first)
        chosen = self.session.tokens(ids, self.sampling, count, known.stops, spent, barred)
        return self.words.stream(chosen)

    def ids(self, prompt: str) -> list[int]:
        """What the model is given: the prompt or the conversation so far as tokens, or, where it
        encodes these, what its answer begins with."""
        text = prompt
        if self.wanted.chat:
            self.messages.append({"role": "user", "content": prompt})
            text = conversation(self.words.tokenizer, self.messages)
        ids = self.words.encode(text, whole=not self.wanted.chat)
        if not self.model.encodes:
            return ids
        self.model.encode(ids)
        self.session.seen.clear()
        return [self.words.tokenizer.special["start"]]


def told(spent: Spent) -> dict[str, Any]:
    """What a text took, as JSON says it."""
    return {
        "ended": spent.ended,
        "prompt": rate(spent.prompt, spent.prompt_s),
        "generated": rate(spent.made, spent.made_s),
    }


def rate(tokens: int, seconds: float) -> dict[str, float]:
    """Tokens, seconds that they took, and how many there were in one."""
    return {
        "tokens": tokens,
        "seconds": round(seconds, 6),
        "tokens_per_second": round(tokens / seconds, 3) if seconds else 0.0,
    }
