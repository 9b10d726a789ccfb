"""Graphs in stages: their text, where values are, and what is refused."""

from __future__ import annotations

import pytest

from lumc.errors import LumcError
from lumc.graph.bind import bind_dims
from lumc.graph.stages import axis_of_stages, needed_on, stages_of
from lumc.graph.text import parse_graph, print_graph
from lumc.graph.verify import verify_graph

TEXT = f"""lumc graph 1
dim s in 1..64
mesh tp 2
mesh pp 3
file "m.safetensors" size 10 sha256 {"0" * 64}
weight w f32[8, 4] "m.safetensors" "w" part 0 by tp on 0 by pp
weight q i8[8, 4] "m.safetensors" "q" from f32 levels 0 by 8 on 1 by pp
state kept f32[s, 4] on 2 by pp
state all f32[4]

input x f32[s, 8] part 1 by tp
both f32[i:8] = exp2 f32(i)
two f32[i:8] = sqrt both[i]
t0 f32[i:s, j:4, k:8] = mul x[i, k], w[k, j]
t1 f32[i:s, j:4] = sum k:8 of t0[i, j, k]
t2 f32[i:s, j:4] = all_reduce sum by tp of t1[i, j]
t3 f32[i:s, j:4] = send 0 to 1 by pp of t2[i, j]
t4 f32[i:8, j:4] = contiguous q[i, j]
t5 f32[i:8, j:4] = mul t4[i, j], both[i]
t6 f32[j:4] = sum i:8 of t5[i, j]
t7 f32[i:s, j:4] = add t3[i, j], t6[j]
t8 f32[i:s, j:4] = send 1 to 2 by pp of t7[i, j]
t9 f32[i:s, j:4] = mul t8[i, j], two[j]
on f32[j:4] = broadcast 1 by pp of t6[j]
output y = t9
output b = on
update kept[i, j] = t9[i, j]
update all[j] = on[j]
"""


def read(text: str) -> None:
    verify_graph(parse_graph(text, "m.lg"))


def test_the_text_of_a_graph_in_stages_is_canonical() -> None:
    graph = parse_graph(TEXT)
    verify_graph(graph)
    assert print_graph(graph) == TEXT
    bound = print_graph(bind_dims(graph, {"s": 5}))
    assert bound == TEXT.replace("dim s in 1..64\n", "").replace("i:s", "i:5").replace("[s,", "[5,")


def test_a_value_is_where_all_is_that_it_reads() -> None:
    graph = parse_graph(TEXT)
    (entry,) = graph.entries
    found = {n.name: at for n, at in stages_of(entry).items()}
    assert axis_of_stages(graph) == "pp"
    assert found == {
        **dict.fromkeys(("w", "t0", "t1", "t2"), 0),
        **dict.fromkeys(("q", "t3", "t4", "t5", "t6", "t7"), 1),
        **dict.fromkeys(("kept", "t8", "t9"), 2),
    }
    needed = {n.name: set(at) for n, at in needed_on(entry, stages_of(entry)).items()}
    assert needed == {"both": {1, 2}, "two": {2}}  # and `on` on all


REFUSED = [
    ("the mesh has no axis 'zz'", "on 2 by pp", "on 2 by zz"),
    ("stage 3 of 3", "on 2 by pp", "on 3 by pp"),
    (
        "stages along two axes of the mesh: pp, tp",
        "state all f32[4]",
        "state all f32[4] on 0 by tp",
    ),
    ("expected 'to'", "send 0 to 1 by", "send 0 by"),
    ("send: stage 3 of 3", "send 1 to 2 by", "send 1 to 3 by"),
    ("send from stage 1 to itself", "send 1 to 2 by", "send 1 to 1 by"),
    ("takes 't7' from stage 0, and that is of stage 1", "send 1 to 2 by", "send 0 to 2 by"),
    (
        "takes 'all' from stage 1, and that is on every rank",
        "broadcast 1 by pp of t6[j]",
        "broadcast 1 by pp of all[j]",
    ),
    (
        "reads 't2' of stage 0, 't6' of stage 1: send what it needs",
        "add t3[i, j], t6[j]",
        "add t2[i, j], t6[j]",
    ),
    (
        "the new value of 'kept' is of stage 1, and the state of stage 2",
        "update kept[i, j] = t9[i, j]",
        "update kept[i, j] = t7[i, j]",
    ),
    (
        "the new value of 'all' is of stage 1, and the state on every rank",
        "update all[j] = on[j]",
        "update all[j] = t6[j]",
    ),
    (
        "the ranks along 'pp' are stages, and have no parts",
        "state all f32[4]",
        "state all f32[4] part 0 by pp",
    ),
    (
        "the ranks along 'pp' are stages, and have no parts",
        "output y = t9",
        "output y = t9 part 1 by pp",
    ),
    (
        "the ranks along 'pp' are stages, and have no parts",
        "all_reduce sum by tp of t1",
        "all_reduce sum by pp of t1",
    ),
    ("makes f32[s, 4], declared f32[s, 5]", "t8 f32[i:s, j:4]", "t8 f32[i:s, j:5]"),
    ("send takes a value at its own axes", "pp of t7[i, j]", "pp of t7[j, i]"),
]


@pytest.mark.parametrize(("said", "old", "new"), REFUSED)
def test_what_means_nothing_is_refused(said: str, old: str, new: str) -> None:
    assert TEXT.count(old) == 1
    with pytest.raises(LumcError) as e:
        read(TEXT.replace(old, new))
    assert said in e.value.what and e.value.code in ("E0101", "E0301", "E0303")
