"""The direction of imports, and what no source file may do."""

import ast
import re
from collections.abc import Iterable, Mapping
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
ROOT = REPOSITORY / "src" / "lumc"
SOURCES = sorted(ROOT.rglob("*.py"))
PURE = ("graph", "kernel", "schedule", "search", "codegen")  # they start and call nothing
COMPILER = [s for s in SOURCES if s.relative_to(ROOT).parts[0] in PURE]
FILE, FUNCTION = 400, 50  # lines, at most


def floors() -> list[list[str]]:
    """The rooms of every floor, from above, as docs/house.md lists them before the words."""
    page = (REPOSITORY / "docs" / "house.md").read_text()
    (block,) = re.findall(r"<!-- floors -->\n```\n(.*?)```", page, re.DOTALL)
    return [line.split("  ")[0].split() for line in block.splitlines()]


FLOOR = {room: -at for at, rooms in enumerate(floors()) for room in rooms}


def named(source: Path) -> str:
    """The dotted name of a module, without ``lumc``."""
    parts = source.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {named(source): source for source in SOURCES if named(source)}


def room_of(module: str) -> str:
    """The innermost room that a module is in, or that it is."""
    parts = module.split(".")
    found = ("/".join(parts[:n]) for n in range(len(parts), 0, -1))
    return next(room for room in found if room in FLOOR)


@cache  # several tests ask
def imports(source: Path) -> set[str]:
    """Every module that a file imports, dotted, wherever the import stands."""
    out = set()
    for node in ast.walk(ast.parse(source.read_text())):
        if isinstance(node, ast.Import):
            out |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, f"{source}: relative import"
            out |= {f"{node.module}.{alias.name}" for alias in node.names}
    return out


def ours(source: Path) -> set[str]:
    """The modules of lumc among them: those that are imported, or of which a name is."""
    names = {n.removeprefix("lumc.") for n in imports(source) if n.startswith("lumc.")}
    return {n if n in MODULES else n.rpartition(".")[0] for n in names} & MODULES.keys()


def upward(module: str, below: Iterable[str]) -> list[str]:
    """The imports of a module that do not go down, to another floor."""
    own = room_of(module)
    rooms = {m: room_of(m) for m in below}
    return [m for m, room in rooms.items() if room != own and FLOOR[room] >= FLOOR[own]]


def circle(graph: Mapping[str, Iterable[str]]) -> list[str]:
    """Modules of which each imports the next one, and the last one the first; or none."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as e:
        return list(reversed(e.args[1]))
    return []


def test_imports_go_down_only() -> None:
    found = {m: upward(m, sorted(ours(source))) for m, source in MODULES.items()}
    assert not {m: up for m, up in found.items() if up}, "these are above or beside: docs/house.md"


def test_no_module_imports_itself_in_a_circle() -> None:
    found = circle({m: sorted(ours(source) - {m}) for m, source in MODULES.items()})
    assert not found, " -> ".join(found)


def test_imports_upwards_and_circles_are_found() -> None:
    assert upward("kernel.term", ["graph.expr", "kernel.key"]) == []
    assert upward("kernel.term", ["schedule.legal"]) == ["schedule.legal"]
    assert upward("codegen.cpu.map", ["codegen.gpu.cuda"]) == ["codegen.gpu.cuda"]
    assert upward("codegen.cpu.map", ["codegen.generate"]) == ["codegen.generate"]
    assert circle({"a": ["b"], "b": ["c"], "c": []}) == []
    assert len(circle({"a": ["b"], "b": ["c"], "c": ["a"]})) == 4


def test_every_room_is_on_one_floor() -> None:
    every = [room for rooms in floors() for room in rooms]
    assert len(every) == len(set(every))
    assert set(every) == {room_of(m) for m in MODULES}


def test_the_compiler_starts_nothing() -> None:
    for source in COMPILER:
        found = {name.split(".")[0] for name in imports(source)}
        assert not found & {"subprocess", "ctypes", "pycuda"}, source


def test_optional_packages_are_imported_where_they_are_used() -> None:
    optional = {"onnx", "torch", "pycuda", "onnxruntime", "tokenizers", "transformers"}
    for source in (s for s in SOURCES if "onnx" not in s.parts):
        body = ast.parse(source.read_text()).body
        top = {a.name.split(".")[0] for n in body if isinstance(n, ast.Import) for a in n.names}
        top |= {n.module.split(".")[0] for n in body if isinstance(n, ast.ImportFrom) and n.module}
        assert not top & optional, source


def test_the_compiler_knows_no_layer() -> None:
    layers = re.compile(r"attention|softmax|layer_?norm|rms_?norm|\bgelu\b", re.IGNORECASE)
    for folder in ("search", "codegen", "profile", "kernel", "schedule"):
        for source in (ROOT / folder).rglob("*"):
            if source.suffix in (".py", ".egg"):
                assert not layers.search(source.read_text()), source


def test_no_pass_searches_text() -> None:
    for source in (ROOT / "codegen").rglob("*.py"):
        assert "re" not in imports(source), source


def test_classes_of_the_compiler_have_parents_and_no_grandparents() -> None:
    parents = dict[str, set[str]]()
    for source in COMPILER:
        for node in ast.walk(ast.parse(source.read_text())):
            if isinstance(node, ast.ClassDef):
                parents[node.name] = {b.id for b in node.bases if isinstance(b, ast.Name)}
    for name, bases in parents.items():
        ours = {b for base in bases for b in parents.get(base, ())} & parents.keys()
        assert not ours, f"{name} has the grandparents {ours}"


def functions(source: str) -> dict[str, int]:
    """The lines of every function of a Python file, the longest of a name."""
    every = [n for n in ast.walk(ast.parse(source)) if isinstance(n, ast.FunctionDef)]
    every.sort(key=lambda n: (n.end_lineno or 0) - n.lineno)
    return {n.name: (n.end_lineno or 0) - n.lineno + 1 for n in every}


def blocks(source: str) -> dict[str, int]:
    """The lines of every function of a C file, and of all else in braces from its first column."""
    out, start, lines = dict[str, int](), 0, source.splitlines()
    for at, line in enumerate(lines):
        if line.startswith("}"):
            out[lines[start]] = at - start + 1
        elif line[:1].isalpha():
            start = at
    return out


def test_no_file_is_long() -> None:
    every = [p for p in ROOT.rglob("*") if p.is_file() and "__pycache__" not in p.parts]
    sizes = {p.relative_to(ROOT).as_posix(): p.read_bytes().count(b"\n") for p in every}
    long = {name: n for name, n in sizes.items() if n > FILE}
    assert not long, f"split by nouns: docs/house.md; {long}"


def test_no_function_is_long() -> None:
    for source in SOURCES:
        long = {name: n for name, n in functions(source.read_text()).items() if n > FUNCTION}
        assert not long, source


def test_no_function_in_c_is_long() -> None:
    every = [p for end in ("c", "h", "metal") for p in ROOT.rglob(f"*.{end}")]
    assert every
    for source in every:
        assert not {name: n for name, n in blocks(source.read_text()).items() if n > FUNCTION}


def test_long_functions_are_found() -> None:
    body = "    x = 1\n" * FUNCTION
    source = f"def f():\n{body}\ndef g():\n    def h():\n        pass\n"
    assert functions(source) == {"h": 2, "g": 3, "f": FUNCTION + 1}
    source = f"#define X\nint f(int a,\n      int b) {{\n{body}}}\nint y;\nvoid g()\n{{\n}}\n"
    assert blocks(source) == {"int f(int a,": FUNCTION + 3, "void g()": 3}


def test_no_unsafe_readers() -> None:
    unsafe = re.compile(r"\bpickle\b|(?<![\w.])eval\(|(?<![\w.])exec\(|yaml\.load|shell=True")
    for source in SOURCES:
        text = re.sub(r'"""[\s\S]*?"""|#.*', "", source.read_text())
        assert not unsafe.search(text), source


def test_environment_is_read_in_one_file_only() -> None:
    for source in SOURCES:
        if source != ROOT / "environment.py":
            assert not re.search(r"os\.environ\[|os\.getenv|environ\.get", source.read_text()), (
                source
            )


def test_machines_differ_by_rows() -> None:
    """What is particular to GPUs is a row of a table, or in their own room."""
    for module, source in MODULES.items():
        if room_of(module) not in ("kernel", "schedule", "codegen/gpu"):
            every = ast.walk(ast.parse(source.read_text()))
            used = (n for n in every if isinstance(n, ast.Attribute) and n.attr == "gpu")
            asked = [n.lineno for n in used if "target" in ast.unparse(n.value)]
            assert not asked, f"{module} asks for target.gpu in lines {asked}"
