"""ONNX models whose messages are changed field by field: what any tool could have written."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from onnx_models import FOLDER

NUMBERS = (-1, 0, 1, 2, 3, 7, 16, 17, 28, 1 << 20, (1 << 31) - 1, -(1 << 31))
TEXTS = (
    "",
    "x",
    "y",
    "axis",
    "../x",
    "a\0b",
    "Add",
    "Loop",
    "Reshape",
    "ai.onnx",
    "\N{DEGREE SIGN}",
)
NETWORKS = (
    "float[b,4] x, float[4,3] w) => (float[b,3] y)"
    "{ t = MatMul(x, w)  k = Constant<value_ints=[0,3]>()  y = Reshape(t, k) }",
    "float[2,3,8,8] x, float[4,3,3,3] w) => (float[2,4,8,8] y)"
    "{ t = Conv<pads=[1,1,1,1]>(x, w)  y = Relu(t) }",
    "float[3,4] x, int64[2] i) => (float[2,4] y)"
    "{ t = Gather<axis=0>(x, i)  s = Softmax<axis=-1>(t)  y = Clip(s) }",
    "float[2,6] x) => (float[2,3] y, float[2,3] z){ y, z = Split<axis=1, num_outputs=2>(x) }",
    "float[2,6] x) => (float[6,2] y)"
    "{ t = Transpose<perm=[1,0]>(x)  m = ReduceMean<keepdims=1>(t)  y = Sub(t, m) }",
)


def models() -> list[Any]:
    import onnx

    head = '<ir_version: 8, opset_import: ["" : 18]> g ('
    small = [onnx.parser.parse_model(head + text) for text in NETWORKS]
    exports = sorted(FOLDER.glob("*.onnxtxt"), key=lambda p: p.stat().st_size)[:3]
    return [*small, *(onnx.parser.parse_model(p.read_text()) for p in exports)]


def changed(models: Sequence[Any], draw: random.Random) -> bytes:
    """A model with a few fields that are other ones."""
    import onnx

    model = onnx.ModelProto()
    model.CopyFrom(draw.choice(models))
    for _ in range(draw.choice((1, 1, 2, 3))):
        message = _somewhere(model, draw)
        try:
            _change(message, draw.choice(message.DESCRIPTOR.fields), draw)
        except (TypeError, ValueError, UnicodeError):  # nothing that protobuf could hold
            continue
    return bytes(model.SerializeToString())


def _somewhere(message: Any, draw: random.Random) -> Any:
    while True:
        below = []
        for field, value in message.ListFields():
            if field.message_type:
                below += list(value) if _repeated(field) else [value]
        if not below or draw.random() < 0.15:
            return message
        message = draw.choice(below)


def _repeated(field: Any) -> bool:
    known = getattr(field, "is_repeated", None)  # of newer protobuf
    return field.label == 3 if known is None else bool(known)


def _change(message: Any, field: Any, draw: random.Random) -> None:
    name, value = field.name, getattr(message, field.name)
    if draw.random() < 0.2:
        message.ClearField(name)
    elif _repeated(field):
        _change_list(value, field, draw)
    elif field.message_type:
        getattr(message, name).SetInParent()
    else:
        setattr(message, name, _scalar(field, draw, value))


def _change_list(values: Any, field: Any, draw: random.Random) -> None:
    at = draw.randrange(len(values)) if values else 0
    if values and draw.random() < 0.3:
        del values[at]
    elif field.message_type:
        if values and draw.random() < 0.7:
            values.add().CopyFrom(values[at])
        else:
            values.add()
    elif values and draw.random() < 0.7:
        values[at] = _scalar(field, draw, values[at])
    else:
        values.append(_scalar(field, draw, None))


def _scalar(field: Any, draw: random.Random, old: Any) -> Any:
    if field.type in (9, 12):  # string, bytes
        text = draw.choice(TEXTS)
        data = old[: draw.randrange(len(old) + 1)] if old and draw.random() < 0.5 else None
        return data if data is not None else text.encode() if field.type == 12 else text
    if field.type in (1, 2):  # floating point
        return draw.choice((0.0, -1.0, float("inf"), float("nan"), 1e30))
    number = draw.choice(NUMBERS)
    return int(old) + draw.choice((-1, 1)) if old is not None and draw.random() < 0.4 else number
