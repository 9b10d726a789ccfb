"""HTML and SVG as text: whatever is not markup already is escaped."""

from __future__ import annotations

import html
from collections.abc import Iterable

VOID = ("meta", "link", "br", "line", "rect", "circle", "path")


class Markup(str):
    """Text that is markup; only ``tag`` and ``join`` make it."""

    __slots__ = ()


def tag(name: str, /, *kids: object, **attributes: object) -> Markup:
    """An element. ``class_`` is class, ``data_k`` is data-k; None leaves an attribute out."""
    said = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{html.escape(_number(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    inner = join(kids)
    if not inner and name in VOID:
        return Markup(f"<{name}{said}/>")
    return Markup(f"<{name}{said}>{inner}</{name}>")


def join(parts: Iterable[object], between: str = "") -> Markup:
    return Markup(
        between.join(p if isinstance(p, Markup) else html.escape(_number(p)) for p in parts)
    )


def _number(value: object) -> str:
    """Coordinates with two decimals at most: the same bytes everywhere."""
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)
