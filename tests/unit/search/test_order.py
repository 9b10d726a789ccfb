"""The order of regions where states are updated: who sees which version, what is refused."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from lumc.errors import LumcError
from lumc.graph.graph import Graph
from lumc.graph.text import parse_graph
from lumc.search.explore import find_regions

HEAD = """lumc graph 1
state c f32[4]
state e f32[4]

input x f32[4]
input z f32[4]
"""


def graph(*lines: str) -> Graph:
    return parse_graph(HEAD + "\n".join(lines) + "\n")


def order(*lines: str) -> list[str]:
    """What each region writes, in order; updates with their values."""
    (entry,) = graph(*lines).entries
    found = find_regions(entry)
    return [f.output if f.write is None else f"{f.output} <- {f.node.name}" for f in found]


def test_readers_of_the_state_come_before_an_update_and_those_of_its_result_behind() -> None:
    made = order(
        "u = update c[d0] = x[d0]",
        "new f32[] = sum i:4 of u[i]",
        "old f32[] = sum i:4 of c[i]",
        "output new = new",
        "output old = old",
    )
    assert made == ["old", "c <- x", "new"]


def test_updates_without_a_name_come_last() -> None:
    made = order(
        "w f32[i:4] = add x[i], c[i]",
        "old f32[] = sum i:4 of c[i]",
        "output old = old",
        "output w = w",
        "update c[i] = w[i]",
        "update e[d0] = x[d0]",
        "update e[d0] = z[d0]",
    )
    assert made == ["w", "old", "c <- w", "e <- x", "e <- z"]


def test_a_value_that_only_an_update_needs_is_computed_into_the_state() -> None:
    made = order("w f32[i:4] = add x[i], z[i]", "u = update c[i] = w[i]",
                 "y f32[i:4] = exp2 u[i]", "output y = y")  # fmt: skip
    assert made == ["c <- w", "y"]
    (entry,) = graph("w f32[i:4] = add x[i], c[i]", "update c[3 - i] = w[i]").entries
    found = find_regions(entry)  # not where it would overwrite what it reads
    assert [f.output for f in found] == ["w", "c"]
    again = ["w f32[i:4] = add x[i], z[i]", "update c[i] = w[i]", "update e[i] = w[i]"]
    assert order(*again) == ["w", "c <- w", "e <- w"]


def test_what_reads_both_versions_keeps_what_it_needs_of_the_old_one() -> None:
    lines = ["t f32[i:4] = exp2 c[i]", "u = update c[d0] = x[d0]",
             "y f32[i:4] = mul t[i], u[i]", "output y = y"]  # fmt: skip
    assert order(*lines) == ["t", "c <- x", "y"]


def test_updates_wait_for_each_other() -> None:
    made = order(
        "u = update c[d0] = x[d0]",
        "a f32[i:4] = exp2 u[i]",
        "v = update c[d0] = z[d0]",
        "b f32[i:4] = exp2 v[i]",
        "update e[d0] = c[d0]",  # as it was before
        "output a = a",
        "output b = b",
    )
    assert made == ["e <- c", "c <- x", "a", "c <- z", "b"]


REFUSED: list[Sequence[str]] = [
    ["update c[d0] = e[d0]", "update e[d0] = c[d0]"],
    ["update c[3 - d0] = c[d0]"],
    ["u = update c[d0] = x[d0]", "y f32[i:4] = mul c[i], u[i]", "output y = y"],
]


@pytest.mark.parametrize("lines", REFUSED)
def test_what_no_order_has_room_for_is_refused(lines: Sequence[str]) -> None:
    with pytest.raises(LumcError, match="E0402 an update reads a state"):
        order(*lines)


def test_states_are_exchanged_through_copies() -> None:
    made = order("s f32[i:4] = contiguous e[i]", "t f32[i:4] = contiguous c[i]",
                 "update c[i] = s[i]", "update e[i] = t[i]")  # fmt: skip
    assert made == ["s", "t", "c <- s", "e <- t"]


def test_a_copy_makes_room() -> None:
    made = order("u = update c[d0] = x[d0]", "k f32[i:4] = contiguous c[i]",
                 "y f32[i:4] = mul k[i], u[i]", "output y = y")  # fmt: skip
    assert made == ["k", "c <- x", "y"]
