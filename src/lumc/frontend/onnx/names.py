"""Names of ONNX in the text form of graphs."""

from __future__ import annotations

import re

from lumc.errors import Exit, LumcError

WORDS = ("inf", "nan", "true", "false")  # what the text form has other uses for


def clean(name: str) -> str:
    """An ONNX name as a name of the text form. Raises E0310 for one that is no text: where bytes
    are no UTF-8, protobuf gives them as they are."""
    if not isinstance(name, str):
        fix = "the file is damaged: export the model again"
        raise LumcError("E0310", f"{name!r} is no name", fix=fix, exit=Exit.CORRUPT)
    out = re.sub(r"[^A-Za-z0-9_.]", "_", name.strip("/").replace("/", ".").replace("::", "."))
    out = out[:200] if re.match(r"[A-Za-z_]", out) else f"_{out[:200]}"
    return f"{out}_" if out in WORDS else out
