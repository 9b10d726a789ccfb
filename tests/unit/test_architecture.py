"""The direction of imports, and what no source file may do."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2] / "src" / "lumc"
SOURCES = sorted(ROOT.rglob("*.py"))

# folder -> folders and modules that it may import, beside itself
ALLOWED = {
    "errors": set(),
    "process": set(),
    "graph": {"errors"},
    "disk": {"errors", "graph"},
    "kernel": {"errors", "graph", "schedule"},
    "schedule": {"errors", "graph", "kernel"},
    "search": {"errors", "process", "graph", "kernel", "schedule"},
    "oracle": {"errors", "graph", "kernel"},
    "frontend": {"errors", "graph", "disk", "oracle"},
    "codegen": {"errors", "graph", "kernel", "schedule"},
    "bundle": {"errors", "graph", "disk", "kernel", "schedule", "codegen"},
    "artifacts": {"errors", "graph", "disk", "kernel", "schedule", "search", "codegen"},
    "link": {"errors", "graph", "disk", "kernel", "codegen", "bundle"},
    "runtime": {"errors", "graph", "disk", "codegen", "bundle"},
    "lab": {
        "errors", "process", "graph", "kernel", "schedule", "oracle", "codegen", "bundle", "link",
        "runtime",
    },
    "profile": {
        "errors", "process", "graph", "kernel", "schedule", "search", "oracle", "codegen", "link",
        "runtime", "lab",
    },
}  # fmt: skip


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


@pytest.mark.parametrize("source", SOURCES, ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_run_one_way(source: Path) -> None:
    home = source.relative_to(ROOT).parts[0].removesuffix(".py")
    if home not in ALLOWED:
        return
    for name in imports(source):
        parts = name.split(".")
        if parts[0] == "lumc" and len(parts) > 1 and parts[1] != "__version__":
            assert parts[1] in ALLOWED[home] | {home}, f"{home} must not import {name}"
        if home in ("graph", "kernel", "schedule", "search"):
            assert parts[0] not in ("subprocess", "ctypes", "pycuda"), f"{home} imports {name}"


@pytest.mark.parametrize("source", SOURCES, ids=lambda p: str(p.relative_to(ROOT)))
def test_optional_packages_are_imported_where_they_are_used(source: Path) -> None:
    tree = ast.parse(source.read_text())
    top = {
        alias.name.split(".")[0]
        for node in tree.body
        if isinstance(node, ast.Import)
        for alias in node.names
    }
    top |= {n.module.split(".")[0] for n in tree.body if isinstance(n, ast.ImportFrom) and n.module}
    if "onnx" not in source.parts:
        assert not top & {"onnx", "torch", "pycuda", "onnxruntime", "tokenizers", "transformers"}


def test_the_compiler_knows_no_layer() -> None:
    layers = re.compile(r"attention|softmax|layer_?norm|rms_?norm|\bgelu\b", re.IGNORECASE)
    for folder in ("search", "codegen", "profile", "kernel", "schedule"):
        for source in (ROOT / folder).rglob("*"):
            if source.suffix in (".py", ".egg"):
                assert not layers.search(source.read_text()), source


def test_no_unsafe_readers() -> None:
    unsafe = re.compile(r"\bpickle\b|(?<![\w.])eval\(|(?<![\w.])exec\(|yaml\.load|shell=True")
    for source in SOURCES:
        text = re.sub(r'"""[\s\S]*?"""|#.*', "", source.read_text())
        assert not unsafe.search(text), source


def test_environment_is_read_in_the_cli_only() -> None:
    for source in SOURCES:
        if source.name != "cli.py":
            assert not re.search(r"os\.environ\[|os\.getenv|environ\.get", source.read_text()), (
                source
            )
