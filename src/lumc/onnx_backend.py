"""lumc as a backend of the onnx package.

```python
import lumc.onnx_backend as backend
import numpy as np
import onnx

model = onnx.parser.parse_model(
    '<ir_version: 10, opset_import: ["": 21]> twice (float[n, 3] x) => (float[n, 3] y)'
    "{ y = Add (x, x) }"
)
prepared = backend.prepare(model, "CPU", threads=2)
(y,) = prepared.run([np.ones((2, 3), "f4")])
print(y.tolist())
```

```text
[[2.0, 2.0, 2.0], [2.0, 2.0, 2.0]]
```

``prepare``, ``run_model``, ``run_node``, ``supports_device`` and ``is_compatible`` of the module
are those of ``Backend``, as ``onnx.backend.base`` describes them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

import lumc.python as lumc
from lumc.errors import Exit, LumcError
from lumc.frontend.api.model import Model
from lumc.frontend.onnx import Imported, free_inputs, import_source
from lumc.frontend.onnx.coded import NUMBERS, codes, elements
from lumc.frontend.onnx.load import rejected, require_onnx, source_of
from lumc.frontend.onnx.specialise import specialised
from lumc.frontend.onnx.values import numpy_dtype
from lumc.graph.ops import DType
from lumc.runtime.choose import RUNTIMES

onnx = require_onnx()
base: Any = import_module("onnx.backend.base")

Array = np.ndarray[Any, Any]
Runner = Callable[[Mapping[str, Array]], Mapping[str, Array]]
Compile = Callable[[Model], Runner]
KEPT = 16  # models for different shapes that one ``Prepared`` holds
NAME = Path("model.onnx")  # what messages call a model that is in memory
TARGETS = {"CPU": "cpu", "CUDA": "cuda"}  # devices as onnx calls them


class Prepared(base.BackendRep):  # type: ignore[misc]
    """A model that is ready to run; ``Backend.prepare`` makes it.

    It is compiled at its first run, and again for other shapes, or for other values of an input
    that the graph depends on (a shape to reshape to, axes); the last 16 models are kept.
    """

    def __init__(self, model: Any, compile: Compile) -> None:
        self._source = source_of(model, NAME)
        self._compile = compile
        self._made = list[tuple[Mapping[str, Any], Imported, Runner]]()  # the oldest first
        inputs = free_inputs(self._source)
        self._names = [i.name for i in inputs]
        self._tensors = {i.name for i in inputs if i.type.HasField("tensor_type")}
        names = [o.name for o in model.graph.output]
        self._outputs = base.namedtupledict("Outputs", names)

    def run(self, inputs: Any, **kwargs: Any) -> tuple[Any, ...]:
        """The outputs in order, also by name: ``outputs["y"]``. ``inputs`` are arrays in the order
        of the model's inputs, a dict by name, or one array. A sequence is a list of arrays, an
        optional may be None; bfloat16, and what has 8 bits or fewer, is that of ml_dtypes.

        Raises ``lumc.Error``: E0312, exit 4, for what is not supported, E0610 for inputs that do
        not fit, and what ``lumc.compile`` raises.
        """
        arrays = self._named(inputs)
        imported, runner = self._for(arrays)
        feed = dict[str, Array]()
        for name, own in imported.inputs.items():
            feed |= _paired(own, arrays[name])
        found = runner(feed)
        kinds = {name: n.dtype for name, n in imported.model.graph().entries[0].outputs}
        results = {name: _elements(found[name], kind) for name, kind in kinds.items()}
        coded = {name: n for name, n in imported.codes.items() if name in results}
        results |= {name: elements(results[name], number) for name, number in coded.items()}
        whole: tuple[Any, ...] = self._outputs(*(_placed(n, results) for n in imported.outputs))
        return whole

    @property
    def known(self) -> tuple[str, ...]:
        """The inputs whose values compiled models hold for, sorted."""
        return tuple(sorted({name for _, imported, _ in self._made for name in imported.known}))

    def _named(self, inputs: Any) -> dict[str, Any]:
        """The inputs by name. Raises E0610 for other names, or another number of them."""
        listed = inputs if isinstance(inputs, list | tuple) else [inputs]
        given = dict(zip(self._names, listed, strict=False))
        if isinstance(inputs, Mapping):
            given = dict(inputs)
        elif len(listed) != len(self._names):
            given = dict.fromkeys(range(len(listed)))
        if set(given) != set(self._names):
            what = f"inputs {', '.join(map(str, given))} for a model with other ones"
            fix = f"its inputs: {', '.join(self._names) or 'none'}"
            raise LumcError("E0610", what, fix=fix, exit=Exit.USAGE)
        whole = self._tensors
        return {n: np.asarray(v) if n in whole else _listed(v) for n, v in given.items()}

    def _for(self, arrays: Mapping[str, Any]) -> tuple[Imported, Runner]:
        """The model for inputs like these, compiled now or before."""
        like = {name: _like(a) for name, a in arrays.items()}
        for before, imported, runner in self._made:
            known = imported.known.items()
            if before == like and all(np.array_equal(arrays[n], a) for n, a in known):
                return imported, runner
        imported = specialised(self._source, arrays)
        runner = self._compile(imported.model)
        self._made = [*self._made[1 - KEPT :], (like, imported, runner)]
        return imported, runner


def _listed(given: Any) -> Any:
    """A sequence of arrays, an optional."""
    if isinstance(given, list | tuple):
        return [_listed(g) for g in given]
    return None if given is None else np.asarray(given)


def _paired(own: Any, given: Any) -> dict[str, Array]:
    """The elements of an input by the names that they have in the model."""
    if isinstance(own, str):
        return {own: _bits(np.asarray(given))}
    pairs = zip(own or (), given or (), strict=True)
    return {name: a for n, g in pairs for name, a in _paired(n, g).items()}


def _placed(names: Any, elements: Mapping[str, Array]) -> Any:
    """An output in the form of its names."""
    if isinstance(names, list):
        return [_placed(n, elements) for n in names]
    return None if names is None else elements[names]


def _like(given: Any) -> Any:
    """What a model is compiled for: shapes and dtypes."""
    if isinstance(given, list):
        return [_like(g) for g in given]
    return None if given is None else (np.shape(given), np.asarray(given).dtype)


def _bits(array: Array) -> Array:
    """bfloat16 travels as its bits, what has fewer than 8 as integers."""
    if array.dtype.name in NUMBERS:
        return codes(array)
    return array.view(np.uint16) if array.dtype.name == "bfloat16" else array


def _elements(array: Array, dtype: DType) -> Array:
    return array.view(numpy_dtype(dtype)) if dtype is DType.BF16 else array


class Backend(base.Backend):  # type: ignore[misc]
    """Runs ONNX models that are compiled by lumc, on ``CPU`` or ``CUDA``."""

    @classmethod
    def prepare(cls, model: Any, device: str = "CPU", **kwargs: Any) -> Prepared:
        """A model that is checked and ready to run. Keywords are those of ``lumc.compile``, where
        ``estimate`` is true unless it is given; or ``compile``, a function that makes of a
        ``lumc.Model`` one that runs it on a dict of arrays.

        Raises ``lumc.Error``: E0310 for what is no valid model, E0708 for another device.
        """
        target = cls._target(device)
        try:
            onnx.checker.check_model(model)
        except onnx.checker.ValidationError as e:
            raise rejected(e, str(NAME)) from None
        return Prepared(model, kwargs.get("compile") or _compiler(target, kwargs))

    @classmethod
    def run_node(
        cls,
        node: Any,
        inputs: Any,
        device: str = "CPU",
        outputs_info: Any = None,
        **kwargs: Any,
    ) -> tuple[Array, ...]:
        """The outputs of one node for arrays in the order of its inputs; ``opset_version`` says of
        which opset it is, the newest by default. Raises what ``prepare`` and ``run`` raise."""
        version = kwargs.pop("opset_version", onnx.defs.onnx_opset_version())
        names = [n for n in node.input if n]
        if len(names) != len(inputs):
            what = f"{len(inputs)} arrays for {len(names)} inputs: {', '.join(names)}"
            raise LumcError("E0610", what, exit=Exit.USAGE)
        arrays = dict(zip(names, map(np.asarray, inputs), strict=True))
        declared = [onnx.helper.make_tensor_value_info(n, _number(a), a.shape)
                    for n, a in arrays.items()]  # fmt: skip
        results = [onnx.ValueInfoProto(name=name) for name in node.output if name]
        graph = onnx.helper.make_graph([node], "node", declared, results)
        opset = onnx.helper.make_opsetid(node.domain, version)
        model = onnx.helper.make_model(graph, opset_imports=[opset])
        target = cls._target(device)
        return Prepared(model, kwargs.get("compile") or _compiler(target, kwargs)).run(arrays)

    @classmethod
    def is_compatible(cls, model: Any, device: str = "CPU", **kwargs: Any) -> bool:
        """Whether it is imported as it is. One that is not may still run, if what it needs to know
        are shapes or values that a run tells."""
        try:
            import_source(source_of(model, NAME), {}, {}, {})
        except LumcError:
            return False
        return cls.supports_device(device)

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """Whether models run on it here: ``CPU``, ``CUDA``."""
        kind = TARGETS.get(device.removesuffix(":0"))
        return kind is not None and import_module(RUNTIMES[kind]).problem() is None

    @classmethod
    def _target(cls, device: str) -> str:
        if not cls.supports_device(device):
            fix = f"one of: {', '.join(d for d in TARGETS if cls.supports_device(d))}"
            raise LumcError("E0708", f"no device '{device}' here", fix=fix, exit=Exit.TOOLCHAIN)
        return TARGETS[device.removesuffix(":0")]


def _number(array: Array) -> int:
    return int(onnx.helper.np_dtype_to_tensor_dtype(array.dtype))


def _compiler(target: str, options: Mapping[str, Any]) -> Compile:
    def compiled(model: Model) -> Runner:
        bundle: lumc.Bundle = lumc.compile(model, **{"target": target, "estimate": True, **options})
        return bundle.run

    return compiled


prepare = Backend.prepare
run_model = Backend.run_model
run_node = Backend.run_node
supports_device = Backend.supports_device
is_compatible = Backend.is_compatible
