"""Archives of torch.export run with torch's operators, as torch itself runs them, and nothing else
of theirs is run."""

from __future__ import annotations

import json
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import pt2_models  # noqa: E402
from commands import Lumc  # noqa: E402
from lumc.errors import Exit, LumcError  # noqa: E402
from lumc.frontend.aten.fx import array_of  # noqa: E402
from lumc.frontend.aten.program import Node  # noqa: E402
from lumc.report import aten  # noqa: E402
from lumc.report.aten import run_archive  # noqa: E402
from lumc.report.reference import run_original  # noqa: E402
from pt2_models import expected, saved  # noqa: E402


@pytest.mark.parametrize("simpler", [False, True], ids=["as it is", "decomposed"])
@pytest.mark.parametrize("name", [n for n in pt2_models.MODELS if n != "counter"])
def test_it_is_what_torch_gives(name: str, simpler: bool, tmp_path: Path) -> None:
    program, args = saved(name, tmp_path / "m.pt2", simpler)
    given = {f"x{i}": array_of(a) for i, a in enumerate(args)}
    before = {n: a.copy() for n, a in given.items()}
    found = run_archive(tmp_path / "m.pt2", given)
    for got, want in zip(found.values(), expected(program, args), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-7)
    for n, a in before.items():
        assert np.array_equal(a, given[n]), "a run changes what it is given"


def test_a_buffer_that_a_run_changes_is_as_in_the_archive_for_every_run(tmp_path: Path) -> None:
    _, (x,) = saved("counter", tmp_path / "m.pt2")
    for _ in range(2):
        (got,) = run_archive(tmp_path / "m.pt2", {"x": array_of(x)}).values()
        assert np.array_equal(got, 2 * array_of(x))


def test_bf16_is_computed_as_bf16(tmp_path: Path) -> None:
    layer = torch.nn.Linear(4, 3).to(torch.bfloat16).eval()
    x = torch.randn(2, 4).to(torch.bfloat16)
    torch.export.save(torch.export.export(layer, (x,)), tmp_path / "m.pt2")
    (got,) = run_archive(tmp_path / "m.pt2", {"x": array_of(x)}).values()
    assert got.dtype == np.float32
    assert np.array_equal(got, layer(x).detach().float().numpy())


def test_verify_compares_with_torch(lumc: Lumc, tmp_path: Path) -> None:
    for name in ("net", "lengths"):
        saved(name, tmp_path / f"{name}.pt2")
        lumc("compile", f"{name}.pt2", "--estimate", "-o", f"{name}.lb")
        said = json.loads(lumc("verify", f"{name}.lb", "--source", f"{name}.pt2", "--json"))
        assert {r["against"] for r in said} == {"oracle", "torch"}
    saved("in_place", tmp_path / "other.pt2")
    assert "E0608" in lumc.fails(2, "verify", "lengths.lb", "--source", "net.pt2")
    assert "E0605" in lumc.fails(2, "verify", "net.lb", "--source", "nosuch.pt2")


def test_another_model_differs(lumc: Lumc, tmp_path: Path) -> None:
    """Of the same shapes, with other weights."""
    for name, seed in (("a", 1), ("b", 2)):
        torch.manual_seed(seed)
        layer = torch.nn.Linear(4, 4).eval()
        torch.export.save(torch.export.export(layer, (torch.ones(2, 4),)), tmp_path / f"{name}.pt2")
    lumc("compile", "a.pt2", "--estimate", "-o", "a.lb")
    lumc("verify", "a.lb", "--source", "a.pt2")
    lumc.fails(3, "verify", "a.lb", "--source", "b.pt2")


def test_without_torch_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved("in_place", tmp_path / "m.pt2")
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(LumcError, match="torch") as e:
        run_original(str(tmp_path / "m.pt2"), {"x": np.ones((3, 4), "f4")}, "main")
    assert (e.value.code, e.value.exit) == ("E0606", Exit.TOOLCHAIN)
    assert "pip install torch" in (e.value.fix or "")


def changed(path: Path, **texts: Any) -> Path:
    """The archive with other texts in the JSON of its program."""
    out = path.with_name("changed.pt2")
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(out, "w") as new:
        for info in old.infolist():
            data = old.read(info)
            if info.filename.endswith("models/model.json"):
                for a, b in texts.values():
                    assert a in data.decode()
                    data = data.decode().replace(a, b).encode()
            new.writestr(info.filename, data)
    return out


@pytest.mark.parametrize("target", ["aten.from_file.default", "aten.nosuch.default", "os.system"])
def test_only_known_operators_are_called(target: str, tmp_path: Path) -> None:
    saved("in_place", tmp_path / "m.pt2")
    path = changed(tmp_path / "m.pt2", target=("torch.ops.aten.relu_.default", target))
    with pytest.raises(LumcError) as e:
        run_original(str(path), {"x": np.ones((3, 4), "f4")}, "main")
    assert e.value.code in ("E0608", "E0350")


def test_operators_without_a_row_are_refused_by_name() -> None:
    for target in ("aten.from_file", "os.system", "_operator.attrgetter", "math.exp", "torch.load"):
        with pytest.raises(ValueError, match="is not one of those"):
            aten.function_of(Node("n", target, {}, ["n"]))


def test_pickled_weights_are_left_alone(tmp_path: Path) -> None:
    """The file of a pickle is never opened."""
    saved("net", tmp_path / "m.pt2")
    out = tmp_path / "pickled.pt2"
    with zipfile.ZipFile(tmp_path / "m.pt2") as old, zipfile.ZipFile(out, "w") as new:
        for info in old.infolist():
            data = old.read(info)
            if info.filename.endswith("weights_config.json"):
                data = data.replace(b'"use_pickle": false', b'"use_pickle": true')
                assert b'"use_pickle": true' in data
            new.writestr(info.filename, data)
    with pytest.raises(LumcError, match="pickled"):
        run_original(str(out), {"x": np.ones((2, 3, 6, 5), "f4")}, "main")
