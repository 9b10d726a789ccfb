"""Pictures of losses: what is drawn, and files that are none."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from lumc.errors import LumcError
from lumc.report import losses


def drawn(folder: Path, text: str) -> str:
    (folder / "l.csv").write_text(text)
    losses.draw(str(folder / "l.csv"), str(folder / "l.svg"))
    return (folder / "l.svg").read_text()


def curves(svg: str) -> list[list[tuple[float, float]]]:
    """The points of every path, of which there are two for each loss."""
    paths = re.findall(r'<path d="M([^"]*)"', svg)
    return [[tuple(map(float, p.split(","))) for p in d.split("L")] for d in paths]  # type: ignore[misc]


def test_a_falling_loss(tmp_path: Path) -> None:
    rows = "".join(f"{s},{2.0 * 0.99**s:.9g}\n" for s in range(1, 1001))
    svg = drawn(tmp_path, "step,loss\n" + rows)
    ElementTree.fromstring(svg)  # well-formed
    each, mean = curves(svg)
    assert len(each) <= losses.POINTS + 2 and len(mean) == losses.MEAN
    assert [x for x, _ in each] == sorted(x for x, _ in each)
    # a straight line on its logarithmic axis, from the upper left to the lower right
    assert each[0] == (losses.LEFT, losses.TOP)
    assert each[-1] == (losses.WIDTH - losses.RIGHT, losses.HEIGHT - losses.BOTTOM)
    for x, y in each:
        along = (x - losses.LEFT) / (losses.WIDTH - losses.RIGHT - losses.LEFT)
        assert abs(y - losses.TOP - along * (losses.HEIGHT - losses.BOTTOM - losses.TOP)) < 0.2
    assert "loss: 1.98 to 8.634e-05" in svg and ">0.01<" in svg


def test_several_losses_of_which_some_are_not_finite(tmp_path: Path) -> None:
    svg = drawn(tmp_path, "step,a,b\n1,1,-2\n2,nan,3\n3,0.5,inf\n")
    first, _, second, _ = curves(svg)
    assert len(first) == len(second) == 2 and "a: 1 to 0.5" in svg and "b: -2 to 3" in svg


def test_one_step_and_equal_losses(tmp_path: Path) -> None:
    assert len(curves(drawn(tmp_path, "step,loss\n7,1.5\n"))) == 2
    drawn(tmp_path, "step,loss\n1,2\n2,2\n")


def test_names_are_escaped(tmp_path: Path) -> None:
    assert "<script>" not in drawn(tmp_path, "step,<script>\n1,2\n")


@pytest.mark.parametrize(
    "text",
    ["", "step\n1\n", "a,b\n1,2\n", "step,loss\n", "step,loss\n1,x\n", "step,loss\n1,2,3\n",
     "step,loss\n1,nan\n", "step,loss\ninf,1\n", "step,loss\n1\n", "step" + ",l" * 7 + "\n"],
)  # fmt: skip
def test_what_has_no_losses(tmp_path: Path, text: str) -> None:
    with pytest.raises(LumcError) as caught:
        drawn(tmp_path, text)
    assert caught.value.code == "E0213"


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    (tmp_path / "l.csv").write_bytes(b"step,loss\n\xff\xfe")
    with pytest.raises(LumcError) as caught:
        losses.read(str(tmp_path / "l.csv"))
    assert caught.value.code == "E0213"
    with pytest.raises(LumcError) as caught:
        losses.read(str(tmp_path / "nosuch.csv"))
    assert caught.value.code == "E0201"
