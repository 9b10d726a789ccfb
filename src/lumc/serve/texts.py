"""Texts, where the models are held: sentences that become vectors, prompts that go on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from lumc.errors import Exit, LumcError
from lumc.generate.language import Kept
from lumc.generate.session import Barred, Session, Spent
from lumc.generate.stops import Stops
from lumc.graph.dim import Dim
from lumc.graph.tensor import LiveTensor, Tensor
from lumc.runtime.opened import Opened, usage
from lumc.serve.spec import EMBEDS, WRITES, Array, Prompt, Text
from lumc.tokenizer.chat import conversation
from lumc.tokenizer.encoding import Encoding, encoding
from lumc.tokenizer.sources import of_bundle, of_source

VECTOR = "sentence_embedding"
IDS, MASK, KINDS = "input_ids", "attention_mask", "token_type_ids"


def kind_of(bundle: Opened) -> str:
    """What a model does with texts: EMBEDS, WRITES, or ""."""
    first = bundle.entry()
    if {VECTOR} <= {t.name for t in first.outputs} and bundle.states == ():
        names = {t.name for t in first.inputs}
        return EMBEDS if {IDS, MASK} <= names <= {IDS, MASK, KINDS} else ""
    try:
        Kept(bundle)
    except LumcError:
        return ""
    return WRITES


def words_of(folder: Path, path: str, named: str) -> Encoding | None:
    """The tokenizer that is named, or that of the bundle, if it has one. Raises E0321, E0343,
    E0344."""
    if named:
        return encoding(of_source(named), named)
    try:
        return encoding(of_bundle(folder, path), path)
    except LumcError as e:
        if e.code == "E0619":
            return None
        raise


def too_long(count: int, most: int) -> LumcError:
    what = f"a text of {count} tokens, and the model takes 1 to {most}"
    return LumcError("E0615", what, fix="a shorter text", exit=Exit.USAGE)


@dataclass
class Embedder:
    """A sentence encoder."""

    bundle: Opened
    words: Encoding
    threads: int
    rows: range  # of a run

    def __post_init__(self) -> None:
        self.lengths = lengths_of(self.bundle.entry().inputs[0], self.bundle.dims)

    def ids(self, text: Text, truncate: bool) -> list[int]:
        """Raises E0615."""
        if isinstance(text, str):
            ids = self.words.encode(text, special=False)
            last = list(self.words.tokenizer.last)
        else:
            ids, last = list(text), []
        longest = self.lengths[-1]
        if truncate and len(ids) > longest:
            ids = ids[: longest - len(last)] + last
        if not 0 < len(ids) <= longest:
            raise too_long(len(ids), longest)
        return known(ids, self.words)

    def embed(self, texts: Sequence[Text], truncate: bool) -> tuple[Array, list[int]]:
        """The vectors f32[n, d] of texts, and how many tokens each has. Those of one length share
        runs. Raises E0615, E0610, E0611."""
        every = [self.ids(text, truncate) for text in texts]
        fitted = [next(n for n in self.lengths if n >= len(ids)) for ids in every]
        order = sorted(range(len(every)), key=fitted.__getitem__)
        out = [np.empty(0, np.float32)] * len(every)
        most = self.rows[-1] if self.rows else 1
        while order:
            length = fitted[order[0]]
            same = [i for i in order[:most] if fitted[i] == length]
            for i, vector in zip(same, self._run([every[i] for i in same], length), strict=True):
                out[i] = vector
            order = order[len(same) :]
        return np.stack(out), list(map(len, every))

    def _run(self, batch: Sequence[Sequence[int]], length: int) -> Array:
        """Texts that are filled up to a length; and rows that nobody asked for."""
        count = next((n for n in self.rows if n >= len(batch)), len(batch))
        ids, mask = np.zeros((2, count, length), np.int64)
        ids[:], mask[:, 0] = self.words.tokenizer.special.get("padding", 0), 1
        for i, text in enumerate(batch):
            ids[i, : len(text)], mask[i, : len(text)] = text, 1
        given = {IDS: ids, MASK: mask, KINDS: np.zeros_like(ids)}
        named = {t.name: given[t.name].astype(t.dtype.numpy) for t in self.bundle.inputs}
        found: Array = self.bundle.run(named, "", self.threads, lambda _: None)[VECTOR]
        return found[: len(batch)]


def lengths_of(ids: Tensor, dims: Mapping[str, Dim]) -> range:
    """How many tokens the rows of an input may have."""
    extent = ids.extents[1] if isinstance(ids, LiveTensor) else ids.shape[1]
    if isinstance(extent, int):
        return range(extent, extent + 1)
    if extent.kind == "dim":
        return dims[extent.attr[0]].values
    return range(ids.shape[1], ids.shape[1] + 1)


def known(ids: list[int], words: Encoding) -> list[int]:
    """The ids, if they are those of tokens. Raises E0610."""
    tokens, added = words.tokenizer.tokens, {a.id for a in words.tokenizer.added}
    for i in ids:
        if not (0 <= i < len(tokens) or i in added):
            raise usage(f"no token has the id {i}", f"0 to {len(tokens) - 1}")
    return ids


@dataclass
class Talk:
    """A text that goes on."""

    pieces: Iterator[str]
    spent: Spent
    stops: Stops
    tokens: int = 0  # of the prompt


@dataclass
class Writer:
    """A language model, with one text in its memory: what the next one has in common with it at
    its beginning is not computed again."""

    bundle: Opened
    words: Encoding
    threads: int
    talk: Talk | None = None
    session: Session = field(init=False)

    def __post_init__(self) -> None:
        self.model = Kept(self.bundle, self.threads)
        self.session = Session(self.model)

    def begin(self, prompt: Prompt) -> int:
        """Take a prompt: how many tokens it has. Raises E0615, E0617, E0619, E0345."""
        ids = self._ids(prompt)
        first, tokenizer = ids, self.words.tokenizer
        if self.model.encodes:
            if "start" not in tokenizer.special:
                what = "the tokenizer does not say how an answer starts"
                raise LumcError("E0619", what, exit=Exit.USAGE)
            self.model.encode(ids)
            self.session.seen.clear()
            first = [tokenizer.special["start"]]
        most = self.model.context
        if not 0 < len(first) <= most:
            raise too_long(len(first), most)
        spent, stops = Spent(), Stops(prompt.stops)
        barred = Barred(tokenizer.suppressed, tokenizer.not_first)
        count = min(prompt.count or most, most - len(first) + 1)
        tokens = self.session.tokens(first, prompt.sampling, count, tokenizer.stops, spent, barred)
        pieces = stops.until(self.words.stream(tokens))
        self.talk = Talk(pieces, spent, stops, len(ids))
        return len(ids)

    def go_on(self) -> tuple[str, str, int]:
        """The next piece of the text; why it ended, or ""; how many tokens were made."""
        assert self.talk is not None
        piece = next(self.talk.pieces, None)
        made = self.talk.spent.made
        if piece is not None:
            return piece, "", made
        ended = "stop" if self.talk.stops.found else self.talk.spent.ended
        self.talk = None
        return "", "stop" if ended == "stop" else "length", made

    def _ids(self, prompt: Prompt) -> list[int]:
        """Those of a prompt; of a conversation as its template makes a text of it. Ids have to be
        those of tokens: E0610."""
        if prompt.messages:
            text = conversation(self.words.tokenizer, prompt.messages)
            return self.words.encode(text, whole=False)
        if isinstance(prompt.text, str):
            return self.words.encode(prompt.text)
        return known(list(prompt.text), self.words)
