"""What products multiply."""

from __future__ import annotations

from math import prod

from lumc.graph.ops import DType
from lumc.kernel.term import binary, factors, load


def test_factors_multiply_to_the_product() -> None:
    a, b = (load(name, DType.F32, "i") for name in ("b0", "b1"))
    assert factors(binary("mul", binary("mul", a, b), a)) == [a, b, a]
    value = {a: 3, b: 5}
    power = binary("mul", a, b)
    for _ in range(3):
        power = binary("mul", power, power)
        value[power] = prod(value.get(f, 15) for f in factors(power))
    assert value[power] == 15**8


def test_a_chain_of_squares_has_as_many_factors_as_products() -> None:
    power = load("b0", DType.F32, "i")
    for _ in range(100):
        power = binary("mul", power, power)
    assert len(factors(power)) == 101
