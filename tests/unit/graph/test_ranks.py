"""Graphs for a mesh: their text, what is refused, and damaged texts."""

from __future__ import annotations

import random

import pytest

from lumc.errors import LumcError
from lumc.graph.bind import bind_dims
from lumc.graph.text import parse_graph, print_graph
from lumc.graph.verify import verify_graph

TEXT = f"""lumc graph 1
dim s in 1..64
mesh tp 4
mesh dp 2
file "m.safetensors" size 10 sha256 {"0" * 64}
weight w f32[16, 128] "m.safetensors" "w" part 0 by tp, 1 by dp
weight q i8[8, 32] "m.safetensors" "q" from f32 levels 1 by 64 part 1 by tp
state kept f32[8, 128] part 0 by dp, 0 by tp

input x f32[8, 16] part 1 by tp, 0 by dp
input mesh f32[8]
input long f32[s, 8] part 1 by tp
w.whole f32[d0:16, d1:256] = all_gather concat d1 by dp of w[d0, d1]
t0 f32[b:8, n:256, k:16] = mul x[b, k], w.whole[k, n]
t1 f32[b:8, n:256] = sum k:16 of t0[b, n, k]
t2 f32[b:8, n:256] = all_reduce sum by tp of t1[b, n]
t3 f32[b:8, n:64] = reduce_scatter sum split n by tp of t1[b, n]
t4 f32[b:2, n:256] = all_to_all split b concat n by tp of t3[b, n]
t5 f32[b:8, n:64] = all_slice split n by tp of t2[b, n]
t6 f32[b:8] = max n:64 of t5[b, n]
t7 f32[b:8] = all_reduce max by tp of t6[b]
all_reduce f32[s, j:32] = all_gather concat j by tp of long[s, j]
t8 f32[b:8, n:128] = add w.whole[b, n + 128], w.whole[b, n]
output y = t2 part 0 by dp
output z = t4 part 0 by dp, 0 by tp
output m = t7 part 0 by dp
output l = all_reduce
update kept[b, n] = t8[b, n]
"""


def read(text: str) -> None:
    verify_graph(parse_graph(text, "m.lg"))


def test_the_text_of_a_graph_for_a_mesh_is_canonical() -> None:
    graph = parse_graph(TEXT)
    verify_graph(graph)
    assert print_graph(graph) == TEXT
    assert graph.mesh == {"tp": 4, "dp": 2}
    assert graph.weights[0].whole.shape == (64, 256)
    bound = bind_dims(graph, {"s": 5})
    fixed = TEXT.replace("dim s in 1..64\n", "").replace("f32[s, 8]", "f32[5, 8]")
    assert print_graph(bound) == fixed.replace("f32[s, j:32]", "f32[s:5, j:32]")


REFUSED = [
    ("the mesh has two axes 'tp'", "mesh dp 2", "mesh tp 2"),
    ("axis 'dp' of the mesh has 1 rank", "mesh dp 2", "mesh dp 1"),
    ("at most 8 axes and 65536 ranks", "mesh dp 2", "mesh dp 65536"),
    ("the mesh stands before the tensors", "state kept", "mesh pp 2\nstate kept"),
    ("the mesh has no axis 'pp'", "[8, 16] part 1 by tp", "[8, 16] part 1 by pp"),
    ("is cut once at most by every axis", "part 1 by tp, 0 by dp", "part 1 by tp, 0 by tp"),
    ("2 is no dim of", "[8, 16] part 1 by tp", "[8, 16] part 2 by tp"),
    ("0 is no dim of ['s', '8']", "f32[s, 8] part 1", "f32[s, 8] part 0"),
    ("expected sum or max", "all_reduce sum by", "all_reduce by"),
    ("expected 'by'", "all_reduce sum by", "all_reduce sum split n by"),
    ("expected 'split'", "all_slice split n", "all_slice n"),
    ("no axis 'q'", "all_slice split n", "all_slice split q"),
    ("all_to_all splits one axis and joins another", "split b concat n", "split n concat n"),
    (
        "all_slice of 4 ranks cannot be of",
        "t5 f32[b:8, n:64] = all_slice split n by tp of t2[b, n]",
        "t5 f32[b:8, n:64] = all_slice split b by tp of t4[b, n]",
    ),
    (
        "all_gather of 4 ranks cannot be of",
        "concat j by tp of long[s, j]",
        "concat s by tp of long[s, j]",
    ),
    ("makes f32[8, 64], declared f32[8, 63]", "t5 f32[b:8, n:64]", "t5 f32[b:8, n:63]"),
    ("makes f32[8], declared f16[8]", "t7 f32[b:8]", "t7 f16[b:8]"),
    ("all_reduce takes a value at its own axes", "by tp of t6[b]", "by tp of t6[d]"),
    ("output 'y' differs between the ranks along 'tp'", "output y = t2", "output y = t1"),
    (
        "output 'm' differs between the ranks along 'dp'",
        "output m = t7 part 0 by dp",
        "output m = t7",
    ),
    (
        "the new value of 'kept' differs between the ranks along 'tp'",
        "part 0 by dp, 0 by tp\n\ninput",
        "part 0 by dp\n\ninput",
    ),
    ("no tensor 'later' above", "by tp of t6[b]", "by tp of later[b]"),
    (
        "a sum of bool",
        "t6 f32[b:8] = max n:64 of t5[b, n]\nt7 f32[b:8] = all_reduce max",
        "t6 bool[b:8] = lt t5[b, 0], 0.0\nt7 bool[b:8] = all_reduce sum",
    ),
    (
        "3 is no dim of",
        "output z = t4 part 0 by dp, 0 by tp",
        "output z = t4 part 0 by dp, 3 by tp",
    ),
]


@pytest.mark.parametrize(("said", "old", "new"), REFUSED)
def test_what_means_nothing_is_refused(said: str, old: str, new: str) -> None:
    assert TEXT.count(old) == 1
    with pytest.raises(LumcError) as e:
        read(TEXT.replace(old, new))
    assert said in e.value.what and e.value.code in ("E0101", "E0301", "E0303")


def test_nodes_may_have_the_names_of_these_words() -> None:
    words = ("mesh", "part", "all_reduce", "split", "by")
    nodes = "".join(f"{w} f32[i:4] = add x[i], 1.0\n" for w in words)
    text = f"lumc graph 1\n\ninput x f32[4]\n{nodes}output y = by\n"
    assert print_graph(parse_graph(text)) == text


def test_damaged_texts_give_one_error() -> None:
    rng, lines = random.Random(0), TEXT.split("\n")
    words = sorted(set(TEXT.replace("\n", " ").split()))
    accepted = 0
    for _ in range(400):
        mine = list(lines)
        at = rng.randrange(2, len(mine) - 1)
        match rng.randrange(4):
            case 0:
                del mine[at]
            case 1:
                mine.insert(at, mine[rng.randrange(2, len(mine) - 1)])
            case 2:
                mine[at] = " ".join([*mine[at].split()[:-1], rng.choice(words)])
            case _:
                parts = mine[at].split() or ["x"]
                parts[rng.randrange(len(parts))] = rng.choice(words)
                mine[at] = " ".join(parts)
        try:
            read("\n".join(mine))
            accepted += 1
        except LumcError as e:
            assert e.code in ("E0101", "E0301", "E0302", "E0303") and len(str(e)) < 5000
    assert 0 < accepted < 200
