"""Every code of an error that the source has is explained, in `lumc explain` and in docs/errors.md.
`pytest tests/docs/test_codes.py --update-golden` writes the table there."""

import json
import re
from pathlib import Path

import pytest

from commands import Lumc
from lumc.report.codes import meanings

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "errors.md"
BEGIN = "<!-- codes: written by pytest tests/docs/test_codes.py --update-golden -->\n"
END = "<!-- codes -->\n"
RAISED = re.compile(r'"(E0\d{3})"')


def raised() -> set[str]:
    """The codes in quotes of the source: those of errors, not those that docstrings name."""
    sources = (ROOT / "src" / "lumc").rglob("*.py")
    return {code for source in sources for code in RAISED.findall(source.read_text())}


def test_every_code_is_explained_and_every_explained_code_is_raised() -> None:
    assert list(meanings()) == sorted(raised())


def test_a_code_is_told_with_what_to_do(lumc: Lumc) -> None:
    assert lumc("explain", "e0701").startswith("E0701 There is no C compiler.\n  fix:   apt ")
    assert json.loads(lumc("explain", "E0701", "--json"))["code"] == "E0701"
    assert "E0203 there is no code E9999" in lumc.fails(2, "explain", "E9999")
    for m in meanings().values():
        assert m.what.endswith(".") and m.fix and len(f"{m.code} {m.what}") <= 100


def test_the_docs_have_them_all(request: pytest.FixtureRequest) -> None:
    rows = [f"| {m.code} | {m.what} | {m.fix} |\n" for m in meanings().values()]
    table = "| code | what happened | what to do |\n|---|---|---|\n" + "".join(rows)
    before, _, rest = PAGE.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    new = before + BEGIN + table + END + after
    if request.config.getoption("--update-golden"):
        PAGE.write_text(new)
    assert PAGE.read_text() == new, "pytest tests/docs/test_codes.py --update-golden"
