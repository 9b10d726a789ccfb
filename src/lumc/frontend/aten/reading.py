"""The JSON of a program, as torch's schema has it, as a ``Program``. Raises Damaged for anything
else; nothing in it is believed."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from lumc.disk.pt2 import DTYPES, Damaged, field, parsed
from lumc.frontend.aten.program import Foreign, Meta, Node, Ref
from lumc.frontend.aten.registry import placed
from lumc.graph.ops import DType

MAX_RANK = 16
MAX_WHOLE = 1 << 63
FLOATS = {"Infinity": float("inf"), "-Infinity": float("-inf"), "NaN": float("nan")}
FRAME = re.compile(r'File "([^"\n]{1,500})", line (\d{1,9})')
# arguments that rows have nothing for
OTHERS = {
    "as_memory_format": "a memory format",
    "as_layout": "a layout",
    "as_device": "a device",
    "as_complex": "a complex number",
    "as_graph": "a subgraph",
    "as_custom_obj": "an object",
    "as_operator": "an operator",
    "as_nested_tensors": "lists of lists",
    "as_int_lists": "lists of lists",
    "as_float_lists": "lists of lists",
    "as_string_to_argument": "a dict",
}


def union(said: Any) -> tuple[str, Any]:
    """The one field of a union, and its value."""
    if not isinstance(said, dict):
        raise Damaged(f"{_brief(said)} is no argument")
    given = [(k, v) for k, v in said.items() if v is not None] or list(said.items())
    if len(given) != 1 or not isinstance(given[0][0], str):
        raise Damaged(f"{_brief(said)} is no argument")
    return given[0]


def _brief(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:80]}.."


def whole(value: Any) -> int:
    """A whole number of 64 bits."""
    if not isinstance(value, int) or isinstance(value, bool) or abs(value) > MAX_WHOLE:
        raise Damaged(f"{_brief(value)} is no whole number")
    return value


def _float(value: Any) -> float:
    if isinstance(value, str) and value in FLOATS:
        return FLOATS[value]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Damaged(f"{_brief(value)} is no number")
    return float(value) if isinstance(value, float) else float(whole(value))


def _bool(value: Any) -> bool:
    if not isinstance(value, bool):
        raise Damaged(f"{_brief(value)} is no truth value")
    return value


def text(value: Any) -> str:
    if not isinstance(value, str):
        raise Damaged(f"{_brief(value)} is no text")
    return value


def _ref(value: Any) -> Ref:
    return Ref(field(value, "name", str))


def _symbolic(value: Any) -> Any:
    """A number, or the name of one."""
    kind, inner = union(value)
    return Ref(text(inner)) if kind == "as_name" else argument(value)


def _optional(value: Any) -> Ref | None:
    kind, inner = union(value)
    return None if kind == "as_none" else _ref(inner)


def dtype_of(value: Any) -> DType | Foreign:
    """Of torch's ScalarType by its number."""
    number = whole(value)
    return DTYPES.get(number, Foreign(f"dtype {NAMES.get(number, f'number {number}')}"))


NAMES = {9: "complex32", 10: "complex64", 11: "complex128", 29: "float8_e4m3fn", 30: "float8_e5m2"}
ONE = {
    "as_tensor": _ref,
    "as_int": whole,
    "as_float": _float,
    "as_bool": _bool,
    "as_string": text,
    "as_sym_int": _symbolic,
    "as_sym_float": _symbolic,
    "as_sym_bool": _symbolic,
    "as_scalar_type": dtype_of,
    "as_optional_tensor": _optional,
}
SEVERAL = {
    "as_tensors": _ref,
    "as_ints": whole,
    "as_floats": _float,
    "as_bools": _bool,
    "as_strings": text,
    "as_sym_ints": _symbolic,
    "as_sym_floats": _symbolic,
    "as_sym_bools": _symbolic,
    "as_optional_tensors": _optional,
}


def argument(said: Any) -> Any:
    """The value of an argument."""
    kind, value = union(said)
    if kind == "as_none":
        return None
    if kind in ONE:
        return ONE[kind](value)
    if kind in SEVERAL:
        if not isinstance(value, list):
            raise Damaged(f"{_brief(value)} is no list")
        return [SEVERAL[kind](v) for v in value]
    if kind in OTHERS:
        return Foreign(OTHERS[kind])
    raise Damaged(f"an argument of the kind {kind!r}")


def metas(said: Any) -> dict[str, Meta]:
    """What the program says of its tensors."""
    return {name: _meta(value) for name, value in said.items()}


def _meta(said: Any) -> Meta:
    shape, strides = (_known(field(said, n, list)) for n in ("sizes", "strides"))
    if len(shape) > MAX_RANK or len(strides) != len(shape):
        raise Damaged(f"a tensor of {len(shape)} sizes and {len(strides)} strides")
    return Meta(dtype_of(said.get("dtype")), shape, strides)


def _known(sizes: Sequence[Any]) -> tuple[int | None, ...]:
    found = [union(s) for s in sizes]
    return tuple(whole(v) if kind == "as_int" else None for kind, v in found)


def nodes(said: Sequence[Any]) -> list[Node]:
    """The calls of a graph, in order; each result is made once."""
    found, made = list[Node](), set[str]()
    for n in said:
        node = _node(n)
        for name in node.outputs:
            if name in made:
                raise Damaged(f"two nodes make '{name}'")
        made.update(o for o in node.outputs if o is not None)
        found.append(node)
    return found


def _node(said: Any) -> Node:
    target = plain(field(said, "target", str))
    given = [(field(a, "name", str), argument(a.get("arg"))) for a in field(said, "inputs", list)]
    inputs = dict(given)
    if len(inputs) != len(given):
        raise Damaged(f"an argument of {target} stands twice")
    if not target.startswith("aten."):
        inputs = placed(target, [v for _, v in given])
    results = [_result(o) for o in field(said, "outputs", list)]
    listed = len(results) == 1 and isinstance(results[0], list)
    outputs = results[0] if listed else results
    if any(isinstance(o, list) for o in outputs):
        raise Damaged(f"{target} gives several lists")
    name = said.get("name") or next((o for o in outputs if o), target)
    metadata = said.get("metadata")
    stack = metadata.get("stack_trace") if isinstance(metadata, dict) else None
    return Node(text(name), target, inputs, outputs, listed, origin(stack))


def plain(target: str) -> str:
    """``torch.ops.aten.relu.default`` as ``aten.relu``."""
    return target.removeprefix("torch.ops.").removesuffix(".default")


def _result(said: Any) -> Any:
    value = argument(said)
    if isinstance(value, list):
        return [v.name if isinstance(v, Ref) else None for v in value]
    if value is not None and not isinstance(value, Ref):
        raise Damaged(f"{_brief(said)} is no result")
    return value.name if value is not None else None


def origin(stack: Any) -> str:
    """``file.py:line`` of the user's code, from the stack that torch noted."""
    if not isinstance(stack, str):
        return ""
    frames = [f for f in FRAME.findall(stack[-20_000:]) if "/torch/" not in f"/{f[0]}"]
    return f"{frames[-1][0].rpartition('/')[2]}:{frames[-1][1]}" if frames else ""


def result_names(spec: str, count: int) -> list[str]:
    """Names for the outputs, after the tree of tuples and dicts that the model returns, as torch
    writes it."""
    try:
        tree = parsed(spec.encode(), "the tree of outputs")
        found = _leaves(tree[1], "", 0) if isinstance(tree, list) and len(tree) == 2 else []
    except (Damaged, AttributeError, TypeError, KeyError, ValueError):
        found = []
    if len(found) != count:
        found = ["output"] if count == 1 else [str(i) for i in range(count)]
    taken = dict[str, int]()
    for i, name in enumerate(found):
        name = f"output_{name}" if name[:1].isdigit() else name
        found[i] = f"{name}_{taken[name]}" if name in taken else name
        taken[name] = taken.get(name, 0) + 1
    return found


def _leaves(tree: Mapping[str, Any], path: str, depth: int) -> list[str]:
    if depth > 32:
        raise Damaged("a deep tree")
    if tree["type"] is None:
        return [path or "output"]
    parts = [
        _leaves(c, f"{path}_{k}" if path else k, depth + 1)
        for k, c in zip(_keys(tree), tree["children_spec"], strict=True)
    ]
    return [name for part in parts for name in part]


def _keys(tree: Mapping[str, Any]) -> list[str]:
    """What the children of a tree are called: the keys of a dict, otherwise their numbers."""
    children = tree["children_spec"]
    numbers = [str(i) for i in range(len(children))]
    if "tuple" in str(tree["type"]) or "list" in str(tree["type"]):
        return numbers
    keys = parsed(str(tree["context"]).encode(), "the keys of a dict")
    plain_keys = isinstance(keys, list) and all(isinstance(k, str) for k in keys)
    return keys if plain_keys and len(keys) == len(children) else numbers
