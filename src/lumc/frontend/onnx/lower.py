"""The walk over an ONNX graph: every node is folded, lowered by a row, or expanded.

A node that cannot be lowered becomes a ``Problem`` and its results poison what reads them; the
walk goes on, so that one run finds all problems. Functions of the model and function bodies of
operator schemas are walked in a scope of their own.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from lumc.errors import Exit, LumcError
from lumc.frontend.api.model import Model
from lumc.frontend.api.operand import whole_node
from lumc.frontend.api.random import Generator
from lumc.frontend.api.symbols import Array, Symbolic
from lumc.frontend.api.tensor import Tensor
from lumc.frontend.onnx.coded import MOVES, NAMES, Coded, moved
from lumc.frontend.onnx.folding import Folder
from lumc.frontend.onnx.load import Source, malformed, require_onnx, tensor_value
from lumc.frontend.onnx.names import clean
from lumc.frontend.onnx.problems import Problem
from lumc.frontend.onnx.protos import needed, plain, schema_function
from lumc.frontend.onnx.refused import REASONS, UNKNOWN
from lumc.frontend.onnx.registry import Bind, Row, Unsupported, find
from lumc.frontend.onnx.values import (
    constant_tensor,
    constant_value,
    inputs_of,
    lumc_dtype,
    symbolic_tensor,
    unsupported_dtype,
)
from lumc.graph.verify import STATEMENTS

MOST_NAMED = 4  # inputs whose values would make another one known
BIND = "bind the dim with --dim"  # as rows say that do not know the names of dims
BROKEN = "where shapes or positions do not fit, the model is broken: export it again"
MAX_DEPTH = 64  # of functions and subgraphs inside each other
MAX_STEPS = 100_000  # nodes walked, counting function bodies and unrolled loops


class Poison:
    """The result of a node that could not be lowered."""


POISON = Poison()
Names = str | list[Any] | None  # of a tensor; of a sequence those of its elements


class Poisoned(Exception):
    """A subgraph could not be lowered; its problems are noted already."""


@dataclass
class Scope:
    """Values by name in a graph or a function body, and the attributes a function was given."""

    opsets: Mapping[str, int]
    values: dict[str, Any]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    depth: int = 0

    def inner(self) -> Scope:
        """The scope of a subgraph: it sees the values around it."""
        return Scope(self.opsets, dict(self.values), self.attributes, self.depth + 1)


@dataclass
class Lowering:
    """One import: the model under construction and the problems found so far."""

    source: Source
    model: Model
    folder: Folder
    offered: Mapping[str, Any]  # values of inputs that may be known, by name
    lists: Mapping[str, Any]  # inputs that are sequences of tensors, or optional
    counts: Mapping[str, int]  # rows of nodes whose number only a run knows, by their names
    problems: list[Problem] = field(default_factory=list)
    constants: dict[tuple[str, ...], Tensor] = field(default_factory=dict)
    titles: dict[int, str] = field(default_factory=dict)  # names of initializers by array id
    functions: dict[tuple[str, str], Any] = field(default_factory=dict)
    counted: set[str] = field(default_factory=set)  # of counts, those that nodes took
    generators: dict[int, Generator] = field(default_factory=dict)  # of random nodes, by id
    taken: set[str] = field(default_factory=set)  # names of leaves
    inputs: dict[str, Names] = field(default_factory=dict)  # what those of the model are called
    codes: dict[str, int] = field(default_factory=dict)  # inputs and outputs with coded elements
    steps: int = 0

    def walk(self, nodes: Sequence[Any], scope: Scope, wanted: Sequence[str]) -> None:
        """Lower the nodes that the wanted names need, in order."""
        if scope.depth > MAX_DEPTH:
            raise self.too_large(f"functions or subgraphs nest deeper than {MAX_DEPTH}")
        for node in needed(nodes, wanted):
            self.steps += 1
            if self.steps > MAX_STEPS:
                raise self.too_large(f"more than {MAX_STEPS} nodes after expansion")
            for name, value in zip(node.output, self.node(node, scope), strict=False):
                if name:
                    scope.values[name] = value
                    self.entitle(value, name)

    def entitle(self, value: Any, name: str) -> None:
        """Name the node that computes a value after the value."""
        if isinstance(value, Tensor) and whole_node(value) is not None:
            self.model.name(value, clean(name) + "_" * (clean(name) in STATEMENTS))

    def node(self, node: Any, scope: Scope) -> Sequence[Any]:
        """The outputs of one node; a problem is noted and gives poison."""
        call = Call(self, node, scope)
        poison = [POISON] * len(node.output)
        try:
            inputs = [scope.values[name] if name else None for name in node.input]
            poisoned = any(v is POISON for v in inputs)
            if poisoned and call.row() is None and call.function() is None:
                raise call.unknown()
            return poison if poisoned else call.lower(inputs)
        except Poisoned:
            return poison
        except Unsupported as e:
            self.note(call, e.reason, e.fix)
        except LumcError as e:
            if e.exit is not Exit.UNSUPPORTED:
                raise
            self.note(call, e.what, e.fix or (BIND if self.model.dims else BROKEN))
        except (
            ValueError,
            TypeError,
            IndexError,
            KeyError,
            AttributeError,
            ArithmeticError,
        ) as e:
            said = str(e) if type(e) is ValueError else f"{type(e).__name__}: {e}"
            raise malformed(said, f"{self.source.path}, {call}") from e
        return poison

    def too_large(self, what: str) -> LumcError:
        return LumcError("E0312", what, where=str(self.source.path), exit=Exit.UNSUPPORTED)

    def note(self, call: Call, reason: str, fix: str) -> None:
        named = " ".join(f"--dim {d}=.." for d in self.model.dims)
        fix = fix.replace(BIND, f"bind dims: {named}") if named else fix
        self.problems.append(Problem(call.operator, call.name, call.opset, reason, fix))

    def unique(self, title: str) -> str:
        """A name for a leaf that no other leaf or dim has."""
        while title in self.taken or title in self.model.dims:
            title += "_"
        self.taken.add(title)
        return title

    def tensor(self, value: Any) -> Tensor:
        """A value as a tensor of the model; equal constants are stored once."""
        if isinstance(value, Tensor):
            return value
        if isinstance(value, Symbolic):
            return symbolic_tensor(self.model, value)
        if isinstance(value, Coded):
            raise unsupported_dtype(NAMES[value.number])
        if not isinstance(value, np.ndarray):
            raise Unsupported(f"a {type(value).__name__} where a tensor is needed")
        lumc_dtype(value.dtype)
        return self.once(value, str(value.shape), partial(constant_tensor, self.model, value))

    def once(self, value: Array, form: str, made: Callable[[str], Tensor]) -> Tensor:
        """What is ``made``, under a name, of a constant in some form: once of equal bytes."""
        content = np.ascontiguousarray(value).reshape(-1).view(np.uint8)
        key = (form, str(value.dtype), hashlib.sha256(content.data).hexdigest())
        if key not in self.constants:
            name = clean(self.titles.get(id(value), "constant"))
            name = self.unique(name + "_" * bool(re.fullmatch(r"t\d+", name)))  # as nodes are
            self.constants[key] = made(name)
        return self.constants[key]


@dataclass
class Call:
    """One node being lowered: what rows may ask about it and do in its place."""

    lowering: Lowering
    proto: Any
    scope: Scope

    def __str__(self) -> str:
        return f"{self.operator} '{self.name}'"

    @property
    def model(self) -> Model:
        return self.lowering.model

    @property
    def domain(self) -> str:
        return "" if self.proto.domain == "ai.onnx" else str(self.proto.domain)

    @property
    def operator(self) -> str:
        return (f"{self.domain}." if self.domain else "") + str(self.proto.op_type)

    @property
    def name(self) -> str:
        names = (self.proto.name, *self.proto.output, self.proto.op_type)
        return str(next(n for n in names if n))

    @property
    def opset(self) -> int:
        return self.scope.opsets.get(self.domain, 1)

    @property
    def wanted(self) -> int:
        """How many outputs the node has; rows need not compute the ones beyond."""
        return len(self.proto.output)

    def row(self) -> Row | None:
        return find(self.domain, self.proto.op_type, self.opset)

    def attributes(self) -> dict[str, Any]:
        """Attribute values; those of an enclosing function are resolved."""
        onnx = require_onnx()
        values = {}
        for proto in self.proto.attribute:
            if proto.ref_attr_name:
                if proto.ref_attr_name in self.scope.attributes:
                    values[proto.name] = self.scope.attributes[proto.ref_attr_name]
                continue
            value = onnx.helper.get_attribute_value(proto)
            if isinstance(value, onnx.TensorProto):
                value = tensor_value(value, self.lowering.source.path)
            values[proto.name] = plain(value)
        return values

    def tensor(self, value: Any) -> Tensor:
        return self.lowering.tensor(value)

    def lower(self, inputs: list[Any]) -> Sequence[Any]:
        """Fold, else lower by a row, else expand the function body."""
        while inputs and inputs[-1] is None:
            inputs.pop()
        self.model.origin = str(self)
        attributes = self.attributes()
        if self.domain == "":
            folded = self.lowering.folder.fold(self.proto.op_type, inputs, attributes)
            if folded is not None:
                return folded
        row = self.row()
        if row is None:
            return self.expand(inputs, attributes)
        result = self._apply(row, inputs, attributes)
        return list(result) if isinstance(result, tuple) else [result]

    def _apply(self, row: Row, inputs: list[Any], attributes: dict[str, Any]) -> Any:
        names, number = row.inputs, 0
        if self.operator in MOVES:
            inputs, number = moved(self, inputs)
        arguments, keywords = row.arguments(inputs, attributes)
        for i, value in enumerate(arguments):
            name = names[min(i, len(names) - 1)].lstrip("*")
            if name in row.known:
                arguments[i] = self.known(value, name)
            elif not row.raw and value is not None:
                arguments[i] = self.tensor(value)
        if row.wants_call:
            arguments.insert(0, self)
        result = row.function(*arguments, **keywords)
        if not number:
            return result
        whole = isinstance(result, tuple)
        parts = tuple(Coded(number, self.tensor(r)) for r in (result if whole else [result]))
        return parts if whole else parts[0]

    def known(self, value: Any, name: str) -> Any:
        """A value that must be known at import; may hold expressions over dims."""
        if isinstance(value, Tensor):
            found = constant_value(self.model, value)
            if found is not None:
                return found
            self.ask(value)
            raise Unsupported(f"'{name}' depends on run-time values", self.way_out(value))
        return value.array if isinstance(value, Symbolic) else value

    def way_out(self, value: Any) -> str:
        """How to make a value known that inputs and dims decide."""
        names = self._inputs_behind(value)
        if not 1 <= len(names) <= MOST_NAMED:
            return "export the model with this as a constant"
        given = " ".join(f"--value {n}=.." for n in names)
        return f"say at import what decides it: {given}"

    def _inputs_behind(self, value: Any) -> list[str]:
        """The inputs of the model that decide a value, by their names there."""
        sources = inputs_of(value) if isinstance(value, Tensor) else []
        own = self.lowering.inputs.items()
        names = {title: name for name, title in own if isinstance(title, str)}
        return [names[s] for s in sources if s in names]

    def ask(self, value: Any) -> None:
        """Raises Bind for a tensor that only inputs decide whose values are offered."""
        needed = self._inputs_behind(value)
        if needed and all(n in self.lowering.offered for n in needed):
            raise Bind(needed)

    # ---- functions and subgraphs

    def function(self) -> Any:
        """The body of a function of the model, or of the operator's schema."""
        local = self.lowering.functions.get((self.proto.domain, self.proto.op_type))
        return local if local is not None else schema_function(self.proto, self.opset, None)

    def expand(self, inputs: list[Any], attributes: dict[str, Any]) -> Sequence[Any]:
        """Walk the function body in place of the node."""
        body = self.lowering.functions.get((self.proto.domain, self.proto.op_type))
        defaults: dict[str, Any] = {}
        if body is None:
            defaults = self._schema_defaults()
            body = schema_function(self._resolved(attributes), self.opset, inputs)
        if body is None:
            raise self.unknown()
        onnx = require_onnx()
        for a in body.attribute_proto:
            defaults[a.name] = plain(onnx.helper.get_attribute_value(a))
        opsets = {e.domain: int(e.version) for e in body.opset_import} or self.scope.opsets
        if len(inputs) > len(body.input):
            raise ValueError(f"{len(inputs)} inputs for the {len(body.input)} of its function")
        inputs = inputs + [None] * (len(body.input) - len(inputs))
        values = dict(zip(body.input, inputs, strict=True))
        scope = Scope(opsets, values, defaults | attributes, self.scope.depth + 1)
        before = len(self.lowering.problems)
        outputs = [o for o, _ in zip(body.output, self.proto.output, strict=False)]
        self.lowering.walk(body.node, scope, outputs)
        self._collapse(before)
        return [scope.values.get(name) for name in outputs]

    def unknown(self) -> Unsupported:
        """Why the node can be neither lowered nor expanded."""
        standard = REASONS.get(self.proto.op_type, UNKNOWN) if not self.domain else UNKNOWN
        return Unsupported(*standard)

    def _resolved(self, attributes: dict[str, Any]) -> Any:
        """The node with the values of attributes that refer to an enclosing function."""
        onnx = require_onnx()
        if not any(a.ref_attr_name for a in self.proto.attribute):
            return self.proto
        node = onnx.NodeProto()
        node.CopyFrom(self.proto)
        del node.attribute[:]
        for a in self.proto.attribute:
            if not a.ref_attr_name:
                node.attribute.add().CopyFrom(a)
            elif a.name in attributes:
                node.attribute.append(onnx.helper.make_attribute(a.name, attributes[a.name]))
        return node

    def _schema_defaults(self) -> dict[str, Any]:
        """Attributes that the schema of a standard operator gives a value."""
        onnx = require_onnx()
        try:
            schema = onnx.defs.get_schema(self.proto.op_type, self.opset, self.domain)
        except onnx.defs.SchemaError:
            return {}
        found = {name: a.default_value for name, a in schema.attributes.items()}
        return {n: plain(onnx.helper.get_attribute_value(p)) for n, p in found.items() if p.type}

    def subgraph(self, graph: Any, inputs: Sequence[Any]) -> list[Any]:
        """Walk a subgraph with values for its inputs; gives its outputs."""
        scope = self.scope.inner()
        path = self.lowering.source.path
        for tensor in graph.initializer:
            scope.values[tensor.name] = tensor_value(tensor, path)
        scope.values |= {p.name: v for p, v in zip(graph.input, inputs, strict=True)}
        outputs = [o.name for o in graph.output]
        self.lowering.walk(graph.node, scope, outputs)
        results = [scope.values[name] for name in outputs]
        if any(r is POISON for r in results):
            raise Poisoned
        return results

    def _collapse(self, before: int) -> None:
        """Problems inside a function body are problems of the node that the user wrote."""
        problems = self.lowering.problems
        inner = problems[before:]
        if inner:
            first = inner[0]
            reason = f"its function body needs {first.operator}: {first.reason}"
            problems[before:] = [
                Problem(self.operator, self.name, self.opset, reason, first.fix),
            ]
