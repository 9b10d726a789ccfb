"""The Python examples of docs/metal.md, on the fake Metal."""

import re
import runpy
from pathlib import Path

import numpy as np
import pytest

import fake_metal
from lumc.runtime import objc

PAGE = Path(__file__).parents[2] / "docs" / "metal.md"


def test_the_examples(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in fake_metal.environment().items():
        monkeypatch.setenv(name, value)
    for name in ("OBJC", "METAL", "GRAPHICS"):
        monkeypatch.setattr(objc, name, fake_metal.library())
    monkeypatch.chdir(tmp_path)
    fake_metal.link(fake_metal.metal_mlp(tmp_path)[0], tmp_path / "mlp.lb", tmp_path)
    times, smallest = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (tmp_path / "times.py").write_text(times)
    runpy.run_path(str(tmp_path / "times.py"))
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == [
        "k0_matmul",
        "k1_bias",
        "k2_matmul",
    ]
    (tmp_path / "example.py").write_text(smallest)
    x = runpy.run_path(str(tmp_path / "example.py"))["x"]
    assert isinstance(x, np.ndarray)
    np.testing.assert_allclose(x, np.exp2(np.linspace(-4, 4, 64, dtype=np.float32)), rtol=1e-6)
    assert capsys.readouterr().out
