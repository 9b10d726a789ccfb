"""Arena offsets: values that live together are apart, and little is wasted."""

from hypothesis import given, settings
from hypothesis import strategies as st

from lumc.codegen.tile.memory import ALIGN, Interval, aligned, allocate, room


@st.composite
def intervals(draw: st.DrawFn) -> list[Interval]:
    sizes = st.one_of(st.just(0), st.integers(1, 300), st.sampled_from([4096, 8192, 65536, 65540]))
    out = []
    for i in range(draw(st.integers(0, 24))):
        first = draw(st.integers(0, 12))
        out.append(Interval(f"v{i}", draw(sizes), first, first + draw(st.integers(0, 6))))
    return out


@settings(max_examples=300, deadline=None)
@given(intervals())
def test_values_that_live_together_never_overlap(values: list[Interval]) -> None:
    arena = allocate(values)
    assert set(arena.offsets) == {v.name for v in values}
    for v in values:
        start = arena.offsets[v.name]
        assert start % ALIGN == 0 and start + v.nbytes <= arena.nbytes
        for w in values:
            if w is not v and v.first <= w.last and w.first <= v.last and v.nbytes and w.nbytes:
                other = arena.offsets[w.name]
                assert start + v.nbytes <= other or other + w.nbytes <= start


@settings(max_examples=100, deadline=None)
@given(intervals(), st.randoms())
def test_offsets_do_not_depend_on_the_order_of_the_values(values, rng) -> None:
    shuffled = list(values)
    rng.shuffle(shuffled)
    assert allocate(values).offsets == allocate(shuffled).offsets


@settings(max_examples=200, deadline=None)
@given(intervals())
def test_size_is_between_the_live_maximum_and_no_reuse(values: list[Interval]) -> None:
    arena = allocate(values)
    times = range(20)
    live = max(sum(aligned(v.nbytes) for v in values if v.first <= t <= v.last) for t in times)
    assert live <= arena.nbytes <= sum(room(v.nbytes) for v in values)
    assert arena.nbytes_without_reuse == sum(aligned(v.nbytes) for v in values)


def test_a_chain_needs_two_buffers() -> None:
    chain = [Interval(f"t{i}", 1000, i, i + 1) for i in range(10)]
    assert allocate(chain).nbytes == 2 * aligned(1000)
    assert allocate(chain).nbytes_without_reuse == 10 * aligned(1000)


def test_neighbours_of_whole_pages_do_not_share_cache_sets() -> None:
    offsets = allocate([Interval(f"t{i}", 1 << 16, 0, 1) for i in range(8)]).offsets
    assert len({offset % 4096 for offset in offsets.values()}) == 8
