"""What a process that holds a bundle sends back."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from commands import Lumc
from lumc.serve.worker import Held
from serving import SMALL, expected

TWO = SMALL.replace(
    "output y = y", "z f32[i:b, j:3] = mul y[i, j], 2.0\noutput y = y\noutput z = z"
)
ALONE = TWO.replace("b, ", "3, ").replace(":b", ":3").replace("dim b in 1..8\n", "")


@pytest.mark.parametrize("text", [TWO, ALONE], ids=["rows that share a run", "one after another"])
def test_each_request_has_the_outputs_that_it_wants(text: str, tmp_path: Path) -> None:
    (tmp_path / "m.lg").write_text(text)
    Lumc(tmp_path)("compile", tmp_path / "m.lg", "--estimate", "-o", tmp_path / "m.lb")
    held = Held("m", str(tmp_path / "m.lb"), "cpu", 1)
    first, second = np.random.default_rng(0).standard_normal((2, 3, 4)).astype(np.float32)
    wanted = [("z",), (), ("y", "of a bundle that was exchanged")]
    given = [({"x": x}, names) for x, names in zip((first, second, first), wanted, strict=True)]
    found = held.run("", {}, given)
    assert [list(outputs) for outputs in found] == [["z"], ["y", "z"], ["y"]]
    np.testing.assert_allclose(found[0]["z"], 2 * expected(first), atol=1e-5)
    np.testing.assert_allclose(found[1]["y"], expected(second), atol=1e-5)
    np.testing.assert_allclose(found[2]["y"], expected(first), atol=1e-5)
