"""Where collectives stand among the launches of a plan, and whose memory they use."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import ModuleType

import pytest

import mutating
from lumc.artifacts.exchanges import exchange_problems
from lumc.codegen import exchanges
from lumc.codegen.code import EXCHANGE, Code, Launch
from lumc.codegen.generate import generate, launched, launches_of, steps_of
from lumc.command.spaces import make_space
from lumc.errors import LumcError
from lumc.graph.graph import Graph
from lumc.graph.ranks import exchanged
from lumc.graph.text import parse_graph, print_graph
from lumc.graph.verify import verify_graph
from lumc.profile.choose import estimate
from lumc.schedule.plan import Plan
from lumc.search import order as search_order
from lumc.search.siblings import families

HEAD = "lumc graph 1\nmesh a 2\nmesh b 2\n"


def graph(lines: str) -> Graph:
    made = parse_graph(HEAD + lines)
    verify_graph(made)
    return made


def planned(lines: str) -> Plan:
    return estimate(make_space(graph(lines), "cpu:generic", 500), lambda _: None)


def order(plan: Plan, launches: Sequence[Launch] | None = None) -> list[str]:
    """What every launch writes; of collectives what they are of, too."""
    out = list[str]()
    for launch in steps_of(plan, plan.graph.entries[0]) if launches is None else launches:
        if launch.exchanges:
            out.append(" => ".join(launch.args))
            continue
        kernel = plan.kernels[launch.kernel].kernel
        names = dict(zip((b.name for b in kernel.buffers), launch.args, strict=True))
        out.append(" ".join(names[b] for b in kernel.stored))
    return out


def stored(code: Code) -> list[str]:
    """The same of code, whose launches name their result last."""
    (entry,) = code.entries
    names = {v.name for v in entry.values if v.place in ("arena", "output", "state")}
    return [
        " => ".join(x.args) if x.exchanges else [a for a in x.args if a in names][-1]
        for x in entry.launches
    ]


# ---- the place among launches

LATE = """input x f32[16]
input z f32[16]
y f32[i:16] = exp2 x[i]
all f32[i:16] = all_reduce sum by a of y[i]
other f32[i:16] = sin z[i]
w f32[i:16] = mul all[i], other[i]
output other = other
output w = w
"""


def test_a_collective_stands_before_its_first_reader() -> None:
    assert order(planned(LATE)) == ["y", "other", "y => all", "w"]


def test_what_nobody_reads_comes_last_and_what_nobody_needs_not_at_all() -> None:
    lines = LATE.replace("output w = w\n", "output all = all\n")
    assert order(planned(lines)) == ["y", "other", "y => all"]
    assert order(planned(LATE.replace("output w = w\n", ""))) == ["other"]


CHAIN = """input x f32[16]
y f32[i:16] = exp2 x[i]
one f32[i:16] = all_reduce sum by a of y[i]
two f32[i:16] = all_reduce sum by b of one[i]
own f32[i:8] = all_slice split i by a of x[i]
w f32[i:8] = add two[i], own[i]
v f32[i:8] = sin own[i]
output w = w part 0 by a
output v = v part 0 by a
"""


def test_collectives_of_collectives_stand_in_order() -> None:
    made = order(planned(CHAIN))
    assert made.index("y => one") < made.index("one => two") < made.index("w")
    assert made.index("x => own") < min(made.index("w"), made.index("v"))
    assert made[-2:] == ["w => w.all_gather", "v => v.all_gather"]


# a state that is gathered as it was, by who runs after its update, and as it is then
STATES = """state c f32[16] part 0 by a
input x f32[16] part 0 by a
old f32[i:32] = all_gather concat i by a of c[i]
u = update c[i] = x[i]
new f32[i:32] = all_gather concat i by a of u[i]
first f32[] = sum i:32 of old[i]
second f32[] = sum i:32 of new[i]
far f32[] = mul second[], first[]
output far = far
"""


def test_a_state_is_read_before_its_next_update() -> None:
    made = order(planned(STATES))
    copies = [i for i, what in enumerate(made) if what == "c"]
    assert made.index("c => old") < copies[0] < made.index("c => new")


def test_a_region_that_updates_a_state_may_need_what_was_gathered_of_it() -> None:
    """As a step of training does whose weights are held in parts."""
    made = order(
        planned("""state c f32[16] part 0 by a
whole f32[i:32] = all_gather concat i by a of c[i]
slope f32[i:16] = exp2 whole[2*i]
w f32[i:16] = add c[i], slope[i]
update c[i] = w[i]
output w = w part 0 by a
""")
    )
    assert made.index("c => whole") < made.index("w") < made.index("c")


SIDE = """input x f32[64, 64]
input p f32[64, 64]
input q f32[64, 64]
t f32[i:64, j:64, k:64] = mul x[i, k], p[k, j]
first f32[i:64, j:64] = sum k of t[i, j, k]
all f32[i:64, j:64] = all_reduce sum by a of first[i, j]
r f32[i:64, j:64, k:64] = mul x[i, k], all[k, j]
second f32[i:64, j:64] = sum k of r[i, j, k]
output first = first
output second = second
"""


def test_readers_of_one_value_are_not_joined_across_a_collective(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    space = make_space(graph(SIDE.replace("output first = first\n", "")), "cpu:generic", 500)
    space = replace(space, target=replace(space.target, launch_us=5.0))  # joined if they may be
    assert [i.outputs[0] for i in space.instances] == ["first", "second"]
    assert families(space) == []
    monkeypatch.setattr("lumc.search.siblings.exchanged", lambda _: [])
    assert len(families(space)) == 1


# ---- memory


def test_what_is_reduced_lies_where_its_result_does() -> None:
    code = generate(planned(LATE))
    assert stored(code) == ["all", "other", "all => all", "w"]
    places = {v.name: v.place for v in code.entries[0].values}
    assert "y" not in places and places["all"] == "arena"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("output w = w", "output y = y\noutput w = w"),  # an output
        ("= mul all[i], other[i]", "= mul all[i], y[i]"),  # read after
        ("all_reduce sum by a of y[i]", "all_reduce sum by a of x[i]"),  # the caller's
        ("output w = w", "output w = w\nupdate c[i] = y[i]"),  # in a state
    ],
    ids=["output", "read", "input", "state"],
)
def test_what_something_needs_after_stays_where_it_is(old: str, new: str) -> None:
    code = generate(
        planned("state c f32[16] part 0 by a\n" * ("update" in new) + LATE.replace(old, new))
    )
    (launch,) = (x for x in code.entries[0].launches if x.exchanges)
    assert launch.args[0] != launch.args[1] == "all"


def test_values_that_lie_side_by_side_do_not_overlap_while_ranks_exchange() -> None:
    code = generate(planned(CHAIN))
    (entry,) = code.entries
    values = {v.name: v for v in entry.values}
    made = [x.args[1] for x in entry.launches if x.exchanges]
    assert sorted(made) == sorted(n.name for n in exchanged(code.graph.entries[0]))
    for launch in (x for x in entry.launches if x.exchanges):
        a, b = (values[name] for name in launch.args)
        if a is not b and a.place == b.place == "arena":
            assert a.offset + a.nbytes <= b.offset or b.offset + b.nbytes <= a.offset
        assert list(exchange_problems(code.graph.entries[0], entry, launch)) == []


def test_launches_of_kernels_are_told_apart() -> None:
    plan = planned(LATE)
    (entry,) = plan.graph.entries
    assert order(plan, launches_of(plan, entry)) == ["y", "other", "w"]
    assert order(plan, launched(plan, entry)) == ["y", "other", "w"]
    assert exchanges.by_kernels({"main": [Launch(EXCHANGE, ("a", "b"))]}) == []


# ---- files of others


@pytest.mark.parametrize(
    ("args", "what"),
    [
        (("y", "w"), "no collective for"),
        (("y",), "no collective for"),
        (("nothing", "all"), "no collective for"),
        (("other", "own"), "no collective for"),
        (("x", "sum"), "makes input"),
        (("z", "all"), "does not fit"),
    ],
)
def test_collectives_that_are_none(args: tuple[str, ...], what: str) -> None:
    lines = LATE.replace("input z f32[16]\n", "input z f32[4]\n").replace("sin z[i]", "sin z[i//4]")
    code = generate(planned(lines))
    (entry,) = code.entries
    if "sum" in args:
        moved = [replace(v, place="input") if v.name == "all" else v for v in entry.values]
        entry, args = replace(entry, values=tuple(moved)), ("x", "all")
    problems = list(exchange_problems(code.graph.entries[0], entry, Launch(EXCHANGE, args)))
    assert any(what in p for p in problems), problems


def test_a_collective_that_overlaps_what_it_reads() -> None:
    code = generate(planned(CHAIN))
    (entry,) = code.entries
    (launch,) = (x for x in entry.launches if x.args[-1] == "two")
    values = {v.name: v for v in entry.values}
    one = replace(values["one"], offset=64)
    for offset, fine in ((0, True), (32, False), (64, True), (96, False), (128, True)):
        two = replace(values["two"], offset=offset)
        some = replace(entry, values=(one, two))
        found = list(exchange_problems(code.graph.entries[0], some, launch))
        assert (found == []) == fine, (offset, found)


# ---- what cannot run


def test_sums_of_halves_and_other_machines_are_refused() -> None:
    halves = graph(LATE.replace("f32", "bf16"))
    with pytest.raises(LumcError, match="is a sum of bf16 between ranks") as e:
        make_space(halves, "cpu:generic", 500)
    assert e.value.code == "E0140"
    with pytest.raises(LumcError, match=r"4 ranks \(a 2, b 2\) cannot run on metal"):
        make_space(graph(LATE), "metal:apple7", 500)


def test_ends_are_whole_and_stay_so() -> None:
    space = make_space(graph(CHAIN), "cpu:generic", 500)
    (entry,) = space.graph.entries
    assert not entry.parts and not any(n.parts for n in entry.inputs)
    again = make_space(parse_graph(print_graph(space.graph)), "cpu:generic", 500)
    assert again.graph.entries[0].nodes[-1].name == entry.nodes[-1].name


# ---- mutants of what stands where

BEHIND = """state c f32[16] part 0 by a
input x f32[16] part 0 by a
u = update c[i] = x[i]
new f32[i:32] = all_gather concat i by a of u[i]
second f32[] = sum i:32 of new[i]
late f32[] = sum i:16 of c[i]
all f32[] = all_reduce sum by a of late[]
output second = second
output all = all
"""


def test_a_reader_of_what_was_gathered_waits_for_the_update() -> None:
    """Though the entry has it before another region for which the update waits."""
    made = order(planned(BEHIND))
    assert made.index("late") < made.index("c") < made.index("c => new") < made.index("second")


CHECKS = (
    test_a_collective_stands_before_its_first_reader,
    test_what_nobody_reads_comes_last_and_what_nobody_needs_not_at_all,
    test_collectives_of_collectives_stand_in_order,
    test_a_state_is_read_before_its_next_update,
    test_a_region_that_updates_a_state_may_need_what_was_gathered_of_it,
    test_what_is_reduced_lies_where_its_result_does,
    test_values_that_lie_side_by_side_do_not_overlap_while_ranks_exchange,
    test_a_reader_of_what_was_gathered_waits_for_the_update,
)
KEPT = test_what_something_needs_after_stays_where_it_is
NEEDED = {
    "outputs": ("output w = w", "output y = y\noutput w = w"),
    "read": ("= mul all[i], other[i]", "= mul all[i], y[i]"),
    "fixed": ("all_reduce sum by a of y[i]", "all_reduce sum by a of x[i]"),
}


@pytest.mark.parametrize(
    ("module", "old", "new", "check"),
    [
        (exchanges, "at = min([at, *later])", "pass", 3),
        (exchanges, "[_updates(entry, source) :]", "[0:]", 3),
        (exchanges, "first[source.name] = min(at, first.get(source.name, at))", "pass", 2),
        (exchanges, "out[at].insert(0, ", "out[at].append(", 2),
        (exchanges, "first.get(n.name, len(instances))", "len(instances)", 0),
        (exchanges, "(source.home.name, n.name)", "(n.name, source.home.name)", 0),
        (exchanges, "op.kind is not Kind.ALL_REDUCE", "op.kind is Kind.ALL_REDUCE", 5),
        (exchanges, "isinstance(n.op, Op)}", "True}", 6),
        (search_order, "[*regions, *map(Exchange, exchanged)]", "[*regions]", 7),
        (search_order, "return (self.node.reads[0].source,)", "return ()", 7),
        (
            search_order,
            "        if f.write is None:\n            made",
            "        if False:\n            made",
            2,
        ),
    ],
)
def test_mutants_die(
    module: ModuleType, old: str, new: str, check: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    mutating.replace(module, old, new, monkeypatch)
    with pytest.raises((AssertionError, LumcError, KeyError, ValueError)):
        CHECKS[check]()


@pytest.mark.parametrize(
    ("old", "new", "check"),
    [
        (".difference(outputs, fixed, apart)", ".difference(fixed, apart)", "outputs"),
        ("any(source in one.args for one in out[at + 1 :])", "False", "read"),
        (
            "isinstance(n.op, Op)}.difference(outputs, fixed, apart)",
            "n.name} | {n.name for n in entry.inputs}",
            "fixed",
        ),
    ],
)
def test_mutants_of_memory_die(
    old: str, new: str, check: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    mutating.replace(exchanges, old, new, monkeypatch)
    with pytest.raises((AssertionError, KeyError)):
        KEPT(*NEEDED[check])
