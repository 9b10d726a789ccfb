"""Which entries may take rows of several callers: the proof against the oracle."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest

from lumc.graph.graph import Entry
from lumc.graph.text import parse_graph
from lumc.oracle.graph import evaluate
from lumc.serve import rows
from lumc.serve.rows import Mixed, proven, rows_of

HEAD = "lumc graph 1\ndim b in 1..6\ninput x f32[b, 4]\n"
FIXED = "lumc graph 1\ninput x f32[6, 4]\n"

APART = {
    "a row for each": "y f32[i:b, j:4] = mul x[i, j], x[i, j]",
    "sums of a row": "y f32[i:b] = sum k:4 of x[i, k]",
    "turned axes": "t f32[j:4, i:b] = add x[i, j], 1.0\ny f32[i:b, j:4] = add t[j, i], x[i, 3 - j]",
    "what no row says": "t f32[k:4] = add f32(k), 2.0\ny f32[i:b, k:4] = mul x[i, k], t[k]",
    "the same for all rows": "t f32[i:b, k:4] = add f32(k), 2.0\n"
    "y f32[i:b, k:4] = mul x[i, k], t[i, k]",
    "bounds along a row": "y f32[i:b, k:4] = add x[i, k + 1] if 0 <= k + 1 < 4, 0.0",
    "a product of rows": "t f32[i:b, j:4, k:4] = mul x[i, j], x[i, k]\n"
    "y f32[i:b, j:4] = sum k:4 of t[i, j, k]",
}
MIXED = {
    "a sum of rows": "t f32[k:4] = sum i:b of x[i, k]\ny f32[i:b, k:4] = add x[i, k], t[k]",
    "a greatest row": "t f32[k:4] = max i:b of x[i, k]\ny f32[i:b, k:4] = add x[i, k], t[k]",
    "rows of rows": "t f32[i:b, j:b, k:4] = mul x[i, k], x[j, k]\n"
    "y f32[i:b, j:b] = sum k:4 of t[i, j, k]",
    "its number": "y f32[i:b, k:4] = add x[i, k], f32(i)",
    "its number in a bound": "y f32[i:b, k:4] = add x[i, k], 1.0 if 0 <= i < 1",
    "how many there are": "y f32[i:b, k:4] = add x[i, k], f32(b)",
    "how many there are, in an index": "y f32[i:b, k:4] = add x[i, k], x[i, k + b] if 0 <= k + b < 4",  # noqa: E501
    "the row before": "y f32[i:b, k:4] = add x[i, k], x[i - 1, k] if 0 <= i - 1 < b",
    "rows backwards": "y f32[i:b, k:4] = add x[b - 1 - i, k], 0.0",
    "the first row": "y f32[i:b, k:4] = add x[i, k], x[0, k]",
    "a table by rows": "t f32[j:b] = add f32(j), 0.0\ny f32[i:b, k:4] = mul x[i, k], t[i]",
    "as long as there are rows": "y f32[i:b, j:b] = add x[i, 0], 0.0",
    "no rows": "y f32[k:4] = add f32(k), 0.0",
    "rows behind": "y f32[k:4, i:b] = add x[i, k], 0.0",
    "as many sums as rows": "t f32[k:4] = sum j:b of f32(1.0)\ny f32[i:b, k:4] = add x[i, k], t[k]",
}


def graph_of(body: str, head: str = HEAD) -> str:
    return head + body + "\noutput y = y\n"


def fixed(body: str) -> str:
    """The same for six rows."""
    out = graph_of(body, FIXED).replace(":b", ":6").replace("< b", "< 6")
    return out.replace("[b - 1 - i", "[5 - i")


@pytest.mark.parametrize("body", APART.values(), ids=APART)
def test_rows_that_are_apart(body: str) -> None:
    graph = parse_graph(graph_of(body))
    assert str(rows_of(graph.entries[0], graph.dims)) == "b"
    graph = parse_graph(fixed(body))
    assert rows_of(graph.entries[0], graph.dims) == 6


@pytest.mark.parametrize("body", MIXED.values(), ids=MIXED)
def test_rows_that_meet(body: str) -> None:
    graph = parse_graph(graph_of(body))
    assert rows_of(graph.entries[0], graph.dims) is None
    if not any(
        part in body for part in ("f32(b)", "k + b", "x[i, 0]", "sum j:b")
    ):  # of a number of rows that is always so
        graph = parse_graph(fixed(body))
        assert rows_of(graph.entries[0], graph.dims) is None


def test_inputs_without_rows_in_common() -> None:
    for head in ("input x f32[b, 4]\ninput z f32[4]\n", "input x f32[b, 4]\ninput z f32[]\n"):
        text = (
            f"lumc graph 1\ndim b in 1..6\n{head}y f32[i:b, k:4] = add x[i, k], 0.0\noutput y = y\n"
        )
        graph = parse_graph(text)
        assert rows_of(graph.entries[0], graph.dims) is None


def test_an_entry_that_keeps_a_state() -> None:
    text = (
        "lumc graph 1\ndim b in 1..6\nstate s f32[4]\ninput x f32[b, 4]\n"
        "y f32[i:b, k:4] = add x[i, k], 0.0\nt f32[k:4] = sum i:b of x[i, k]\n"
        "output y = y\nupdate s[k] = t[k]\n"
    )
    graph = parse_graph(text)
    with pytest.raises(Mixed, match="states"):
        proven(graph.entries[0], graph.dims)


# ---- graphs at random


def drawn(rng: random.Random) -> str:
    """A graph of a few nodes over values with axes (i: rows, k: 4) in some order, which may mix."""
    values = [("x", "ik")]
    lines = list[str]()
    for n in range(rng.randint(1, 5)):
        name = f"t{n}"
        (a, along), (c, beside) = rng.choice(values), rng.choice(values)
        axes = rng.choice(["ik", "ki", "k", "i"]) if rng.random() < 0.3 else along
        extents = ", ".join({"i": "i:6", "k": "k:4"}[x] for x in axes)
        where = {x: x for x in "ik"} | {x: "0" for x in "ik" if x not in axes}
        odd = {**where, "i": rng.choice(["i", "i", "5 - i", "0", "3"])} if "i" in axes else where
        odd = {**odd, "k": rng.choice(["k", "3 - k", "1"])} if "k" in axes else odd
        first = f"{a}[{', '.join(odd[x] for x in along)}]"
        second = f"{c}[{', '.join(where[x] for x in beside)}]"
        numbers = ["2.0", "f32(k)" if "k" in axes else "3.0", "f32(i)" if "i" in axes else "1.5"]
        kind = rng.random()
        if kind < 0.2 and len(along) == 2:
            reduced = rng.choice("iikkkk")
            rest = along.replace(reduced, "")
            extent, own = {"i": "i:6", "k": "k:4"}[reduced], {"i": "i:6", "k": "k:4"}[rest]
            lines.append(f"{name} f32[{own}] = sum {extent} of {a}[{', '.join(along)}]")
            axes = rest
        elif kind < 0.6:
            lines.append(f"{name} f32[{extents}] = mul {first}, {second}")
        else:
            lines.append(f"{name} f32[{extents}] = add {first}, {rng.choice(numbers)}")
        values.append((name, axes))
    last, along = values[-1]
    at = ", ".join(along)
    lines.append(f"y f32[i:6, k:4] = add x[i, k], {last}[{at}]")
    return FIXED + "\n".join(lines) + "\noutput y = y\n"


def is_apart(text: str, seed: int) -> bool:
    """Does a row stay as it is when all others change, wherever it lies?"""
    graph, rng = parse_graph(text), np.random.default_rng(seed)
    x = rng.standard_normal((6, 4)).astype(np.float32)
    want = evaluate(graph, "main", {"x": x}, lambda _: None)[0]["y"]
    for _ in range(3):
        order = rng.permutation(6)
        other = rng.standard_normal((6, 4)).astype(np.float32)
        kept = int(rng.integers(6))
        other[order[kept]] = x[kept]
        got = evaluate(graph, "main", {"x": other}, lambda _: None)[0]["y"]
        if not np.array_equal(got[order[kept]], want[kept], equal_nan=True):
            return False
    return True


def campaign(count: int) -> tuple[int, list[str]]:
    """How many graphs at random are proven, and those of them whose rows meet."""
    found, wrong = 0, list[str]()
    for seed in range(count):
        text = drawn(random.Random(seed))
        graph = parse_graph(text)
        if rows_of(graph.entries[0], graph.dims) is not None:
            found += 1
            if not is_apart(text, seed):
                wrong.append(text)
    return found, wrong


def test_what_is_proven_is_so() -> None:
    found, wrong = campaign(300)
    assert not wrong
    assert found > 30


def no_name(e: object, node: object) -> str:
    return "i"


MUTANTS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "any index reads rows": lambda m: m.setattr(rows, "name_of", no_name),
    "its number says nothing": lambda m: m.setattr(rows, "Iota", Entry),
    "rows may become one": lambda m: m.setattr(
        rows, "kinds_of", lambda node, known, count: unreduced(node, known, count)
    ),
}


def unreduced(node: object, known: object, count: object) -> tuple[str, ...]:
    from dataclasses import replace

    try:
        return kinds_of(node, known, count)
    except Mixed:
        found = kinds_of(replace(node, reduced=None), known, count)  # type: ignore[type-var]
        return found


kinds_of = rows.kinds_of


@pytest.mark.parametrize("mutant", MUTANTS.values(), ids=MUTANTS)
def test_a_proof_that_forgets_a_rule_is_caught(
    mutant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    mutant(monkeypatch)
    assert campaign(300)[1]
