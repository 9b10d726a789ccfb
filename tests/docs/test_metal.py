"""The Python example of docs/metal.md, on the fake Metal."""

import re
import runpy
from pathlib import Path

import numpy as np
import pytest

import fake_metal
from lumc.runtime import objc

PAGE = Path(__file__).parents[2] / "docs" / "metal.md"


def test_the_smallest_reproduction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in fake_metal.environment().items():
        monkeypatch.setenv(name, value)
    for name in ("OBJC", "METAL", "GRAPHICS"):
        monkeypatch.setattr(objc, name, fake_metal.library())
    match = re.search(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert match
    (tmp_path / "example.py").write_text(match[1])
    x = runpy.run_path(str(tmp_path / "example.py"))["x"]
    assert isinstance(x, np.ndarray)
    np.testing.assert_allclose(x, np.exp2(np.linspace(-4, 4, 64, dtype=np.float32)), rtol=1e-6)
    assert capsys.readouterr().out
