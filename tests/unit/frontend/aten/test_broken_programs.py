"""Archives of programs that are broken or not supported: every error names the node, the cause and
the way out.

``pytest -s -k read_aloud`` prints them all.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from lumc.errors import LumcError
from lumc.frontend.aten.pt2 import import_pt2
from pt2_files import archive, net, tensor

Nodes = list[dict[str, Any]]


@dataclass(frozen=True)
class Broken:
    """What is changed in the nodes of a program; words of where, of the cause and of the way
    out."""

    change: Callable[[Nodes], object]
    node: str
    cause: str
    way_out: str
    exit: int = 4


def calls(target: str) -> Callable[[Nodes], object]:
    return lambda nodes: nodes[1].update(target=target)


def reads(at: int, name: str) -> Callable[[Nodes], object]:
    return lambda nodes: nodes[at]["inputs"][0].update(arg=tensor(name))


SLOPE = {"name": "slope", "arg": {"as_float": 0.5}, "kind": 2}
AGAIN = "torch.export.save"
PROGRAMS = {
    "an operator without a row": Broken(
        calls("torch.ops.aten.frobnicate.default"),
        "'relu' (model.py:7)", "aten.frobnicate: there is no row", "run_decompositions()",
    ),
    "an operator of somebody's own": Broken(
        calls("torch.ops.mylib.fancy.default"),
        "'relu' (model.py:7)", "mylib.fancy: it is no operator of ATen", "without it",
    ),
    "positions of what is not zero": Broken(
        calls("torch.ops.aten.nonzero.default"),
        "'relu' (model.py:7)", "data-dependent shape", "torch.where",
    ),
    "an argument of a later version": Broken(
        lambda nodes: nodes[1]["inputs"].append(SLOPE),
        "'relu' (model.py:7)", "argument 'slope' is not handled", "leave it out",
    ),
    "a product that does not fit": Broken(
        reads(0, "p_table"),
        "'mm' (model.py:7)", "f32[5, 3] and f32[4, 3]: 3 and 4 differ", "export it again",
    ),
    "a value that nobody makes": Broken(
        reads(1, "ghost"),
        "'relu' (aten.relu)", "reads 'ghost', which nothing computes before it", AGAIN, exit=5,
    ),
    "nodes in another order": Broken(
        lambda nodes: nodes.reverse(),
        "'sum' (aten.add.Tensor)", "reads 'relu', which nothing computes before it", AGAIN, exit=5,
    ),
}  # fmt: skip


def refusal(broken: Broken, path: Path) -> LumcError:
    program, tensors = net()
    broken.change(program["graph_module"]["graph"]["nodes"])
    path.write_bytes(archive(program, tensors))
    with pytest.raises(LumcError) as caught:
        import_pt2(path).graph()
    return caught.value


@pytest.mark.parametrize("name", PROGRAMS)
def test_an_error_says_where_why_and_what_to_do(name: str, tmp_path: Path) -> None:
    broken = PROGRAMS[name]
    said = refusal(broken, tmp_path / "m.pt2")
    assert int(said.exit) == broken.exit and "m.pt2" in said.where
    for words in (broken.node, broken.cause, broken.way_out):
        assert words in str(said)
    for word in ("Error:", "Traceback", "None", "object at"):
        assert word not in str(said)


def test_read_aloud(tmp_path: Path) -> None:
    """All of them at a stretch, for a reader."""
    said = [str(refusal(b, tmp_path / "m.pt2")) for b in PROGRAMS.values()]
    print("\n\n".join(said))
    assert len(set(said)) == len(said)
