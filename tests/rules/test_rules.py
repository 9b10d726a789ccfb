"""Every rule is sound on random instances, and the check kills wrong rules."""

from __future__ import annotations

import pytest

from lumc.search.saturate import RULES, rule_files
from rules.laws import RULE_LINE, Rule, Violated, all_rules, check, rule
from rules.mutants import MUTANTS

ALL = {r.name: r for r in all_rules()}


@pytest.mark.parametrize("name", ALL)
def test_rule_is_sound(name: str) -> None:
    assert check(ALL[name], 400) >= 80, "its conditions hold too seldom to be tested"


@pytest.mark.parametrize(
    ("name", "mutant"), [(name, m) for name, found in MUTANTS.items() for m in found]
)
def test_mutant_is_killed(name: str, mutant: tuple[str, str]) -> None:
    text = ALL[name].text
    assert mutant[0] in text
    with pytest.raises(Violated):
        check(rule(text.replace(*mutant)), 1500)


def test_every_rule_has_a_mutant_a_name_and_a_law() -> None:
    lines = [s for t in rule_files().values() for s in t.splitlines() if RULE_LINE in s]
    names = [rule(s).name for s in lines]
    assert sorted(names) == sorted(set(names)) == sorted(MUTANTS)
    assert all(rule(s).law for s in lines)


def test_every_condition_has_a_mutant() -> None:
    for r in ALL.values():
        for condition in guards(r):
            assert any(condition in old and condition not in new for old, new in MUTANTS[r.name]), (
                f"no mutant of {r.name} drops {condition}"
            )


def guards(r: Rule) -> list[str]:
    """The texts of the conditions that can fail."""
    heads = ("set-not-contains", "integer", "!=", ">", "<")
    return [unparsed(c) for c in r.conditions if c[0] in heads]


def unparsed(s: object) -> str:
    return f"({' '.join(map(unparsed, s))})" if isinstance(s, list) else str(s)


def test_every_rule_file_is_listed_in_the_readme() -> None:
    readme = (RULES / "README.md").read_text()
    assert all(f"`{name}.egg`" in readme for name in rule_files())
