"""docs/python.md is what the docstrings of the public names say: complete, current, and its
examples run. `pytest tests/docs/test_python.py --update-golden` writes it."""

import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import lumc

PAGE = Path(__file__).parents[2] / "docs" / "python.md"
HEAD = (
    "<!-- written by: pytest tests/docs/test_python.py --update-golden -->\n\n# lumc in Python\n\n"
)
FIRST = ["compile", "load", "Bundle", "TensorSpec", "EntrySpec", "Error", "Model", "Tensor"]
# what the other modules of lumc use of models and tensors
INSIDE = {
    "Model": {"builder", "constants", "emit", "origin", "read_weight", "graph", "whole"}
    | {"check_here"},
    "Tensor": {"lift", "reduced", "refuse", "unary", "view"},
    "Error": {"add_note", "with_traceback"},
}
TRAIN = ["sgd", "adam", "adamw", "lion", "norm", "clip_norm", "clip_value", "Sums"]
TRAIN += ["scaled_gradients"]
RANDOM = ["Generator", "bits", "uniform", "normal", "key"]
LAYERS = ["Scope", "Random", "linear", "embedding", "layer_norm", "rms_norm", "heads", "merged"]
LAYERS += ["attention", "mask_bias", "causal_bias", "rotary_tables", "rotary", "repeat_heads"]


def told(value: Any, name: str) -> str:
    """Its docstring, in Markdown; every public name has one."""
    said = inspect.getdoc(value)
    assert said, f"{name} has no docstring"
    return re.sub(r"(?<!`)``(?!`)", "`", said)


def signature(function: Any, name: str, own: bool = False) -> str:
    """A call as it is written, without ``self``; of several lines if it is long."""
    parts, keywords = list[str](), False
    for p in list(inspect.signature(function).parameters.values())[int(own) :]:
        if p.kind is p.KEYWORD_ONLY and not keywords:
            parts.append("*")
        keywords |= p.kind in (p.KEYWORD_ONLY, p.VAR_POSITIONAL)
        star = {p.VAR_POSITIONAL: "*", p.VAR_KEYWORD: "**"}.get(p.kind, "")
        kind = "" if p.annotation in (p.empty, "Any", "V") else f": {p.annotation}"
        default = "" if p.default is p.empty else re.sub("^<.*", "...", repr(p.default))
        parts.append(star + p.name + kind + (" = " if kind else "=") * bool(default) + default)
    short = f"{name}({', '.join(parts)})"
    return short if len(short) <= 96 else f"{name}(\n    " + ",\n    ".join(parts) + ",\n)"


def members(cls: type, name: str) -> Iterator[tuple[str, Any]]:
    """The public attributes of a class that somebody wrote, in alphabetical order."""
    for n in sorted(dir(cls)):
        if not n.startswith("_") and n not in INSIDE.get(name, ()):
            yield n, inspect.getattr_static(cls, n)


def row(name: str, value: Any) -> str | None:
    """What a method or property does; None for plain data."""
    if isinstance(value, property):
        return f"| `{name}` | {first(told(value, name))} |"
    if callable(value):
        return call(value, name, own=True)
    return None


def call(value: Any, name: str, own: bool = False) -> str:
    """A row with a signature."""
    whole = " ".join(signature(value, name, own).split()).replace("( ", "(").replace(", )", ")")
    return f"| `{first(whole)}` | {first(told(value, name))} |"


def first(said: str) -> str:
    """A docstring in one line of a table."""
    return " ".join(said.split()).replace("|", "\\|")


def section(name: str) -> str:
    value = getattr(lumc, name)
    out = [f"## lumc.{name}\n"]
    if inspect.isfunction(value):
        out += [f"```text\n{signature(value, f'lumc.{name}')}\n```\n"]
    out.append(told(value, name) + "\n")
    if inspect.isclass(value):
        rows = [r for n, v in members(value, name) if (r := row(n, v))]
        out += ["| | |", "|---|---|", *rows, ""] if rows else []
    return "\n".join(out)


def module(name: str, names: list[str]) -> str:
    """A module as a table of functions, and of classes with their methods."""
    there, rows = getattr(lumc, name), list[str]()
    for n in names:
        value = getattr(there, n)
        rows.append(call(value, n))
        if inspect.isclass(value) and n in ("Generator", "Sums"):
            more = [(f"{n}.{m}", v) for m, v in members(value, n) if inspect.isfunction(v)]
            rows += [call(v, m, own=True) for m, v in more]
    table = "\n".join(["| | |", "|---|---|", *rows])
    return f"## lumc.{name}\n\n{told(there, name)}\n\n{table}\n"


def page() -> str:
    rest = [n for n in lumc.__all__ if n not in (*FIRST, "nn", "random", "train")]
    modules = [module("nn", LAYERS), module("train", TRAIN), module("random", RANDOM)]
    return HEAD + "\n".join([told(lumc, "lumc") + "\n", *map(section, FIRST + rest), *modules])


def test_the_page_is_what_the_docstrings_say(request: pytest.FixtureRequest) -> None:
    if request.config.getoption("--update-golden"):
        PAGE.write_text(page())
    assert PAGE.read_text() == page(), "pytest tests/docs/test_python.py --update-golden"


def test_every_public_name_is_there() -> None:
    assert set(lumc.__all__) <= set(dir(lumc))
    for name in lumc.__all__:
        assert f"## lumc.{name}\n" in PAGE.read_text()
    with pytest.raises(AttributeError, match="no attribute 'nosuch'"):
        lumc.nosuch  # noqa: B018


def test_the_examples_run_in_a_script_without_a_guard(tmp_path: Path) -> None:
    """The search has a process of its own, which must not run the script once more."""
    text = PAGE.read_text()
    script = tmp_path / "script.py"
    script.write_text("\n".join(re.findall(r"```python\n(.*?)```", text, re.DOTALL)))
    wanted = "".join(re.findall(r"```\n\n```text\n(.*?)```", text, re.DOTALL))
    done = subprocess.run(
        [sys.executable, script], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert wanted and (done.stdout, done.stderr) == (wanted, "")
