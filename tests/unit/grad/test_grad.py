"""The gradient pass: index maps and what they are solved to, maxima that cancel, dims, errors; and
every function by name against finite differences of the oracle."""

import pytest

import lumc.grad
from gradient_checks import CHECKS


@pytest.mark.parametrize("name", CHECKS)
def test_check(name: str) -> None:
    CHECKS[name](lumc.grad)
