"""Kernels as JSON: constants of all widths come back, others are refused."""

from __future__ import annotations

import pytest

from lumc.graph.expr import axis
from lumc.graph.ops import DType
from lumc.kernel.codec import from_plain, to_plain
from lumc.kernel.term import Buffer, Kernel, Root, binary, const, load


@pytest.mark.parametrize(
    ("kind", "value"), [(DType.U64, 2**64 - 1), (DType.U64, 2**63), (DType.I64, -(2**63))]
)
def test_large_constants(kind: DType, value: int) -> None:
    product = binary("mul", load("x", kind, "m"), const(value, kind))
    root = Root("out", (axis("m"),), product)
    k = Kernel("k", ("m",), {"m": 4}, (root,), (Buffer("x", kind, (4,)), Buffer("out", kind, (4,))))
    data = to_plain(k)
    assert from_plain(Kernel, data) == k
    (node,) = (n for n in data["terms"] if n[0] == "const")
    node[1][1] = value + 2**64 if value > 0 else value - 1
    with pytest.raises(ValueError, match=r"Expected `int`|is not a constant of"):
        from_plain(Kernel, data)
