"""What public functions of the compiler say: shapes, units, and the errors that come out of them.

Every function, class and method of a room without an underscore has a docstring. It names each
error code that its body raises or lets through, and the units of its floats. Shapes and axes are
left to those who read it.
"""

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
ROOT = REPOSITORY / "src" / "lumc"
ROOMS = ("graph", "kernel", "schedule", "search", "codegen/tile")
CODE = re.compile(r"E0\d{3}")
# a float says its unit in its name, or it is said beside it
NAMED = re.compile(r"(^|_)(us|s|seconds|g?flops|nbytes|share|ratio)$")
UNIT = re.compile(
    r"\b(us|microseconds?|seconds?|bytes?|GB/s|GFLOP/s|elements?|operations?|steps?|shares?|ratio)\b",
    re.IGNORECASE,
)

Place = tuple[str, str]  # a module without ``lumc``, and a name in it: f, Class or Class.method


@dataclass(frozen=True)
class Module:
    """A source file: its functions and methods by name, and what its other names stand for."""

    tree: ast.Module
    lines: list[str]
    classes: Mapping[str, ast.ClassDef]
    functions: Mapping[str, ast.FunctionDef]
    imported: Mapping[str, Place]


Known = Mapping[str, Module]


def read(source: str) -> Module:
    tree = ast.parse(source)
    classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    for c in classes.values():
        methods = (f for f in c.body if isinstance(f, ast.FunctionDef))
        functions |= {f"{c.name}.{f.name}": f for f in methods}
    imports = [n for n in ast.walk(tree) if isinstance(n, ast.ImportFrom) and n.module]
    imported = {
        alias.asname or alias.name: (str(n.module).removeprefix("lumc."), alias.name)
        for n in imports
        for alias in n.names
    }
    return Module(tree, source.splitlines(), classes, functions, imported)


@cache
def modules() -> dict[str, Module]:
    """Every module of lumc by its dotted name."""
    known = dict[str, Module]()
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        known[".".join(p for p in parts if p != "__init__")] = read(path.read_text())
    return known


def public(known: Known, room: str) -> Iterator[Place]:
    """The classes, functions and methods of a room without an underscore in front."""
    for name, module in known.items():
        if f"{name}.".startswith(f"{room.replace('/', '.')}."):
            for x in (*module.classes, *module.functions):
                if not any(part.startswith("_") for part in (*name.split("."), *x.split("."))):
                    yield name, x


def docstring(known: Known, place: Place) -> str:
    module, name = known[place[0]], place[1]
    node = module.classes.get(name) or module.functions[name]
    return ast.get_docstring(node) or ""


# ---- which errors come out of a function


def named(known: Known, module: str, name: str) -> Iterator[Place]:
    """The function that a name of a module stands for; of a class what makes its instances."""
    if here := known.get(module):
        every = (name, f"{name}.__init__", f"{name}.__post_init__")
        yield from ((module, x) for x in every if x in here.functions)
        if name in here.imported:
            yield from named(known, *here.imported[name])


def method(known: Known, module: str, owner: str, name: str) -> Iterator[Place]:
    """The method of a class, or of what that inherits from."""
    here = known.get(module)
    if here and f"{owner}.{name}" in here.functions:
        yield module, f"{owner}.{name}"
    elif here and owner in here.imported:
        yield from method(known, *here.imported[owner], name)
    elif here and owner in here.classes:
        for base in here.classes[owner].bases:
            yield from method(known, module, ast.unparse(base), name)


def kinds(function: ast.FunctionDef, owner: str) -> dict[str, str]:
    """The variables whose class is plain to see: ``self``, ``x: C`` and ``x = C(..)``."""
    out = {"self": owner}
    for node in ast.walk(function):
        match node:
            case ast.arg(arg=name, annotation=ast.Name(id=kind)):
                out[name] = kind
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Call(func=ast.Name(id=kind))):
                out[name] = kind
    return out


def parts(node: ast.AST) -> Iterator[ast.AST]:
    """What is below a node and may let errors out: not what a ``try`` catches, no annotations, and
    no comparisons, in which codes are asked for."""
    left_out = {"annotation", "returns"}
    if isinstance(node, ast.Try) and any(catches(h) for h in node.handlers):
        left_out.add("body")
    for field, value in ast.iter_fields(node):
        below = value if isinstance(value, list) else [value]
        if field not in left_out:
            yield from (
                x for x in below if isinstance(x, ast.AST) and not isinstance(x, ast.Compare)
            )


def catches(handler: ast.ExceptHandler) -> bool:
    said = ast.unparse(handler.type) if handler.type else "Exception"
    return re.search(r"\b(LumcError|Exception)\b", said) is not None


def literals(call: ast.Call) -> list[str]:
    """The error codes among the arguments of a call."""
    every = (*call.args, *(k.value for k in call.keywords))
    return [a.value for a in every if isinstance(a, ast.Constant) and is_code(a.value)]


def is_code(value: object) -> bool:
    return isinstance(value, str) and CODE.fullmatch(value) is not None


def raised(known: Known, start: Place) -> dict[str, Place]:
    """The error codes that come out of a function, each with the function that raises it.

    Whatever a body names is followed, as far as the name of a function or the class of an object is
    plain to see. A call that gives the code is not.
    """
    out, seen, todo = dict[str, Place](), {start}, [start]
    while todo:
        module, name = place = todo.pop()
        function, used = known[module].functions[name], list[Place]()
        local, nodes = kinds(function, name.rpartition(".")[0]), list[ast.AST](function.body)
        defaults = (*function.args.defaults, *function.args.kw_defaults)
        out |= {
            d.value: place for d in defaults if isinstance(d, ast.Constant) and is_code(d.value)
        }
        while nodes:
            node = nodes.pop()
            if isinstance(node, ast.Call) and (codes := literals(node)):
                out |= dict.fromkeys(codes, place)
                nodes += node.args
                continue
            match node:
                case ast.Name(id=x) if x not in local:
                    used += named(known, module, x)
                case ast.Attribute(value=ast.Name(id=x), attr=attr) if x in local:
                    used += method(known, module, local[x], attr)
                case ast.Attribute(value=ast.Name(id=x), attr=attr) if x in known[module].imported:
                    used += named(known, ".".join(known[module].imported[x]), attr)
            nodes += parts(node)
        todo += [u for u in dict.fromkeys(used) if u not in seen]
        seen.update(used)
    return out


# ---- what a docstring does not say


def unsaid_errors(known: Known, place: Place) -> list[str]:
    """Codes that come out without a word of them, and other exceptions that the body raises. The
    docstring of a class speaks for what makes its instances."""
    (module, name), text, out = place, docstring(known, place), list[str]()
    functions = known[module].functions
    for f in (name, f"{name}.__init__", f"{name}.__post_init__"):
        codes = raised(known, (module, f)) if f in functions else {}
        out += [f"{c} of {'.'.join(codes[c])}" for c in sorted(codes) if c not in text]
        for node in ast.walk(functions[f]) if f in functions else ():
            match node:
                case ast.Raise(exc=ast.Call(func=ast.Name(id=kind))) if kind != "LumcError":
                    out += [kind] if kind not in text else []
    return out


def unsaid_units(known: Known, place: Place) -> list[str]:
    """Floats, of arguments, results and fields, of which neither the name nor the docstring nor the
    comment behind a field says the unit."""
    (module, name), text = place, docstring(known, place)
    said = dict[str, str]()
    if owner := known[module].classes.get(name):
        for node in owner.body:
            if isinstance(node, ast.AnnAssign) and is_float(node.annotation):
                line = known[module].lines[(node.end_lineno or node.lineno) - 1]
                said[ast.unparse(node.target)] = text + line.partition("#")[2]
    else:
        function = known[module].functions[name]
        every = (*function.args.args, *function.args.kwonlyargs)
        said = {a.arg: text for a in every if is_float(a.annotation)}
        said |= {function.name: text} if is_float(function.returns) else {}
    return [x for x, words in said.items() if not NAMED.search(x) and not UNIT.search(words)]


def is_float(annotation: ast.expr | None) -> bool:
    return annotation is not None and ast.unparse(annotation) in ("float", "float | None")


@pytest.mark.parametrize("room", ROOMS)
def test_everything_public_has_a_docstring(room: str) -> None:
    places = list(public(modules(), room))
    assert places
    assert not [".".join(p) for p in places if not docstring(modules(), p)]


@pytest.mark.parametrize("room", ROOMS)
def test_errors_that_come_out_are_said(room: str) -> None:
    found = {".".join(p): unsaid_errors(modules(), p) for p in public(modules(), room)}
    assert not {name: errors for name, errors in found.items() if errors}


@pytest.mark.parametrize("room", ROOMS)
def test_units_of_floats_are_said(room: str) -> None:
    found = {".".join(p): unsaid_units(modules(), p) for p in public(modules(), room)}
    assert not {name: floats for name, floats in found.items() if floats}


def test_errors_that_are_said_exist() -> None:
    nodes = [n for module in modules().values() for n in ast.walk(module.tree)]
    exist = {n.value for n in nodes if isinstance(n, ast.Constant) and is_code(n.value)}
    exist.update(CODE.findall((REPOSITORY / "docs" / "errors.md").read_text()))
    documented = (n for n in nodes if isinstance(n, ast.Module | ast.ClassDef | ast.FunctionDef))
    said = {code for n in documented for code in CODE.findall(ast.get_docstring(n) or "")}
    assert said
    assert said <= exist


PLANTED = '''
from lumc.kernel.deep import Base, check

class Reader(Base):
    size: float
    time_us: float
    rate: float = 1.0  # GB/s

    def __init__(self, text: str) -> None:
        check(text)

    def read(self, width: float) -> float:
        """Raises E0901 (what is caught does not count); units are not said."""
        try:
            self.caught()
        except LumcError as e:
            if e.code == "E0909":
                raise ValueError(e) from None
        return self.fail("odd", code="E0903")

    def caught(self) -> None:
        """Raises E0905."""
        raise LumcError("E0905", "never")

def quiet(share: float, reader: Reader) -> float:
    """A share. Raises E0904 and E0905."""
    reader.fail("odd")
    reader.caught()
'''
DEEP = """
class Base:
    def fail(self, what: str, code: str = "E0904") -> None:
        raise LumcError(code, what)

def _check(text: str) -> None:
    raise LumcError("E0902", text)

def check(text: str) -> None:
    [*map(_check, text)]
"""


def test_what_is_not_said_is_found() -> None:
    known = {"kernel.planted": read(PLANTED), "kernel.deep": read(DEEP)}
    public_names = [name for _, name in public(known, "kernel")]
    assert public_names[:4] == ["Reader", "quiet", "Reader.read", "Reader.caught"]
    assert public_names[4:] == ["Base", "check", "Base.fail"]
    assert not docstring(known, ("kernel.deep", "check"))
    here = {name: ("kernel.planted", name) for name in public_names[:4]}
    assert unsaid_errors(known, here["Reader"]) == ["E0902 of kernel.deep._check"]
    errors = ["E0903 of kernel.planted.Reader.read", "ValueError"]
    assert unsaid_errors(known, here["Reader.read"]) == errors
    assert unsaid_errors(known, here["Reader.caught"]) == []
    assert unsaid_errors(known, here["quiet"]) == []
    assert unsaid_units(known, here["Reader"]) == ["size"]
    assert unsaid_units(known, here["Reader.read"]) == ["width", "read"]
    assert unsaid_units(known, here["quiet"]) == []
