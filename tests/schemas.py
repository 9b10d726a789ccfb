"""The part of JSON Schema that src/lumc/schemas uses."""

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[1] / "src" / "lumc" / "schemas"
NAMES = sorted(p.stem for p in FOLDER.glob("*.json"))
TYPES: dict[str, Any] = {
    "object": dict,
    "array": list,
    "string": str,
    "boolean": bool,
    "null": type(None),
    "integer": int,
    "number": (int, float),
}
CHECKED = {"type", "const", "enum", "pattern", "items", "properties", "required", "anyOf"}
CHECKED |= {"additionalProperties"}
SAYS = {"$schema", "$id", "title", "description"}


@cache
def schema(name: str) -> dict[str, Any]:
    return json.loads((FOLDER / f"{name}.json").read_text())


def problems(value: Any, rule: dict[str, Any], at: str = "$", closed: bool = True) -> list[str]:
    """What is wrong with a value. ``closed``: a field that the schema does not name is, too."""
    out = []
    if "anyOf" in rule:
        each = [problems(value, r, at, closed) for r in rule["anyOf"]]
        return [] if [] in each else min(each, key=len)
    if "type" in rule and not any(is_a(value, t) for t in listed(rule["type"])):
        return [f"{at}: {value!r} is no {rule['type']}"]
    if ("const" in rule and value != rule["const"]) or value not in rule.get("enum", [value]):
        out.append(f"{at}: {value!r} is not one of {rule}")
    if "pattern" in rule and not re.search(rule["pattern"], value):
        out.append(f"{at}: {value!r} does not match")
    for i, item in enumerate(value if "items" in rule else ()):
        out += problems(item, rule["items"], f"{at}[{i}]", closed)
    if isinstance(value, dict) and ("properties" in rule or "additionalProperties" in rule):
        known, rest = rule.get("properties", {}), rule.get("additionalProperties")
        out += [f"{at}.{k} is missing" for k in rule.get("required", ()) if k not in value]
        for k, v in value.items():
            if k in known or rest is not None:
                out += problems(v, known.get(k, rest), f"{at}.{k}", closed)
            elif closed:
                out.append(f"{at}.{k} is not in the schema")
    return out


def unknown(rule: dict[str, Any]) -> set[str]:
    """Keywords that are not checked."""
    within = [*rule.get("properties", {}).values(), *rule.get("anyOf", ())]
    within += [rule[k] for k in ("items", "additionalProperties") if k in rule]
    return (rule.keys() - CHECKED - SAYS).union(*map(unknown, within))


def listed(kind: str | list[str]) -> list[str]:
    return [kind] if isinstance(kind, str) else kind


def is_a(value: Any, kind: str) -> bool:
    return isinstance(value, TYPES[kind]) and (kind == "boolean" or not isinstance(value, bool))


def check(name: str, value: Any) -> None:
    found = problems(value, schema(name))
    assert not found, f"{name}: {found[:5]}"
