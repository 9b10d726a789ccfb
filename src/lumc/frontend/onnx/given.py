"""What the command line says of the inputs of an ONNX model: values, and whole shapes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from lumc.errors import Exit, LumcError
from lumc.frontend.onnx import dynamic_dims, free_inputs

if TYPE_CHECKING:
    from lumc.frontend.onnx.load import Source

Array = np.ndarray[Any, Any]
NUMBERS = re.compile(r"[-+0-9.eE]+(,[-+0-9.eE]+)*")


def values(source: Source, texts: Mapping[str, str]) -> dict[str, Array]:
    """Arrays of the declared dtypes from ``{"sr": "16000", "shape": "1,-1"}``: one number for an
    input without axes, a list for one with an axis. Raises E0314."""
    return {name: _array(source, _input(source, name), text) for name, text in texts.items()}


def _input(source: Source, name: str) -> Any:
    inputs = {i.name: i for i in free_inputs(source)}
    if name not in inputs:
        raise usage(source, f"no input is named {name}", f"one of: {', '.join(inputs)}")
    return inputs[name]


def _array(source: Source, value: Any, text: str) -> Array:
    from lumc.frontend.onnx.load import require_onnx

    name, kind = value.name, value.type.tensor_type
    extents = [d.dim_value for d in kind.shape.dim]
    form = "one number" if not extents else "numbers with commas between"
    if len(extents) > 1:
        fix = "values of such an input are given in Python: import_onnx(.., values={..})"
        raise usage(source, f"--value {name}: the input has {len(extents)} axes", fix)
    try:
        dtype = np.dtype(require_onnx().helper.tensor_dtype_to_np_dtype(kind.elem_type))
        words = text.split(",") if NUMBERS.fullmatch(text) else []
        if dtype.kind not in "fiub" or not words:
            raise ValueError
        exact = [float(w) if dtype.kind == "f" else int(w) for w in words]
        array = np.array(exact, dtype)
        whole = array if extents else array.reshape(())
    except (KeyError, TypeError, ValueError, OverflowError):
        what = f"--value {name}={text}: the input is {_described(kind)}"
        raise usage(source, what, f"give {form}, as in --value {name}=1") from None
    if extents and extents[0] > 0 and extents[0] != len(words):
        what = f"--value {name}={text}: {len(words)} numbers for {extents[0]}"
        raise usage(source, what, f"give {extents[0]} numbers")
    return whole


def _described(kind: Any) -> str:
    from lumc.frontend.onnx.load import require_onnx

    name = require_onnx().TensorProto.DataType.Name(kind.elem_type).lower()
    return f"{name}[{', '.join(d.dim_param or str(d.dim_value) for d in kind.shape.dim)}]"


def dims(source: Source, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, int]:
    """The dims that whole shapes bind, by name: ``{"x": (1, 3, 48, 192)}``. Raises E0314 for
    another rank, an extent that the model has otherwise, and a dim that would be two."""
    dynamic, found = dynamic_dims(free_inputs(source), str(source.path)), dict[str, int]()
    for name, shape in shapes.items():
        kind = _input(source, name).type.tensor_type
        declared, said = kind.shape.dim, ",".join(map(str, shape))
        asked = f"--shape {name}={said}: the input is {_described(kind)}"
        if len(shape) != len(declared):
            raise usage(source, asked, f"give {len(declared)} extents")
        for axis, (extent, d) in enumerate(zip(shape, declared, strict=True)):
            dim = dynamic.get((name, axis))
            if dim is None and extent != d.dim_value:
                raise usage(source, asked, f"axis {axis} is {d.dim_value}")
            if dim is not None and found.setdefault(dim, extent) != extent:
                what = f"--shape makes dim '{dim}' both {found[dim]} and {extent}"
                raise usage(source, what, "give equal extents where the model has one dim")
    return found


def usage(source: Source, what: str, fix: str) -> LumcError:
    return LumcError("E0314", what, where=str(source.path), fix=fix, exit=Exit.USAGE)
