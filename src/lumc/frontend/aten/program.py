"""A program of ATen operators, wherever it comes from: nodes in order, and what is known of their
values.

Arguments have the names of the operators' schemas. A value in them is what Python has for it -
numbers, texts, lists, None -, an extent, a ``DType``, or a ``Ref`` to the result of a node or to
an input of the program.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from lumc.graph.ops import DType


@dataclass(frozen=True)
class Ref:
    """A value by its name."""

    name: str


@dataclass(frozen=True)
class Foreign:
    """An argument that lumc has nothing for, in words: a dtype, a subgraph."""

    says: str


@dataclass(frozen=True)
class Meta:
    """What is said of a tensor. Sizes and strides that are not known before a run are None."""

    dtype: DType | Foreign
    shape: tuple[int | None, ...]
    strides: tuple[int | None, ...] = ()

    def __str__(self) -> str:
        kind = self.dtype.says if isinstance(self.dtype, Foreign) else self.dtype.value
        return f"{kind}[{', '.join('?' if n is None else str(n) for n in self.shape)}]"


@dataclass(frozen=True)
class Node:
    """One call: ``target`` is an operator with its overload, without ``default``: ``aten.relu``,
    ``aten.add.Tensor``, ``_operator.mul``. Results have names, or none where nothing reads them;
    ``listed``: they are the elements of one list. ``origin`` is a line of the user's code."""

    name: str
    target: str
    inputs: Mapping[str, Any]
    outputs: Sequence[str | None]
    listed: bool = False
    origin: str = ""

    @property
    def changes(self) -> bool:
        """Whether it writes its first argument, as ``aten.add_.Tensor`` does."""
        name = self.target.split(".")[1] if self.target.startswith("aten.") else ""
        return name.endswith("_") and not name.endswith("__")


@dataclass(frozen=True)
class Program:
    """``outputs`` are values by name, ``where`` says what it is, for messages. ``buffers`` are the
    inputs that a run may change, ``writes`` what it makes of some; nodes may write into them."""

    where: str
    nodes: Sequence[Node]
    outputs: Mapping[str, Any]
    metas: Mapping[str, Meta] = field(default_factory=dict)
    buffers: frozenset[str] = frozenset()
    writes: Mapping[str, Any] = field(default_factory=dict)


def refs(value: Any) -> Iterator[str]:
    """The names that an argument refers to."""
    if isinstance(value, Ref):
        yield value.name
    elif isinstance(value, list | tuple):
        for v in value:
            yield from refs(v)


def resolved(value: Any, find: Callable[[str], Any]) -> Any:
    """An argument with the values that it refers to."""
    if isinstance(value, Ref):
        return find(value.name)
    if isinstance(value, list | tuple):
        return [resolved(v, find) for v in value]
    return value


# ---- programs that write into tensors


class Writes(Exception):
    """A node writes into a tensor in a way that no program without writes has."""

    def __init__(self, node: Node, reason: str) -> None:
        super().__init__(reason)
        self.node, self.reason = node, reason


# operators whose result may be the memory of their first argument
VIEWS = frozenset(
    (
        "_reshape_alias",
        "alias",
        "as_strided",
        "broadcast_to",
        "chunk",
        "contiguous",
        "detach",
        "diagonal",
        "dropout",
        "expand",
        "expand_as",
        "feature_dropout",
        "flatten",
        "lift_fresh",
        "meshgrid",
        "moveaxis",
        "movedim",
        "narrow",
        "numpy_T",
        "permute",
        "positive",
        "ravel",
        "reshape",
        "select",
        "slice",
        "split",
        "split_with_sizes",
        "squeeze",
        "swapaxes",
        "swapdims",
        "t",
        "tensor_split",
        "to",
        "transpose",
        "type_as",
        "unbind",
        "unflatten",
        "unfold",
        "unsqueeze",
        "view",
        "view_as",
    )
)


def functional(program: Program) -> Program:
    """The program without writes: what reads a tensor after it was written reads the result. Raises
    Writes where the tensor is an input, or is then read by another name, that of a view."""
    if not any(n.changes for n in program.nodes):
        return program
    last, nodes, made = _last_reads(program), list[Node](), set[str]()
    memory, renamed = dict[str, str](), dict[str, str]()  # of views; of what was written

    def current(name: str) -> str:
        return renamed.get(name, name)

    def read(inputs: Mapping[str, Any]) -> dict[str, Any]:
        return {k: resolved(v, lambda n: Ref(current(n))) for k, v in inputs.items()}

    for at, node in enumerate(program.nodes):
        new = replace(node, inputs=read(node.inputs))
        first = next((name for v in node.inputs.values() for name in refs(v)), "")
        root = memory.get(first, first)
        if node.changes:
            whole = current(first) == current(root)
            if root not in made and not (root in program.buffers and whole):
                part = "a part of " * (not whole)
                raise Writes(node, f"it writes into {part}'{root}', which is not made by a node")
            shared = [root, *(n for n, r in memory.items() if r == root)]
            other = [n for n in shared if current(n) != current(first) and last[n] > at]
            if other:
                raise Writes(node, f"it writes into what is also read as '{other[0]}'")
            result = node.outputs[0] or f"{node.name}.written"
            renamed |= {n: result for n in shared if current(n) == current(first)}
            new, memory[result] = replace(new, outputs=[result]), root
        elif node.target.startswith("aten.") and node.target.split(".")[1] in VIEWS and first:
            memory |= dict.fromkeys((n for n in node.outputs if n), root)
        made.update(n for n in new.outputs if n)
        nodes.append(new)
    written = {b: Ref(current(b)) for b in sorted(program.buffers) if b in renamed}
    writes = read(program.writes) | written
    return replace(program, nodes=nodes, outputs=read(program.outputs), writes=writes)


def results(program: Program) -> list[Any]:
    """What a run gives, and what it leaves in buffers."""
    return [*program.outputs.values(), *program.writes.values()]


class _Reads(dict[str, int]):
    def __missing__(self, name: str) -> int:
        return -1


def _last_reads(program: Program) -> Mapping[str, int]:
    """Which node reads a name last; its number, that of all nodes for an output."""
    last = _Reads()
    for at, node in enumerate(program.nodes):
        last.update((name, at) for v in node.inputs.values() for name in refs(v))
    last.update((n, len(program.nodes)) for v in results(program) for n in refs(v))
    return last


def needed(program: Program) -> tuple[list[Node], set[str]]:
    """The nodes that the outputs need, in order, and the names of all values that these read."""
    wanted = {name for v in results(program) for name in refs(v)}
    kept = list[Node]()
    for node in reversed(program.nodes):
        if any(o in wanted for o in node.outputs):
            kept.append(node)
            wanted.update(name for v in node.inputs.values() for name in refs(v))
    return kept[::-1], wanted
