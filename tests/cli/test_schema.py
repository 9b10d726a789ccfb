"""`lumc schema`, and that the check of schemas in tests finds what is wrong."""

import json
from math import inf, nan

import pytest

from commands import Lumc
from lumc.command.bundles import tell
from lumc.command.judge import Comparison
from schemas import NAMES, check, problems, schema, unknown


def test_schemas_are_listed_and_printed(lumc: Lumc) -> None:
    assert [line.split()[0] for line in lumc("schema").splitlines()] == NAMES
    assert json.loads(lumc("schema", "verify"))["$id"] == "urn:lumc:verify:1"
    assert "there are: bench, bench-llm, cache-list" in lumc.fails(2, "schema", "nosuch")


@pytest.mark.parametrize("name", NAMES)
def test_a_schema_names_itself_and_uses_what_is_checked(name: str) -> None:
    rule = schema(name)
    assert rule["$id"].startswith(f"urn:lumc:{name}:") and rule["title"]
    assert not unknown(rule)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ([{"what": "python", "ok": True}], "$[0].said is missing"),
        ([{"what": "python", "ok": 1, "said": ""}], "$[0].ok: 1 is no boolean"),
        ([{"what": "python", "ok": True, "said": "", "x": 1}], "$[0].x is not in the schema"),
        ({}, "$: {} is no array"),
    ],
)
def test_the_check_finds_what_is_wrong(value: object, said: str) -> None:
    assert said in problems(value, schema("doctor"))


def test_values_of_maps_unions_and_patterns_are_checked() -> None:
    assert problems({"y": {}}, schema("run")) and not problems({}, schema("run"))
    assert problems([{"where": "", "a": 1, "b": None}], schema("diff"))
    assert problems({"entry": "main"}, schema("bench"))
    assert problems({"code": "X", "what": "", "fix": ""}, schema("explain-code"))


def test_json_has_no_number_that_is_none(capsys: pytest.CaptureFixture[str]) -> None:
    row = Comparison("y", "oracle", nan, inf, (0, 1), -inf, 1.0, False)
    tell([row], None, False, as_json=True)
    found = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    check("verify", found)
    assert [found[0][k] for k in ("relative_l2", "worst_difference", "got")] == [
        "nan",
        "inf",
        "-inf",
    ]
