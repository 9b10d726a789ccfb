"""Archives of torch.export: imported without torch, and equal to torch."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import pt2_models  # noqa: E402
from commands import Lumc  # noqa: E402
from lumc.errors import Exit, LumcError  # noqa: E402
from lumc.frontend.aten.exported import model_of  # noqa: E402
from lumc.frontend.aten.pt2 import import_pt2  # noqa: E402
from pt2_models import by_the_oracle, expected, exported, saved  # noqa: E402

NAMES = [n for n in pt2_models.MODELS if n != "counter"]


def near(got: Any, want: Any) -> None:
    assert np.any(want), "all zero: it shows nothing"
    assert got.shape == want.shape
    assert np.linalg.norm(got - want) <= 2e-6 * np.linalg.norm(want)


@pytest.mark.parametrize("simpler", [False, True], ids=["as it is", "decomposed"])
@pytest.mark.parametrize("name", NAMES)
def test_a_model_is_equal_to_torch(name: str, simpler: bool, tmp_path: Path) -> None:
    path = tmp_path / "m.pt2"
    program, args = saved(name, path, simpler)
    for got, want in zip(by_the_oracle(path, *args).values(), expected(program, args), strict=True):
        near(got, want)


@pytest.mark.parametrize("name", NAMES)
def test_a_program_in_memory_is_the_same_model(name: str, tmp_path: Path) -> None:
    """But for weights, which are constants, not yet in a file."""
    from lumc.oracle.graph import evaluate

    program, args = exported(name)
    model = model_of(program)
    graph = model.graph()
    feed = {n.name: a.numpy() for n, a in zip(graph.entries[0].inputs, args, strict=True)}
    got = evaluate(graph, "main", feed, model.read_weight)[0]
    for g, want in zip(got.values(), expected(program, args), strict=True):
        near(g, want)
    saved(name, tmp_path / "m.pt2")
    other = import_pt2(tmp_path / "m.pt2").graph()
    assert [n for n, _ in other.entries[0].outputs] == list(got)


def test_results_have_the_names_of_the_module(tmp_path: Path) -> None:
    saved("net", tmp_path / "m.pt2")
    graph = import_pt2(tmp_path / "m.pt2").graph()
    assert [n for n, _ in graph.entries[0].outputs] == ["logits", "rest_0", "rest_1"]
    assert [n.name for n in graph.entries[0].inputs] == ["x"]


@pytest.mark.parametrize(("name", "shapes"), [("batches", [(1, 3, 6, 5), (7, 3, 6, 5)]),
                                              ("lengths", [(1, 2), (1, 11)])])  # fmt: skip
def test_dims_are_symbolic(name: str, shapes: list[tuple[int, ...]], tmp_path: Path) -> None:
    path = tmp_path / "m.pt2"
    program, (like,) = saved(name, path)
    (dim,) = import_pt2(path).dims.values()
    assert (dim.lo, dim.hi) == ((1, 8) if name == "batches" else (2, 12))
    for shape in shapes:
        given = torch.randn(shape) if like.is_floating_point() else torch.randint(0, 11, shape)
        found = by_the_oracle(path, given)
        for got, want in zip(found.values(), expected(program, (given,)), strict=True):
            near(got, want)


def test_dims_are_bound_by_name(tmp_path: Path) -> None:
    path = tmp_path / "m.pt2"
    saved("lengths", path)
    (name,) = import_pt2(path).dims
    (node,) = import_pt2(path, {name: 4}).graph().entries[0].inputs
    assert node.shape == (1, 4)
    assert import_pt2(path, {name: (3, 6)}).dims[name].hi == 6
    with pytest.raises(LumcError) as e:
        import_pt2(path, {"nosuch": 4})
    assert (e.value.code, e.value.exit) == ("E0353", Exit.USAGE) and name in e.value.fix


def test_weights_are_read_where_they_lie_and_once(tmp_path: Path) -> None:
    """Tied ones are one; an archive is not copied."""
    path = tmp_path / "m.pt2"
    saved("net", path)
    graph = import_pt2(path).graph()
    files = {w.file.path for w in graph.weights if w.file}
    assert files == {str(path)}
    keys = [w.key for w in graph.weights]
    assert len({"first.weight", "second.weight"} & set(keys)) == 1
    assert not [w for w in graph.weights if w.file is None and w.name != "lifted_tensor_0"]


def test_a_buffer_that_a_run_changes_is_a_state(tmp_path: Path) -> None:
    for simpler in (False, True):
        path = tmp_path / "m.pt2"
        saved("counter", path, simpler)
        graph = import_pt2(path).graph()
        assert [s.name for s in graph.states] == ["total"]
        assert len(graph.entries[0].updates) == 1


def test_a_buffer_that_is_not_zero_at_first_is_refused(tmp_path: Path) -> None:
    module = pt2_models.Counter()
    module.total += 1
    torch.export.save(torch.export.export(module, (torch.randn(3),)), tmp_path / "m.pt2")
    with pytest.raises(LumcError, match="buffer 'total' is changed by a run") as e:
        import_pt2(tmp_path / "m.pt2")
    assert (e.value.code, e.value.exit) == ("E0351", Exit.UNSUPPORTED)


class Odd(torch.nn.Module):
    def forward(self, x: Any) -> Any:
        y = x.view(-1)
        z = torch.nonzero(x > 0).sum(0)
        return torch.fft.rfft(y).abs(), torch.rand(3) + z.sum()


def test_all_that_is_not_supported_is_said_at_once(tmp_path: Path) -> None:
    """With the node, the line of the user's code, the cause and the way out."""
    torch.export.save(torch.export.export(Odd(), (torch.randn(3, 4),)), tmp_path / "m.pt2")
    with pytest.raises(LumcError) as e:
        import_pt2(tmp_path / "m.pt2")
    said = str(e.value)
    assert e.value.code == "E0352" and e.value.exit is Exit.UNSUPPORTED
    assert "aten.nonzero (1x), aten.rand (1x)" in said
    assert "'nonzero' (test_pt2.py:" in said
    assert "its result has a data-dependent shape; use a mask: torch.where" in said
    assert "its result is random; make the random values an input" in said


class Positions(torch.nn.Module):
    def forward(self, x: Any) -> Any:
        return torch.nn.functional.adaptive_max_pool2d_with_indices(x, (2, 2))


def test_a_result_that_a_row_leaves_out_is_refused(tmp_path: Path) -> None:
    program = torch.export.export(Positions(), (torch.randn(1, 2, 6, 6),))
    torch.export.save(program, tmp_path / "m.pt2")
    with pytest.raises(LumcError, match=r"aten.adaptive_max_pool2d \(1x\)") as e:
        import_pt2(tmp_path / "m.pt2")
    assert "a result of it that is not computed" in str(e.value)


class Alias(torch.nn.Module):
    def forward(self, x: Any) -> Any:
        y = x * 2
        y[0] = 0
        return y


def test_what_writes_through_a_view_is_refused_with_a_way_out(tmp_path: Path) -> None:
    program, path = torch.export.export(Alias(), (torch.randn(3, 4),)), tmp_path / "m.pt2"
    torch.export.save(program, path)
    with pytest.raises(LumcError, match="also read as 'mul'") as e:
        by_the_oracle(path, torch.randn(3, 4))
    assert "run_decompositions()" in e.value.fix
    torch.export.save(program.run_decompositions(), path)
    x = torch.randn(3, 4)
    near(by_the_oracle(path, x)["output"], Alias()(x).numpy())


def test_no_torch_is_needed(tmp_path: Path) -> None:
    path = tmp_path / "m.pt2"
    saved("net", path)
    code = "import sys; sys.modules['torch'] = None; from lumc.frontend.aten.pt2 import import_pt2"
    done = subprocess.run([sys.executable, "-c", f"{code}; import_pt2({str(path)!r}).graph()"],
                          capture_output=True, text=True, check=False)  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_from_an_archive_to_a_bundle(lumc: Lumc, tmp_path: Path) -> None:
    """The command line: import, compile, run; the archive lies beside."""
    program, (x,) = saved("net", tmp_path / "m.pt2")
    np.save(tmp_path / "x.npy", x.numpy())
    lumc("import", "m.pt2", "-o", "m.lg")
    assert 'file "m.pt2"' in (tmp_path / "m.lg").read_text()
    lumc("compile", "m.lg", "--estimate", "-o", "m.lb")
    lumc("run", "m.lb", "--input", "x=x.npy", "-o", "out.npz")
    with np.load(tmp_path / "out.npz") as got:
        for name, want in zip(("logits", "rest_0", "rest_1"), expected(program, (x,)), strict=True):
            near(got[name], want)
    shown = json.loads(lumc("show", "m.lg", "--json"))
    assert shown


def test_dims_are_bound_on_the_command_line(lumc: Lumc, tmp_path: Path) -> None:
    """By import and by compile, to a number or within bounds."""
    saved("lengths", tmp_path / "m.pt2")
    (name,) = import_pt2(tmp_path / "m.pt2").dims
    lumc("import", "m.pt2", "--dim", f"{name}=2..5", "-o", "m.lg")
    assert f"dim {name} in 2..5" in (tmp_path / "m.lg").read_text()
    assert f"no dim is named q\n  where: m.pt2\n  fix:   one of: {name}" in lumc.fails(
        2, "import", "m.pt2", "--dim", "q=3", "-o", "m.lg"
    )
    lumc("compile", "m.pt2", "--dim", f"{name}=3", "--estimate", "-o", "m.lb")
    shown = json.loads(lumc("show", "m.lb", "--json"))
    assert not shown.get("dims")
