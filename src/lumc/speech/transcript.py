"""What is said in sound: a model of speech that listens to half a minute at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from lumc.errors import Exit, LumcError
from lumc.generate.language import Kept
from lumc.generate.sampling import Sampling
from lumc.generate.session import Barred, Session, Spent
from lumc.runtime.opened import Opened
from lumc.speech.features import HOP, Array, log_mel
from lumc.speech.sound import RATE
from lumc.tokenizer.encoding import Encoding

TASKS = ("transcribe", "translate")
LATEST = 0.8  # of the length of a part: no earlier is it cut
QUIET = RATE // 10  # samples over which sound is quiet where it is cut


@dataclass(frozen=True)
class Part:
    """What was heard from one second to another."""

    start: float
    end: float
    text: str
    language: str  # "" where a model knows only one


class Listener:
    """A bundle with the entries of Whisper. Raises E0621 where it or the tokenizer is of another
    model, E0622 for a language or a task that it does not know."""

    def __init__(
        self, bundle: Opened, words: Encoding, threads: int = 1, language: str = "", task: str = ""
    ) -> None:
        shape = self.shape_of(bundle)
        known = words.tokenizer.special
        if shape is None or not {"start", "no_timestamps"} <= set(known):
            what = f"'{bundle.path}' is no model of speech"
            fix = "lumc import a folder of Whisper, and compile that"
            raise LumcError("E0621", what, fix=fix, exit=Exit.USAGE)
        self.bundle, self.words, self.threads = bundle, words, threads
        self.mels, self.frames = shape
        self.languages, self.language = words.tokenizer.languages, language
        self.task = task or "transcribe"
        several = bool(self.languages)
        if (language and language not in self.languages) or (task == "translate" and not several):
            asked = f"language '{language}'" if language else f"task '{task}'"
            fix = f"one of: {', '.join(sorted(self.languages)) or 'English, without --language'}"
            raise LumcError("E0622", f"the model has no {asked}", fix=fix, exit=Exit.USAGE)

    @staticmethod
    def shape_of(bundle: Opened) -> tuple[int, int] | None:
        """How many mels and frames the entry ``encode`` takes."""
        if "encode" not in bundle.entries:
            return None
        inputs = bundle.entry("encode").inputs
        if [t.name for t in inputs] != ["input_features"] or len(inputs[0].shape) != 2:
            return None
        return inputs[0].shape[0], inputs[0].shape[1]

    def listen(self, samples: Array, spent: Spent) -> Iterator[Part]:
        """Samples f32[n] -> what is said, part by part."""
        for start, end in parts(samples, self.frames * HOP):
            text, language = self.hear(samples[start:end], spent)
            yield Part(start / RATE, end / RATE, text, language)

    def hear(self, samples: Array, spent: Spent) -> tuple[str, str]:
        """The text of one part, and its language."""
        features, known = log_mel(samples, self.mels, self.frames), self.words.tokenizer
        self.bundle.run({"input_features": features}, "encode", self.threads)
        session = Session(Kept(self.bundle, self.threads))
        language = self.language or self.spoken(session)
        prompt = [known.special["start"]]
        if language:
            prompt += [self.languages[language], known.special[self.task]]
        prompt.append(known.special["no_timestamps"])
        barred = Barred(known.suppressed, known.not_first)
        took = Spent()
        count = session.model.context - len(prompt)
        greedy = Sampling(temperature=0)
        ids = list(session.tokens(prompt, greedy, count, known.stops, took, barred))
        spent.prompt += took.prompt
        spent.prompt_s += took.prompt_s
        spent.made += took.made
        spent.made_s += took.made_s
        return self.words.decode(ids).strip(), language

    def spoken(self, session: Session) -> str:
        """The most probable language, or "" where a model has only one."""
        if not self.languages:
            return ""
        logits = session.read([self.words.tokenizer.special["start"]])
        return max(sorted(self.languages), key=lambda name: float(logits[self.languages[name]]))


def parts(samples: Array, most: int) -> Sequence[tuple[int, int]]:
    """Where sound is cut, (start, end) of each part of up to ``most`` samples: where it is quiet,
    in the last fifth of a part."""
    out, start = list[tuple[int, int]](), 0
    while len(samples) - start > most:
        first = start + int(most * LATEST)
        around = np.square(samples[first : start + most].astype(np.float64))
        sums = np.concatenate([[0.0], np.cumsum(around)])
        quietest = int((sums[QUIET:] - sums[:-QUIET]).argmin())
        end = first + quietest + QUIET // 2
        out.append((start, end))
        start = end
    return [*out, (start, len(samples))] if len(samples) > start or not out else out
