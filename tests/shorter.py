"""Tests of several targets or models, of which `make test` runs some."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest


def shorter(values: Sequence[Any], count: int = 1) -> list[Any]:
    """The first so many for `make test`, the others for `make test-deep`."""
    later = [pytest.param(v, marks=pytest.mark.deep) for v in values[count:]]
    return [*values[:count], *later]
