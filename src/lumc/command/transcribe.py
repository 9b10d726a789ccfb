"""``lumc transcribe``: what is said in a file of sound."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from lumc.command.generate import say, told
from lumc.generate.session import Spent
from lumc.speech.sound import RATE, read_wav
from lumc.speech.transcript import Listener
from lumc.tokenizer.encoding import encoding
from lumc.tokenizer.sources import of_bundle, of_source


@dataclass(frozen=True)
class Asked:
    """What is asked for besides the text."""

    tokenizer: str | None = None  # where it is taken from; by default the bundle
    language: str = ""  # "": what the model hears
    task: str = "transcribe"
    threads: int = 1
    device: str = ""
    as_json: bool = False


def transcribe(path: str, sound: str, asked: Asked) -> None:
    """``lumc transcribe``: to stdout part by part, or as JSON with what it took."""
    from lumc.bundle.unpack import opened
    from lumc.runtime.choose import open_bundle

    samples, spent, named = read_wav(sound), Spent(), asked.tokenizer
    with opened(path) as folder, open_bundle(folder, asked.device, say=say) as bundle:
        known = of_source(named) if named else of_bundle(folder, path)
        words = encoding(known, named or path)
        listener = Listener(bundle, words, asked.threads, asked.language, asked.task)
        heard = []
        for part in listener.listen(samples, spent):
            heard.append(part)
            if not asked.as_json:
                print(part.text, flush=True)
    if asked.as_json:
        text = " ".join(part.text for part in heard if part.text)
        seconds = len(samples) / RATE
        took = {k: v for k, v in told(spent).items() if k != "ended"}
        said = {"text": text, "seconds": seconds, "parts": [asdict(p) for p in heard], **took}
        print(json.dumps(said))
