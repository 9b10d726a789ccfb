"""Tree search: the same trials give the same proposals, and it learns."""

import random
from statistics import mean

from kernel_zoo import matmul
from lumc.kernel.machines import resolve_target
from lumc.profile.tree import Tree
from lumc.schedule.schedule import Schedule
from lumc.schedule.space import Grammar

GRAMMAR = Grammar(matmul(64, 48, 256), resolve_target("cpu:x86-64-v4"))


def us(schedule: Schedule) -> float | None:
    """A made-up time; one structure is best and one fails."""
    (p,) = schedule.stages
    if p.form == "dot":
        return None
    slow = 100.0 * (p.form == "rows") + 40.0 * (p.stage_b != "hoist") + 10.0 * (p.lane_axis != "n")
    return 50.0 + slow + abs(schedule.tile.get("k", 256) - 64) / 8 + schedule.parallel


def times(seed: int, n: int) -> list[float | None]:
    tree, seen, out = Tree(GRAMMAR, random.Random(seed)), set(), []
    tree.observe(GRAMMAR.default, us(GRAMMAR.default))
    for _ in range(n):
        found = tree.propose(seen)
        path = GRAMMAR.path(found)
        assert path and path not in seen
        seen.add(path)
        out.append(us(found))
        tree.observe(found, out[-1])
    return out


def test_the_same_seed_gives_the_same_proposals() -> None:
    assert times(1, 30) == times(1, 30) != times(2, 30)


def test_it_learns_what_is_fast() -> None:
    found = times(0, 200)
    late = [t for t in found[100:] if t is not None]
    rng = random.Random(0)
    drawn = [us(GRAMMAR.build(GRAMMAR.sample(rng))) for _ in range(200)]
    known = [t for t in drawn if t is not None]
    assert min(late) <= min(known) and mean(late) < 0.8 * mean(known)
    assert len(late) > 90


def test_a_space_that_is_used_up_has_no_proposals() -> None:
    g = Grammar(matmul(1, 1, 1), GRAMMAR.target)
    rng = random.Random(0)
    every = {g.sample(rng) for _ in range(50 * g.size())}
    assert len(every) == g.size() and Tree(g, rng).propose(every) is None
