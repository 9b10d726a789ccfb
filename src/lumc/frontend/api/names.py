"""Names of foreign models in the text form of graphs."""

from __future__ import annotations

import re

WORDS = ("inf", "nan", "true", "false")  # what the text form has other uses for


def clean(name: str) -> str:
    """A name as one of the text form."""
    out = re.sub(r"[^A-Za-z0-9_.]", "_", name.strip("/").replace("/", ".").replace("::", "."))
    out = out[:200] if re.match(r"[A-Za-z_]", out) else f"_{out[:200]}"
    return f"{out}_" if out in WORDS else out
