"""The backend suite of the onnx package, through the importer and the oracle.

Every case ends in one class: passed, passed with small integer inputs bound at import (shapes,
axes: what the graph must know), refused with a clean error, or wrong.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from lumc.errors import Exit, LumcError
from lumc.frontend.onnx import import_source
from lumc.frontend.onnx.load import source_of
from lumc.frontend.onnx.names import clean
from lumc.oracle.graph import evaluate

KINDS = ("node", "simple", "pytorch-converted", "pytorch-operator")
BF16_RTOL = 2**-6  # as the suite's own runner: two units in the last place


@dataclass(frozen=True)
class Result:
    name: str
    verdict: str  # "pass", "bound", "refused" or "wrong"
    detail: str = ""


def cases() -> Iterator[Any]:
    from onnx.backend.test.loader import load_model_tests

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for kind in KINDS:
            yield from load_model_tests(kind=kind)


def run(case: Any) -> Result:
    """Import and evaluate all data sets of a case; the first that does not pass decides."""
    verdict = "pass"
    model, data_sets = _loaded(case)
    for inputs, outputs in data_sets:
        try:
            bound = _run_set(case, model, inputs, outputs)
        except LumcError as e:
            if e.exit is not Exit.UNSUPPORTED:
                return Result(case.name, "wrong", f"exit {e.exit}: {e}")
            return Result(case.name, "refused", e.fix)
        except AssertionError as e:
            return Result(case.name, "wrong", str(e))
        verdict = "bound" if bound else verdict
    return Result(case.name, verdict)


def _loaded(case: Any) -> tuple[Any, list[tuple[list[Any], list[Any]]]]:
    """The model and its (inputs, expected outputs); what is no tensor is None."""
    if case.data_sets is not None:
        sets = [([_array(a) for a in i], [_array(a) for a in o]) for i, o in case.data_sets]
        return case.model, sets
    folder = Path(case.model_dir)
    model = onnx.load(folder / "model.onnx")
    sets = []
    for data in sorted(folder.glob("test_data_set_*")):
        inputs = _files(data, "input", model.graph.input)
        sets.append((inputs, _files(data, "output", model.graph.output)))
    return model, sets


def _files(folder: Path, kind: str, declared: Any) -> list[Any]:
    count = len(list(folder.glob(f"{kind}_*.pb")))
    return [_read(folder / f"{kind}_{i}.pb", declared[i]) for i in range(count)]


def _read(path: Path, declared: Any) -> Any:
    if declared.type.WhichOneof("value") != "tensor_type":
        return None
    tensor = onnx.TensorProto()
    tensor.ParseFromString(path.read_bytes())
    return numpy_helper.to_array(tensor)


def _array(value: Any) -> Any:
    if isinstance(value, onnx.TensorProto):
        return numpy_helper.to_array(value)
    return value if isinstance(value, np.ndarray | np.generic) else None


def _run_set(case: Any, model: Any, inputs: list[Any], outputs: list[Any]) -> bool:
    """Whether inputs had to be bound. Raises LumcError and AssertionError."""
    source = source_of(model, Path(f"{case.name}.onnx"))
    constants = {t.name for t in model.graph.initializer}
    declared = [i for i in model.graph.input if i.name not in constants or len(inputs) > 1]
    given = dict(zip([i.name for i in declared], inputs, strict=False))
    bound: dict[str, Any] = {}
    try:
        built = import_source(source, _dims(declared, given, bound), bound)
    except LumcError as e:
        bound = {n: v for n, v in given.items() if _is_small(v)}
        if not bound or "run-time values" not in e.fix:
            raise
        built = import_source(source, _dims(declared, given, bound), bound)
    graph = built.graph()
    free = [_bits(v) for n, v in given.items() if n not in bound and n not in constants]
    feed = dict(zip([i.name for i in graph.entries[0].inputs], free, strict=True))
    found, _ = evaluate(graph, "main", feed, built.read_weight, declared=True)
    for got, wanted in zip(found.values(), outputs, strict=True):
        _compare(case, got, np.asarray(wanted))
    return bool(bound)


def _dims(declared: list[Any], given: dict[str, Any], bound: dict[str, Any]) -> dict[str, int]:
    """Values of the dynamic dims of the inputs that stay inputs."""
    out = {}
    for value in declared:
        if value.name in bound or given.get(value.name) is None:
            continue
        for i, d in enumerate(value.type.tensor_type.shape.dim):
            if not d.HasField("dim_value"):
                out[clean(d.dim_param or f"{value.name}_{i}")] = np.shape(given[value.name])[i]
    return out


def _is_small(value: Any) -> bool:
    """A shape, an axis, a count, a scale: a vector of at most a few numbers."""
    if value is None or value.ndim > 1:
        return False
    return value.dtype.kind in "iub" or value.size <= 8


def _bits(value: Any) -> Any:
    return value.view(np.uint16) if value.dtype.name == "bfloat16" else value


def _compare(case: Any, got: Any, wanted: Any) -> None:
    rtol = case.rtol
    if wanted.dtype.name == "bfloat16":
        assert got.dtype == np.uint16, f"dtype {got.dtype}"
        got = (got.astype(np.uint32) << 16).view(np.float32)
        wanted, rtol = wanted.astype(np.float32), max(rtol, BF16_RTOL)
    assert got.dtype == wanted.dtype, f"dtype {got.dtype}, expected {wanted.dtype}"
    assert got.shape == wanted.shape, f"shape {got.shape}, expected {wanted.shape}"
    np.testing.assert_allclose(got, wanted, rtol=rtol, atol=case.atol)


REASONS = (
    ("dtype", r"dtype \w+ is not supported|of (i8|i16|i32|i64)\b|ints|quantisation to"),
    (
        "sequence or optional input",
        r"a (sequence|optional) as an input|of their own",
    ),
    ("strings", r"works on strings"),
    ("data-dependent shape", r"data-dependent shape"),
    ("random", r"is random"),
    ("needs a run-time value", r"run-time values"),
    ("no row", r"no row and no function body|decodes files|reads the bits"),
)


def reason(detail: str) -> str:
    """The class of a refusal, from the first line of its fix."""
    return next((name for name, pattern in REASONS if re.search(pattern, detail)), "other")
