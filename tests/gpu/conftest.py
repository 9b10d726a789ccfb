"""Fixtures of the tests of GPU code."""

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for compiled kernels; equal texts are compiled once."""
    return tmp_path_factory.mktemp("emulated")
