"""Archives of torch.export, run with torch's own operators.

torch.export.load is not asked: it unpickles weights, and evaluates sizes as Python. What lumc reads
of the archive is called one node after the other; only operators that lumc knows are.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lumc.frontend.api.names import clean
from lumc.frontend.aten.fx import array_of, tensor_of
from lumc.frontend.aten.program import Foreign, Meta, Node, refs, resolved
from lumc.graph.ops import DType

if TYPE_CHECKING:
    from torch import Tensor

Arrays = Mapping[str, np.ndarray]
PLAIN: Mapping[str, Any] = {"_operator": operator, "math": math}
# without the memory formats that a program asks for, a view may need a copy
COPIES = ("aten.view", "aten._unsafe_view")


def run_archive(path: Path, inputs: Arrays) -> Arrays:
    """The outputs of a model by name; ``inputs`` are all that it takes, in its order, bf16 as bits.
    Raises E0350 and E0351, ValueError for operators that lumc does not know, and what torch
    raises; ImportError without torch."""
    import torch

    from lumc.frontend.aten import tables  # noqa: F401  registers the operators
    from lumc.frontend.aten.pt2 import read_original

    model = read_original(path)
    values = dict[str, Any]()
    for name, value in model.given.items():
        values[name] = own(*value) if isinstance(value, tuple) else value
    for name, given in zip(model.inputs, inputs.values(), strict=True):
        values[name] = own(given, _dtype(model.program.metas[name]))
    nodes, outputs = model.program.nodes, model.program.outputs
    last = {name: at for at, n in enumerate(nodes) for name in refs([*n.inputs.values()])}
    last |= dict.fromkeys(refs([*outputs.values()]), len(nodes))
    with torch.no_grad():
        for at, node in enumerate(nodes):
            values |= called(node, values)
            for name in {*refs([*node.inputs.values()])}:
                if last[name] == at:
                    del values[name]
    found = {n: resolved(v, values.__getitem__) for n, v in outputs.items()}
    return {clean(n): array(v) for n, v in found.items() if v is not None}


def _dtype(meta: Meta) -> DType:
    if isinstance(meta.dtype, Foreign):
        raise ValueError(f"an input of {meta.dtype.says}")
    return meta.dtype


def called(node: Node, values: Mapping[str, Any]) -> dict[str, Any]:
    """What a node gives, by name."""
    given = {k: resolved(v, values.__getitem__) for k, v in node.inputs.items()}
    given = {k: torch_dtype(v) if isinstance(v, DType) else v for k, v in given.items()}
    given = {k: v for k, v in given.items() if not isinstance(v, Foreign)}  # layouts, devices
    function = function_of(node)
    result = function(**given) if node.target.startswith("aten.") else function(*given.values())
    several = node.listed or isinstance(result, tuple | list)
    pairs = zip(node.outputs, result if several else [result], strict=False)
    return {name: value for name, value in pairs if name is not None}


def function_of(node: Node) -> Callable[..., Any]:
    """torch's operator, or Python's."""
    import torch

    from lumc.frontend.aten.lower import plain_target
    from lumc.frontend.aten.registry import ROWS

    if plain_target(node.target) not in ROWS:
        raise ValueError(f"operator {node.target} is not one of those that lumc knows")
    home, name, *overload = node.target.split(".")
    if home != "aten":
        return getattr(PLAIN.get(home, torch), name)  # type: ignore[no-any-return]
    if node.target in COPIES:
        return lambda self, size: self.reshape(size)
    return getattr(getattr(torch.ops.aten, name), *overload or ["default"])  # type: ignore[no-any-return]


# ---- arrays and tensors


def own(array: np.ndarray, dtype: DType) -> Tensor:
    """A copy, which a run may change; bf16 of its bits."""
    return tensor_of(np.array(array), dtype)


def torch_dtype(dtype: DType) -> Any:
    """As torch calls it."""
    import torch

    names = {DType.BF16: "bfloat16", DType.BOOL: "bool", DType.F16: "float16", DType.F32: "float32"}
    return getattr(torch, names.get(dtype) or dtype.numpy.name)


def array(value: Any) -> np.ndarray:
    """Of a tensor, bf16 in f32; of a number."""
    import torch

    if not isinstance(value, torch.Tensor):
        return np.asarray(value)
    return array_of(value.float() if value.dtype is torch.bfloat16 else value)
