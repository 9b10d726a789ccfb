"""What is wrong with a call is said as it is: missing files, other artifacts, numbers, streams."""

import io
import json
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from commands import Lumc
from lumc.disk import artifact
from lumc.errors import LumcError

GRAPH = """lumc graph 1
input x f32[16]
t f32[m:16] = mul x[m], x[m]
output y = t
"""
SCRIPT = """from lumc.frontend.api.model import Model
def nothing():
    g = Model()
    g.input("x", (4,)).relu()
    return g
"""


@pytest.fixture
def made(lumc: Lumc, square: Path) -> Lumc:
    shutil.copytree(square, lumc.folder, dirs_exist_ok=True)
    return lumc


@pytest.mark.parametrize("command", ["compile", "import"])
@pytest.mark.parametrize("name", ["nosuch.lg", "nosuch", "nosuch.ls"])
def test_a_file_that_is_missing_is_said_to_be(lumc: Lumc, command: str, name: str) -> None:
    said = lumc.fails(2, command, name, "-o", "a.lb")
    assert f"E0201 cannot read {name}: there is no such file" in said


@pytest.mark.parametrize(
    ("command", "file", "wanted", "got", "fix"),
    [
        ("compile", "m.ls", "graph", "a space", "lumc profile m.ls | lumc codegen | lumc link"),
        ("search", "m.lp", "graph", "a plan", "lumc codegen m.lp | lumc link"),
        ("compile", "m.lk", "graph", "kernels", "lumc link m.lk -o"),
        ("import", "m.lg", "model", "a graph", "lumc compile m.lg -o"),
        ("run", "m.lg", "bundle", "a graph", "lumc compile m.lg -o"),
        ("import", "said.lg", "model", "a graph", "lumc compile said.lg -o"),
        ("run", "m.lp", "bundle", "a plan", "lumc codegen m.lp | lumc link"),
        ("verify", "m.ls", "bundle", "a space", "lumc profile m.ls | lumc codegen | lumc link"),
        ("bench", "m.lk", "bundle", "kernels", "lumc link m.lk -o"),
    ],
)
def test_another_artifact_is_named_with_what_to_do_with_it(
    made: Lumc, command: str, file: str, wanted: str, got: str, fix: str
) -> None:
    more = () if wanted == "bundle" else ("-o", "a.out")
    Path("said.lg").write_text(f"# a comment\n\n  # one more\n{Path('m.lg').read_text()}")
    said = made.fails(5, command, file, *more)
    assert f"E0502 expected a {wanted}, got {got}" in said and fix in said
    assert not Path("a.out").exists()


def test_a_bundle_is_no_model(made: Lumc) -> None:
    said = made.fails(5, "compile", "m.lb", "-o", "a.lb")
    assert "E0502 cannot import m.lb: it is a bundle" in said and "lumc run m.lb" in said


@pytest.mark.parametrize(
    "args",
    [
        ("bench", "m.lb", "--seconds", "-1"),
        ("bench", "m.lb", "--seconds", "0"),
        ("bench", "m.lb", "--seconds", "nan"),
        ("bench", "m.lb", "--seconds", "inf"),
        ("verify", "m.lb", "--tolerance", "nan"),
        ("verify", "m.lb", "--tolerance", "-1"),
        ("search", "m.lg", "--max-nodes", "-5"),
        ("search", "m.lg", "--max-nodes", "0"),
        ("profile", "m.ls", "--target-fraction", "nan"),
        ("--max-seconds", "nan", "search", "m.lg"),
        ("--max-gb", "inf", "search", "m.lg"),
    ],
)
def test_numbers_that_mean_nothing_are_refused(lumc: Lumc, args: tuple[str, ...]) -> None:
    said = lumc.raw(*args)
    assert said.exit_code == 2 and "Invalid value" in said.output


def test_a_compiler_that_is_named_must_be_there(made: Lumc) -> None:
    said = made.fails(7, "profile", "--estimate", "--cc", "nosuchcc", "m.ls", "-o", "a.lp")
    assert "E0701" in said and "nosuchcc" in said and not Path("a.lp").exists()


def test_a_model_without_outputs_is_no_model(lumc: Lumc) -> None:
    Path("model.py").write_text(SCRIPT)
    said = lumc.fails(4, "import", "model.py:nothing", "-o", "m.lg")
    assert "has no output" in said and not Path("m.lg").exists()


def test_show_prints_a_graph_as_it_is_written(lumc: Lumc) -> None:
    """The paths of weights too: not where they lie on this machine."""
    Path("sub").mkdir()
    Path("model.py").write_text(
        "import numpy as np\nfrom lumc.frontend.api.model import Model\n"
        "def scaled():\n    g = Model()\n"
        "    g.output('y', g.input('x', (4,)) * g.constant(np.arange(4, dtype='f4')))\n"
        "    return g\n"
    )
    lumc("import", "model.py:scaled", "-o", "sub/m.lg")
    said = lumc("show", "sub/m.lg")
    assert said == Path("sub/m.lg").read_text() and "m.safetensors" in said
    assert str(lumc.folder) not in said
    lumc("show", "sub/m.lg", "--json")


def test_lines_name_the_target_where_there_are_several(lumc: Lumc) -> None:
    Path("m.lg").write_text(GRAPH)
    targets = ("cpu:x86-64-v2", "cpu:x86-64-v3")
    two = ("--target", ",".join(targets), "--save-temps", ".")
    said = lumc.raw("compile", "--estimate", "m.lg", "-o", "m.lb", *two).stderr.splitlines()
    assert said == [f"search {name}: 1 regions, 1 unique" for name in targets]
    one = lumc.raw("compile", "--estimate", "m.lg", "-o", "n.lb").stderr.splitlines()
    assert one == ["search: 1 regions, 1 unique"]


# ---- arrays in pipes


def npy(array: np.ndarray) -> bytes:
    whole = io.BytesIO()
    np.save(whole, array)
    return whole.getvalue()


def test_arrays_come_and_go_in_pipes(made: Lumc) -> None:
    x = np.arange(16, dtype="f4")
    for given in ("-", "x=-"):
        done = subprocess.run(
            [sys.executable, "-m", "lumc", "run", "m.lb", "--input", given, "-o", "-"],
            input=npy(x),
            capture_output=True,
            check=True,
        )
        assert np.array_equal(np.load(io.BytesIO(done.stdout)), x * x)
    assert not Path("-").exists()
    whole = io.BytesIO()
    np.savez(whole, x=x)
    for data in (npy(x), whole.getvalue()):
        os.mkfifo("pipe")
        with ThreadPoolExecutor() as pool:
            pool.submit(Path("pipe").write_bytes, data)
            made("run", "m.lb", "--input", "x=pipe" if data == npy(x) else "pipe", "-o", "y.npy")
        Path("pipe").unlink()
        assert np.array_equal(np.load("y.npy"), x * x)
    os.mkfifo("pipe")
    with ThreadPoolExecutor() as pool:
        pool.submit(Path("pipe").write_text, Path("m.lg").read_text())
        made("compile", "pipe", "--dry-run", "--estimate", "-o", "b.lb")


def test_stdin_that_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(LumcError, match="nothing to read on stdin"):
        artifact.read_text("-")


def test_a_device_without_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(artifact, "MAX_BYTES", 1000)
    with pytest.raises(LumcError, match="larger than 1000 bytes"):
        artifact.read_text("/dev/zero")


def test_what_a_script_prints_is_no_part_of_the_graph(lumc: Lumc) -> None:
    text = "import lumc\nprint('loaded')\ndef f():\n    print('called')\n    m = lumc.Model()\n"
    text += "    m.output('y', m.input('x', (4,)) + 1)\n    return m\n"
    Path("said.py").write_text(text)
    done = lumc.raw("import", "said.py:f")
    assert done.stdout.startswith("lumc graph 1\n") and done.stderr == "loaded\ncalled\n"


@pytest.mark.parametrize(
    ("exit", "given", "said"),
    [
        (5, b"", "nothing is left on stdin"),
        (5, b"text", "not an .npy"),
        (5, npy(np.ones(16, "f4"))[:-4], "does not have the size"),
        (5, npy(np.ones(16, "f4")) + b"more", "does not have the size"),
        (2, npy(np.ones(17, "f4")), "[16]"),
        (2, npy(np.ones(16, "f8")), "f32"),
    ],
)
def test_what_is_no_array_on_stdin(made: Lumc, exit: int, given: bytes, said: str) -> None:
    assert said in made.fails(exit, "run", "m.lb", "--input", "x=-", input=given)


def test_one_array_goes_to_stdout_alone(made: Lumc) -> None:
    np.save("x.npy", np.ones(16, "f4"))
    given = ("run", "m.lb", "--input", "x.npy")
    assert "E0203" in made.fails(2, *given, "-o", "-", "--json")
    assert "E0203" in made.fails(2, *given, "--state", "-")
    Path("two.lg").write_text(GRAPH + "output z = x\n")
    made("compile", "--estimate", "two.lg", "-o", "two.lb")
    said = made.fails(2, "run", "two.lb", "--input", "x.npy", "-o", "-")
    assert "2 outputs do not fit in one .npy" in said
    assert json.loads(made(*given, "--json"))["y"]["shape"] == [16]
