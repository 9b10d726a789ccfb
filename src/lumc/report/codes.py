"""What the codes of errors mean: codes.txt, a line for what happened and one for what to do."""

from __future__ import annotations

import json
import re
from importlib.resources import files
from typing import NamedTuple

from lumc.errors import Exit, LumcError

IS_CODE = re.compile(r"[Ee]\d+")


class Meaning(NamedTuple):
    code: str
    what: str
    fix: str


def meanings() -> dict[str, Meaning]:
    """All codes, in their order."""
    lines = (files("lumc.report") / "codes.txt").read_text().splitlines()
    pairs = zip(lines[::2], lines[1::2], strict=True)
    found = ((*first.split(" ", 1), second.strip()) for first, second in pairs)
    return {code: Meaning(code, what, fix) for code, what, fix in found}


def explain(code: str, as_json: bool) -> None:
    """``lumc explain E0312``. Raises E0203 for a code that there is not."""
    meaning = meanings().get(code.upper())
    if not meaning:
        fix = "docs/errors.md lists them"
        raise LumcError("E0203", f"there is no code {code.upper()}", fix=fix, exit=Exit.USAGE)
    if as_json:
        print(json.dumps(meaning._asdict()))
    else:
        print(f"{meaning.code} {meaning.what}\n  fix:   {meaning.fix}")
