"""What commands say of a model whose dims each run chooses."""

import json
import shutil
from pathlib import Path

import pytest

from checkpoints import BERT, bert_shapes, random_weights, write_folder
from commands import Lumc
from live import ATTENTION
from onnx_models import with_weights
from schemas import check


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the graph, the bundle, and what the passes between them made."""
    folder = tmp_path_factory.mktemp("lengths")
    (folder / "m.lg").write_text(ATTENTION)
    how = ("--estimate", "-o", folder / "m.lb", "--save-temps", folder)
    Lumc(folder)("compile", folder / "m.lg", *how)
    return folder


@pytest.fixture
def made(lumc: Lumc, compiled: Path) -> Lumc:
    shutil.copytree(compiled, lumc.folder, dirs_exist_ok=True)
    return lumc


def test_reports_say_which_lengths_they_are_of(made: Lumc) -> None:
    said = made("explain", "m.lp")
    assert "runs choose the dims: what is said is of the greatest, p=24, s=16" in said
    assert ":16 (s)" in said
    buckets = "main for s up to 1; main for s up to 16"
    assert f"a run takes the first bucket that holds its dims: {buckets}" in said
    body = json.loads(made("explain", "m.lp", "--json"))
    check("explain", body)
    assert any(k["lengths"] for k in body["kernels"])


def test_a_bundle_tells_its_dims(made: Lumc) -> None:
    said = made("show", "m.lb")
    assert "dim p in 0..24\n" in said and "f32[2, p + s, 8]" in said
    body = json.loads(made("show", "m.lb", "--json"))
    check("show-bundle", body)
    assert body["dims"][1] == {"name": "s", "lo": 1, "hi": 16, "multiple": 1}
    assert "  bucket s up to 1: " in said
    assert [b["dims"] for b in body["entries"][0]["buckets"]] == [{"s": 1}, {"s": 16}]
    assert "entry main for s up to 1: " in made("show", "m.lk")
    (q, _, v) = body["inputs"]
    assert (q["shape"], q["extents"]) == ([4, 16, 8], ["4", "s", "8"])
    assert v["extents"] == ["2", "p + s", "8"]


def test_figures_tell_the_dims(made: Lumc) -> None:
    rows = json.loads(made("verify", "m.lb", "--json", "--dim", "p=3"))
    check("verify", rows)
    outputs = [r["dims"] for r in rows if not r["output"].startswith("state ")]
    assert outputs == [f"p=3, s={s}" for s in (1, 7, 12, 2, 16)] and len(rows) == 10
    figures = made("bench", "m.lb", "--seconds", "0.01", "--json", "--dim", "s=2")
    check("bench", json.loads(figures))
    assert json.loads(figures)["dims"] == "p=24, s=2"
    Path("old.json").write_text(figures)
    other = ("bench", "m.lb", "--seconds", "0.01", "--compare", "old.json")
    assert "has no figures of" in made.fails(2, *other, "--dim", "s=3")
    made("bench", "m.lb", "--seconds", "0.01", "--compare", "old.json", "--dim", "s=2")


def test_the_user_says_where_kernels_are_chosen(made: Lumc) -> None:
    made("search", "m.lg", "--tune", "s=2,5", "--tune", "p=24", "-o", "two.ls")
    made("profile", "two.ls", "--estimate", "-o", "two.lp")
    made("codegen", "two.lp", "-o", "two.lk")
    made("link", "two.lk", "-o", "two.lb")
    body = json.loads(made("show", "two.lb", "--json"))
    ends = [{"p": 24, "s": s} for s in (2, 5, 16)]
    assert [b["dims"] for b in body["entries"][0]["buckets"]] == ends
    made("compile", "m.lg", "--estimate", "--tune", "s=2,5", "--tune", "p=24", "-o", "same.lb")
    assert Path("same.lb/manifest.json").read_bytes() == Path("two.lb/manifest.json").read_bytes()
    assert all(r["ok"] for r in json.loads(made("verify", "two.lb", "--json")))
    for wrong, code in (("s", "E0203"), ("s=", "E0203"), ("t=1", "E0111"), ("s=17", "E0111")):
        assert code in made.fails(2, "search", "m.lg", "--tune", wrong)


def test_a_run_has_one_length(made: Lumc) -> None:
    made.fails(2, "run", "m.lb", "--dim", "s=1..4")


@pytest.mark.deep
def test_a_search_over_lengths_keeps_its_records(made: Lumc) -> None:
    how = ("profile", "m.ls", "--budget", "5m", "--trials", "2", "--cache", "kept")
    made(*how, "-o", "first.lp")
    made(*how, "--frozen", "-o", "again.lp")
    assert Path("first.lp").read_bytes() == Path("again.lp").read_bytes()
    made("codegen", "again.lp", "-o", "again.lk")
    made("link", "again.lk", "-o", "again.lb")
    assert all(r["ok"] for r in json.loads(made("verify", "again.lb", "--json")))


def worst(said: str, against: str) -> float:
    rows = [r for r in json.loads(said) if r["against"] == against]
    assert len({r["dims"] for r in rows}) >= 4 and all(r["ok"] for r in rows)
    return max(r["relative_l2"] for r in rows)


def test_a_folder_runs_as_torch_does_at_every_length(lumc: Lumc) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    pytest.importorskip("transformers", reason="transformers is not installed")
    write_folder(Path("bert"), BERT, random_weights(bert_shapes()))
    lumc("compile", "bert", "--estimate", "--dim", "b=1..2", "-o", "bert.lb")
    assert worst(lumc("verify", "bert.lb", "--source", "bert", "--json"), "torch") < 1e-5


@pytest.mark.parametrize(
    "name", ["bert.torchscript", pytest.param("llama.dynamo", marks=pytest.mark.deep)]
)
def test_a_dynamic_onnx_model_runs_as_onnxruntime_does(lumc: Lumc, name: str) -> None:
    pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    inputs = with_weights(name, Path("m.onnx"))
    dims = sorted({d.dim_param for i in inputs for d in i.type.tensor_type.shape.dim} - {""})
    bounds = [part for d in dims for part in ("--dim", f"{d}=1..7")]
    lumc("compile", "m.onnx", "--estimate", *bounds, "-o", "m.lb")
    said = lumc("verify", "m.lb", "--source", "m.onnx", "--json")
    assert worst(said, "onnxruntime") < 1e-5
