"""Bundles: what is in them, equal bytes, replacing and interrupting, weights in and out."""

import filecmp
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from bundles import build, compiler, kernel, mlp, simple
from lumc.bundle import manifest
from lumc.bundle.restore import bundle_weight
from lumc.codegen.code import Code, Launch, Value
from lumc.disk.weights import read_weight
from lumc.errors import Exit, LumcError
from lumc.graph.ops import DType
from lumc.graph.text import parse_graph
from lumc.link import link as bundles_module
from lumc.link.link import TargetCode, Tools
from lumc.runtime.cpu import Bundle


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Code, Path, Path]:
    base = tmp_path_factory.mktemp("mlp")
    code, _ = mlp(base)
    return code, build(code, base / "m.lb", base), base


def names(folder: Path) -> list[str]:
    return sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())


def test_tree(made: tuple[Code, Path, Path]) -> None:
    _, path, _ = made
    kernels = "kernels/cpu-native"
    parts = ["k0_matmul", "k1_bias", "k2_matmul"]
    assert names(path) == sorted(
        [
            "manifest.json",
            "graph.lg",
            "plan/cpu-native.bin",
            "weights.safetensors",
            "bin/lumc-run",
            "lib/liblumc.so",
            "include/lumc.h",
            f"{kernels}/lumc_kernel.h",
            f"{kernels}/kernels.so",
            *(f"{kernels}/{p}{end}" for p in parts for end in (".c", ".o")),
        ]
    )
    assert os.access(path / "bin" / "lumc-run", os.X_OK)


def test_manifest_says_what_it_is(made: tuple[Code, Path, Path]) -> None:
    code, path, _ = made
    body = json.loads((path / "manifest.json").read_text())
    assert body["inputs"] == [{"name": "x", "dtype": "f32", "shape": [5, 11]}]
    assert body["outputs"] == [{"name": "y", "dtype": "f32", "shape": [5, 3]}]
    assert [k["name"] for k in body["kernels"]] == ["k0_matmul", "k1_bias", "k2_matmul"]
    assert all(k["key"] and k["regions"] == 1 for k in body["kernels"])
    assert body["arena_bytes"] == code.entries[0].arena_bytes == 640
    assert body["targets"][0]["name"] == "cpu-native"
    packed = 4 * (11 * 16 + 13 * 8)  # panels of 8 lanes
    assert body["weight_bytes"] == packed + 4 * 13
    assert set(body["files"]) == set(names(path)) - {"manifest.json"}


def test_no_path_of_this_machine_is_inside(made: tuple[Code, Path, Path]) -> None:
    _, path, base = made
    for name in names(path):
        assert str(base).encode() not in (path / name).read_bytes(), name
        assert b"/tmp/" not in (path / name).read_bytes(), name


def test_equal_bytes_in_another_folder_and_process(
    made: tuple[Code, Path, Path], tmp_path: Path
) -> None:
    _, path, _ = made
    script = (
        "import sys; from pathlib import Path; from bundles import *;"
        f"base = Path({str(tmp_path)!r}); build(mlp(base)[0], base / 'other name.lb', base)"
    )
    env = {**os.environ, "PYTHONHASHSEED": "77", "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", script], env=env, check=True)
    other = tmp_path / "other name.lb"
    assert names(other) == names(path)
    equal = filecmp.cmpfiles(path, other, names(path), shallow=False)
    assert equal[0] == names(path), equal[1:]


def test_weights_come_back(made: tuple[Code, Path, Path]) -> None:
    code, path, base = made
    graph = parse_graph((path / "graph.lg").read_text())
    assert [w.name for w in graph.weights] == ["w1", "b1", "w2"]
    for mine, original in zip(graph.weights, code.graph.weights, strict=True):
        np.testing.assert_array_equal(bundle_weight(path, mine), read_weight(original, base))


def test_weights_are_aligned_and_plain_safetensors(made: tuple[Code, Path, Path]) -> None:
    _, path, _ = made
    file = path / "weights.safetensors"
    tensors = load_file(file)
    assert {"w1@0", "w2@1", "b1"} <= set(tensors)
    length = int.from_bytes(file.read_bytes()[:8], "little")
    header = json.loads(file.read_bytes()[8 : 8 + length])
    assert (8 + length) % 4096 == 0
    for name, tensor in header.items():
        if not name.startswith("__pad"):
            assert tensor["data_offsets"][0] % 64 == 0


def test_a_weight_is_stored_once_for_equal_layouts(tmp_path: Path) -> None:
    code, _ = mlp(tmp_path)
    launch = Launch("k0_matmul", ("x", "", "w1@0", "t1"))
    entry = code.entries[0]
    twice = (launch, *entry.launches)
    again = Code(
        code.graph,
        code.target,
        code.header,
        code.kernels,
        code.packings,
        (type(entry)("main", entry.values, entry.outputs, twice, entry.arena_bytes, 640),),
    )
    path = build(again, tmp_path / "m.lb", tmp_path)
    assert sorted(n for n in load_file(path / "weights.safetensors") if "__" not in n) == [
        "b1",
        "w1@0",
        "w2@1",
    ]


# ---- replacing, interrupting


def test_a_bundle_is_replaced(tmp_path: Path) -> None:
    code, _ = mlp(tmp_path)
    path = build(code, tmp_path / "m.lb", tmp_path)
    (path / "stray").write_text("of an older version")
    build(code, path, tmp_path)
    assert not (path / "stray").exists()
    assert build(code, path, tmp_path, single=True).is_file()
    assert build(code, path, tmp_path).is_dir()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["m.lb", "mlp.safetensors"]


@pytest.mark.parametrize("single", [False, True])
def test_anything_else_is_not_replaced(single: bool, tmp_path: Path) -> None:
    code, _ = mlp(tmp_path)
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "thesis.tex").write_text("years of work")
    (tmp_path / "file").write_text("more of it")
    (tmp_path / "link").symlink_to(tmp_path / "docs")
    for name in ("docs", "file", "link"):
        with pytest.raises(LumcError, match="is not a lumc bundle") as e:
            build(code, tmp_path / name, tmp_path, single)
        assert e.value.exit == Exit.USAGE
    assert (tmp_path / "docs" / "thesis.tex").read_text() == "years of work"
    assert (tmp_path / "file").read_text() == "more of it"


@pytest.mark.parametrize("step", ["write_sources", "runners.build", "store_weights", "describe"])
@pytest.mark.parametrize("before", [False, True])
def test_an_interrupted_link_leaves_nothing_torn(
    step: str, before: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, _ = mlp(tmp_path)
    out = tmp_path / "m.lb"
    if before:
        build(code, out, tmp_path)
    digest = manifest.read(out)["digest"] if before else ""

    def interrupt(*args: object, **kwargs: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(f"{bundles_module.__name__}.{step}", interrupt)
    with pytest.raises(KeyboardInterrupt):
        build(code, out, tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["m.lb"] * before + ["mlp.safetensors"]
    if before:
        assert manifest.read(out)["digest"] == digest
        Bundle.open(out).close()


def test_an_interrupted_swap_puts_the_old_bundle_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, _ = mlp(tmp_path)
    out = build(code, tmp_path / "m.lb", tmp_path)
    rename = Path.rename

    def failing(self: Path, target: Path) -> Path:
        if self.name == "bundle":
            raise KeyboardInterrupt
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", failing)
    with pytest.raises(KeyboardInterrupt):
        build(code, out, tmp_path)
    monkeypatch.undo()
    Bundle.open(out).close()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["m.lb", "mlp.safetensors"]


def test_killed_at_any_moment(tmp_path: Path) -> None:
    """A killed process leaves the old bundle or the new one."""
    code, _ = mlp(tmp_path)
    out = build(code, tmp_path / "m.lb", tmp_path)
    script = (
        "from pathlib import Path; from bundles import *;"
        f"base = Path({str(tmp_path)!r}); code = mlp(base)[0]; print(flush=True);"
        "build(code, base / 'm.lb', base)"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    for delay in (0.05, 0.3, 0.6):
        process = subprocess.Popen([sys.executable, "-c", script], env=env, stdout=subprocess.PIPE)
        assert process.stdout is not None
        process.stdout.readline()
        try:
            process.wait(delay)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()
        with Bundle.open(out) as b:
            b.run({"x": np.zeros((5, 11), np.float32)})


# ---- errors


def test_a_compile_error_is_readable(tmp_path: Path) -> None:
    f = DType.F32
    broken = kernel("k0_broken", 1, "  undeclared = 1;", ("b0", "out"))
    values = [Value("x", f, (1,), "input", 0), Value("y", f, (1,), "output", 0)]
    code = simple([broken], values, [Launch("k0_broken", ("x", "y"))])
    with pytest.raises(LumcError) as e:
        build(code, tmp_path / "m.lb", tmp_path)
    assert e.value.code == "E0702"
    assert "undeclared" in str(e.value) and "k0_broken.c" in str(e.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("body", ["__builtin_trap();", "*(volatile int *)8 = lo;"])
def test_what_is_linked_is_run_once(body: str, tmp_path: Path) -> None:
    values = (Value("x", DType.F32, (1,), "input"), Value("y", DType.F32, (1,), "output"))
    code = simple([kernel("k0", 1, body, ("x", "y"))], values, [Launch("k0", ("x", "y"))])
    with pytest.raises(LumcError, match="does not run: it ended by SIG") as e:
        build(code, tmp_path / "m.lb", tmp_path)
    assert e.value.code == "E0709"
    assert not [*tmp_path.iterdir()]


def test_a_bundle_larger_than_the_memory_here_is_written_and_one_beyond_its_format_is_not(
    tmp_path: Path,
) -> None:
    def copying(n: int) -> Code:
        values = (Value("x", DType.U8, (n,), "input"), Value("y", DType.U8, (1,), "output"))
        launch = Launch("k0", ("x", "y"))
        return simple([kernel("k0", 1, "(void)lo;", ("x", "y"))], values, [launch])

    parts = [TargetCode(copying((1 << 46) - 4096), "0" * 64)]
    notes = bundles_module.link(parts, tmp_path / "m.lb", tmp_path, Tools(compiler()), single=False)
    assert notes == ["not tried here: it needs more memory than this machine has"]
    with pytest.raises(LumcError, match="the inputs of entry main take 70,368,744,177,665") as e:
        build(copying((1 << 46) - 4095), tmp_path / "n.lb", tmp_path)
    assert (e.value.code, e.value.exit) == ("E0114", Exit.UNSUPPORTED)
    assert [p.name for p in tmp_path.iterdir()] == ["m.lb"]


def test_a_folder_that_does_not_exist(tmp_path: Path) -> None:
    code, _ = mlp(tmp_path)
    with pytest.raises(LumcError, match="cannot write"):
        build(code, tmp_path / "no" / "m.lb", tmp_path)


def test_a_weight_file_that_changed(tmp_path: Path) -> None:
    code, _ = mlp(tmp_path)
    file = tmp_path / "mlp.safetensors"
    file.write_bytes(file.read_bytes() + b"\0")
    with pytest.raises(LumcError, match="not the one") as e:
        build(code, tmp_path / "m.lb", tmp_path)
    assert e.value.exit == Exit.CORRUPT
    assert not (tmp_path / "m.lb").exists()


# ---- one file


def test_single_file_is_a_stored_aligned_zip(tmp_path: Path) -> None:
    code, reference = mlp(tmp_path)
    path = build(code, tmp_path / "m.lb.zip", tmp_path, single=True)
    with zipfile.ZipFile(path) as z:
        assert z.testzip() is None
        assert z.namelist()[0] == "manifest.json"
        for info in z.infolist():
            assert info.compress_type == zipfile.ZIP_STORED
            local = path.read_bytes()[info.header_offset : info.header_offset + 30]
            sizes = int.from_bytes(local[26:28], "little") + int.from_bytes(local[28:30], "little")
            assert (info.header_offset + 30 + sizes) % 4096 == 0
        z.extractall(tmp_path / "m.lb")
    x = np.random.default_rng(3).standard_normal((5, 11), np.float32)
    cache = tmp_path / "cache"
    with Bundle.open(path, cache) as b:
        np.testing.assert_allclose(b.run({"x": x})["y"], reference(x), rtol=1e-4)
    (folder,) = cache.iterdir()
    assert cache.stat().st_mode & 0o777 == 0o700 and folder.stat().st_mode & 0o777 == 0o700
    cache.chmod(0o777)  # what lies there is run, and may be anybody's
    with pytest.raises(LumcError, match="others can write"), Bundle.open(path, cache):
        pass
    cache.chmod(0o700)
    made = folder.stat().st_mtime_ns
    Bundle.open(path, cache).close()
    assert folder.stat().st_mtime_ns == made  # unpacked once
    with Bundle.open(path) as b, Bundle.open(tmp_path / "m.lb") as c:
        np.testing.assert_array_equal(b.run({"x": x})["y"], c.run({"x": x})["y"])
