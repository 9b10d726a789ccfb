"""Kernels that differ in the names of their buffers are lowered once; of one kernel loads that move
alike are priced once, what is missing is looked for once, and terms are decided where that is
new."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import reduce as fold
from typing import Any

import pytest

from kernel_zoo import FAMILIES, joined, kernel, paired, plus, x
from lumc.codegen.tile import context, domains
from lumc.codegen.tile.lower import lower
from lumc.graph.expr import add
from lumc.graph.ops import DType
from lumc.kernel.key import renamed
from lumc.kernel.machines import resolve_target
from lumc.kernel.target import Target
from lumc.kernel.term import Kernel, binary, dyn, guard, load
from lumc.profile import lowered, tally
from lumc.profile.lowered import Kernels
from lumc.schedule.first import default_schedule

TARGET = resolve_target("cpu:x86-64-v4")
TARGETS = [TARGET, resolve_target("cuda:sm_90+tf32"), resolve_target("metal:apple9")]


def backwards(k: Kernel) -> Kernel:
    """With names of buffers in the other order."""
    old = [b.name for b in k.buffers]
    new = [f"v{9 - n}" if n < 9 else f"w{99 - n}" for n in range(len(old))]
    return renamed(k, {}, dict(zip(old, new, strict=True)))


@pytest.fixture
def count(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any, str], Counter[str]]:
    """How often a function of a class or module is called from now on."""
    calls = Counter[str]()

    def counted(owner: Any, name: str) -> Counter[str]:
        plain = getattr(owner, name)

        def noted(*args: Any, **options: Any) -> Any:
            calls[name] += 1
            return plain(*args, **options)

        monkeypatch.setattr(owner, name, noted)
        return calls

    return counted


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
def test_no_price_sees_names_of_buffers(target: Target) -> None:
    for family, shapes in FAMILIES.items():
        k = family(*shapes[0])
        one, other = Kernels(target), Kernels(target)
        assert one.least(k) == other.least(backwards(k))
        assert one.lowered(k)[:4] == other.lowered(backwards(k))[:4], k.name


def test_kernels_with_other_names_of_buffers_are_lowered_once(count: Any) -> None:
    k = paired(17, 20, 30)
    known, calls = Kernels(TARGET), count(lowered, "scheduled")
    prices = [known.lowered(each) for each in (k, backwards(k), k)]
    assert calls["scheduled"] == 1 and len(set(prices)) == 1
    first, second, *rest = k.buffers
    known.lowered(replace(k, buffers=(second, first, *rest)))
    assert calls["scheduled"] == 2  # the same names, of other arguments


def test_where_data_are_indices_names_count(count: Any) -> None:
    at = dyn(load("at", DType.I64, "m"))
    k = kernel(
        "k",
        "m n",
        {"m": 30, "n": 40},
        x("x", at, "n"),
        {"at": (30,), "x": (30, 40)},
        dtypes={"at": DType.I64},
    )
    known = Kernels(TARGET)
    assert known._without_names(k, "itself") == "itself"
    assert known._without_names(paired(17, 20, 30), "other") != "other"


def test_what_is_said_of_a_kernel_has_its_own_names() -> None:
    k = kernel("k", "m", {"m": 30}, x("x", add("m", 1)), {"x": (30,)})
    known = Kernels(TARGET)
    for name in ("x", "y", "x"):
        found = known.lowered(renamed(k, {}, {"x": name}))
        assert f"inside {name}[30]" in found.why and known.lowered(k).why != ""


def shifted(n: int, m: int = 40) -> Kernel:
    """The sum of so many values of one buffer, which lie one after the other."""
    parts = [x("x", "i", add("j", k)) for k in range(n)]
    value = fold(lambda a, b: binary("add", a, b), parts)
    return kernel("k", "i j", {"i": 60, "j": m}, value, {"x": (60, m + n)})


def test_loads_that_move_alike_are_priced_once(count: Any) -> None:
    calls = count(tally.Tally, "_traffic")
    Kernels(TARGET).lowered(shifted(4))
    few = calls["_traffic"]
    Kernels(TARGET).lowered(shifted(64))
    assert 0 < few == calls["_traffic"] - few


def test_what_is_missing_is_looked_for_once(count: Any) -> None:
    """It is asked for at every loop; where nothing was computed between, the answer is known."""
    calls = count(context.Context, "missing")
    count(context.Context, "needed")
    k = joined(40, 20, 13, "m")
    lower(k, default_schedule(k, TARGET), TARGET)
    assert calls["needed"] == 1 < calls["missing"]


def test_terms_are_decided_where_something_is_new(count: Any) -> None:
    """A term is cut along the inner one of three axes: once for all, and once for each piece."""
    value = plus(guard("c", 0, 16, x("x", "a", "b", "c")), x("y", "a", "b", "c"))
    extent = {"a": 5, "b": 6, "c": 64}
    k = kernel("k", "a b c", extent, value, {"x": (5, 6, 64), "y": (5, 6, 64)})
    calls = count(domains, "decided")
    lower(k, default_schedule(k, TARGET), TARGET)
    assert calls["decided"] == 3


def test_what_is_decided_is_decided_once_for_all() -> None:
    """Deciding it again where the same holds changes nothing: that is why it need not be done."""
    for family, shapes in FAMILIES.items():
        k = family(*shapes[-1])
        whole = {a: (0, n - 1) for a, n in k.extent.items()}
        halves = {a: (lo, (lo + hi) // 2) for a, (lo, hi) in whole.items()}
        for spans in (whole, halves):
            for e in k.values:
                once = domains.decided(e, spans)
                assert domains.decided(once, spans) is once, k.name
