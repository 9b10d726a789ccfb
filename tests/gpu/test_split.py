"""Long reductions in two steps, as the search finds them for GPUs: race-checked on the emulator."""

from __future__ import annotations

from pathlib import Path

import pytest

from differential import Case, check_emulated
from lumc.kernel.machines import resolve_target
from lumc.kernel.target import Target
from shorter import shorter
from splitting import decode, product, slow, softmax, total, transposed

SHORT = {
    "sum": total(7200),
    "dot": product(1, 3600, 1),
    "columns": product(1, 3600, 40),
    "tiles": product(24, 3600, 40),
    "halves": product(24, 3584, 40, "f16"),
    "softmax": softmax(1, 3840),
    "decode": decode(2, 1080, 24),
    "decode of bf16": decode(1, 1080, 8, "bf16"),
    "phases": transposed(24, 19, 3, 2),
}
TARGETS = [resolve_target("cuda:sm_90"), resolve_target("metal:apple7")]


@pytest.mark.parametrize("target", shorter(TARGETS), ids=lambda t: t.kind)
def test_split_kernels(target: Target, tmp_path: Path) -> None:
    cases = [Case(graph, target=slow(target)) for graph in SHORT.values()]
    for case in cases:
        case.prepare()
        case.check_plan()
        assert case.plan
        assert any("_" in b.name for r in case.plan.regions.values() for b in r.local)
    check_emulated(tmp_path, cases, checked=True)
