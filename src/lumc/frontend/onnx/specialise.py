"""An ONNX model for the inputs of one run: their shapes, and the values that decide the graph."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from lumc.errors import Exit, LumcError
from lumc.frontend.onnx import Imported, dynamic_dims, free_inputs, import_offered

if TYPE_CHECKING:
    from lumc.frontend.onnx.load import Source

Array = np.ndarray[Any, Any]
FEW = 8  # numbers of an input, of any dtype, that may be known at import: scales, thresholds


def specialised(source: Source, arrays: Mapping[str, Any]) -> Imported:
    """The model for inputs like these: dims are as the shapes of the arrays are, sequences (lists
    of arrays) as long as they are. Small inputs, such as shapes and axes, are known where an
    operator needs that; others stay inputs.

    Raises what importing raises: E0310 to E0314.
    """
    tensors = {name: a for name, a in arrays.items() if isinstance(a, np.ndarray)}
    kinds = {i.name: i.type.WhichOneof("value") for i in free_inputs(source)}
    lists = {name: a for name, a in arrays.items() if kinds.get(name) != "tensor_type"}
    for i in free_inputs(source):
        rank = len(i.type.tensor_type.shape.dim)
        if i.name in tensors and i.name not in lists and tensors[i.name].ndim != rank:
            what = f"input '{i.name}' has {rank} axes, got shape {list(tensors[i.name].shape)}"
            raise LumcError("E0314", what, where=str(source.path), exit=Exit.USAGE)
    dims: dict[str, int] = {}
    for (name, axis), dim in dynamic_dims(free_inputs(source), str(source.path)).items():
        if name in tensors:
            dims[dim] = tensors[name].shape[axis]
    offered = {n: a for n, a in tensors.items() if n not in lists and may_be_known(a)}
    return import_offered(source, dims, {}, offered, lists)


def may_be_known(array: Array) -> bool:
    """A shape, axes, a count, a mask of an axis: a list of integers; or a few numbers."""
    return array.ndim < 2 and (array.dtype.kind in "iub" or array.size <= FEW)
