"""Why some operators have no row: their results have shapes, types or values no graph can hold."""

from __future__ import annotations

DATA_DEPENDENT = "its result has a data-dependent shape"
_STRINGS = "it works on strings"
RANDOM = "its result is random"
_TEXT_FIX = "do it before the model"
RANDOM_FIX = "make the random values an input of the model"

REASONS: dict[str, tuple[str, str]] = {
    "Unique": (DATA_DEPENDENT, "do it after the model"),
    "StringNormalizer": (_STRINGS, _TEXT_FIX),
    "StringConcat": (_STRINGS, _TEXT_FIX),
    "StringSplit": (_STRINGS, _TEXT_FIX),
    "RegexFullMatch": (_STRINGS, _TEXT_FIX),
    "ImageDecoder": ("it decodes files", _TEXT_FIX),
    "Multinomial": (RANDOM, RANDOM_FIX),
}
UNKNOWN = (
    "lumc does not know it, and the model has no function of its name",
    "export it as a function of the model, or write it with the operators of docs/onnx.md",
)
