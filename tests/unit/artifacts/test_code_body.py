"""The body of a ``.lk``: round trip, and what a malformed one says."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bundles import mlp
from lumc.artifacts.bodies import code_from_json, code_to_json
from lumc.codegen.code import Code
from lumc.codegen.text.headers import header_of
from lumc.disk.artifact import fields
from lumc.errors import Exit, LumcError


def whole(folder: Path) -> Code:
    """With the header of lumc, which no other takes the place of in a file."""
    return replace(mlp(folder)[0], header=header_of("cpu"))


def test_round_trip(tmp_path: Path) -> None:
    code = whole(tmp_path)
    body = json.loads(json.dumps(code_to_json(code)))
    assert code_from_json(body, code.graph) == code
    assert code_to_json(code_from_json(body, code.graph)) == code_to_json(code)


DAMAGE: list[tuple[str, Callable[[Any], Any]]] = [
    ("symbol with a path", lambda b: b["kernels"][0].update(symbol="../../x")),
    ("symbol twice", lambda b: b["kernels"][1].update(symbol="k0_matmul")),
    ("unknown kernel", lambda b: b["entries"][0]["launches"][0].update(kernel="nothing")),
    ("unknown value", lambda b: b["entries"][0]["launches"][0]["args"].__setitem__(0, "nothing")),
    ("too few arguments", lambda b: b["entries"][0]["launches"][0]["args"].pop()),
    ("unknown place", lambda b: b["entries"][0]["values"][0].update(place="moon")),
    ("outside of the arena", lambda b: b["entries"][0].update(arena_bytes=64)),
    ("not aligned", lambda b: b["entries"][0]["values"][-1].update(offset=100)),
    ("negative size", lambda b: b["entries"][0]["values"][0].update(shape=[-1, 3])),
    ("huge size", lambda b: b["entries"][0]["values"][0].update(shape=[1 << 60, 3])),
    ("text for a size", lambda b: b["entries"][0]["values"][0].update(shape=["a"])),
    ("unknown weight", lambda b: b["entries"][0]["values"][4].update(name="w9")),
    ("unknown dtype", lambda b: b["entries"][0]["values"][0].update(dtype="f31")),
    ("field missing", lambda b: b["kernels"][0].pop("source")),
    ("field unknown", lambda b: b["kernels"][0].update(extra=1)),
    ("field of another type", lambda b: b["kernels"][0].update(source=3)),
    ("packed size", lambda b: b["packings"][0]["axes"][0].__setitem__(1, 400)),
    ("panel of no axis", lambda b: b["packings"][0].update(panel=[7, 8])),
    ("two outputs at one place", lambda b: b["entries"][0]["values"][0].update(place="output")),
    ("entries are no list", lambda b: b.update(entries=7)),
]


@pytest.mark.parametrize(("what", "change"), DAMAGE, ids=[what for what, _ in DAMAGE])
def test_malformed(what: str, change: Callable[[Any], Any], tmp_path: Path) -> None:
    code = whole(tmp_path)
    body = json.loads(json.dumps(code_to_json(code)))
    change(body)
    with pytest.raises(LumcError) as e, fields("kernels"):
        code_from_json(body, code.graph)
    assert e.value.exit == Exit.CORRUPT
