"""What a stranger's file puts into a message cannot move the cursor, or look like another line."""

from __future__ import annotations

from lumc.errors import LumcError


def test_messages_are_printable() -> None:
    error = LumcError("E0501", "no 'a\nb\x1b[2J\u202e'", where="m.lg:1\n  x\x07", fix="see \x7f")
    assert error.what == "no 'a\\nb\\x1b[2J\\u202e'"
    assert str(error).split("\n") == [
        "E0501 no 'a\\nb\\x1b[2J\\u202e'",
        "  where: m.lg:1",
        "  x\\x07",
        "  fix:   see \\x7f",
    ]
    assert str(LumcError("E0501", "größer als 'é'", where="—")) == (
        "E0501 größer als 'é'\n  where: —"
    )
