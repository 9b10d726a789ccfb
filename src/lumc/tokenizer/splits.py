"""How texts are split into words before pairs are merged, by the names that GGUF files use.

The rules are those of the tokenizers that the models were trained with.
"""

from __future__ import annotations

from dataclasses import dataclass

CONTRACTED = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


@dataclass(frozen=True)
class Split:
    """A rule."""

    pattern: str = ""  # of words; without one, those of GPT-2
    digits: bool = False  # each digit is a word of its own
    composed: bool = False  # the text is brought to the normal form NFC first
    whole: bool = False  # words that are tokens are not merged
    begins: bool = False  # a text begins with a token of its own, unless the file says otherwise


GPT2 = Split()
DIGITS = Split(digits=True)
LLAMA3 = Split(rf"{CONTRACTED}|{WORDS}|\p{{N}}{{1,3}}|{REST}", whole=True, begins=True)
QWEN2 = Split(rf"{CONTRACTED}|{WORDS}|\p{{N}}|{REST}", composed=True)
SPLITS = {
    "default": GPT2,
    "gpt-2": GPT2,
    "phi-2": GPT2,
    "olmo": GPT2,
    "smollm": DIGITS,
    "starcoder": DIGITS,
    "refact": DIGITS,
    "llama-bpe": LLAMA3,
    "llama3": LLAMA3,
    "llama-v3": LLAMA3,
    "qwen2": QWEN2,
    "deepseek-r1-qwen": QWEN2,
}
