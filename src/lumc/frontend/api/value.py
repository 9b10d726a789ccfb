"""A value of a model, without what can be done with it.

The modules of operations are functions over values, which ``Tensor`` has as methods; they call each
other by these methods too. So they know this class, and ``Tensor`` knows them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar

from lumc.errors import LumcError
from lumc.frontend.api.refusal import refuse
from lumc.graph.dim import Dim, Extent
from lumc.graph.graph import Operand, shape_text
from lumc.graph.ops import DType, Op

V = TypeVar("V", bound="Value")


class Maker(Protocol):
    """What values need of the model that they belong to."""

    @property
    def dims(self) -> Mapping[str, Dim]: ...
    @property
    def origin(self) -> str: ...
    def emit(
        self,
        op: Op,
        tensors: Sequence[Any],
        reduce: int | None = None,
        dtype: DType | None = None,
        whole: bool = False,
    ) -> Any: ...
    def full(self, shape: Sequence[Extent], value: Any, dtype: DType | str = "f32") -> Any: ...
    def constant(self, value: Any, name: str = "", dtype: DType | str | None = None) -> Any: ...
    def arange(
        self,
        start: Extent,
        stop: Extent | None = None,
        step: int = 1,
        dtype: DType | str = "i64",
    ) -> Any: ...
    def eye(self, n: Extent, m: Extent | None = None, dtype: DType | str = "f32") -> Any: ...
    def size(self, e: Extent, dtype: DType | str = "f32") -> Any: ...
    def name(self, value: Any, name: str) -> None: ...


@dataclass(frozen=True)
class Saturating:
    """What a value in -scale..scale, such as tanh, is near its ends: ``value + sign * scale`` is
    ``scale * end(sign)``, where a sum would lose all that is left."""

    scale: float
    end: Callable[[int], Any]


@dataclass(frozen=True, eq=False, repr=False)
class Value:
    """``operand`` is written over the places ``_0, _1, ..`` of ``shape``."""

    model: Maker
    operand: Operand
    shape: tuple[Extent, ...]
    ends: Saturating | None = None

    @property
    def dtype(self) -> DType:
        """Of its elements."""
        return self.operand.dtype

    @property
    def ndim(self) -> int:
        """How many axes it has."""
        return len(self.shape)

    def describe(self) -> str:
        """Its dtype and shape, as messages say them."""
        return f"{self.dtype.value}{shape_text(self.shape)}"

    def refuse(self, code: str, what: str, fix: str = "") -> LumcError:
        """An error about what made this value (exit 4)."""
        return refuse(code, what, where=self.model.origin, fix=fix)

    if TYPE_CHECKING:  # what ``Tensor`` adds: every operation as a method, and the operators

        def __getattr__(self, name: str) -> Callable[..., Self]: ...
        def __getitem__(self, key: Any) -> Self: ...
        def __neg__(self) -> Self: ...
        def __add__(self, other: Any) -> Self: ...
        def __radd__(self, other: Any) -> Self: ...
        def __sub__(self, other: Any) -> Self: ...
        def __rsub__(self, other: Any) -> Self: ...
        def __mul__(self, other: Any) -> Self: ...
        def __rmul__(self, other: Any) -> Self: ...
        def __truediv__(self, other: Any) -> Self: ...
        def __rtruediv__(self, other: Any) -> Self: ...
        def __matmul__(self, other: Any) -> Self: ...
        def __lt__(self, other: Any) -> Self: ...
        def __gt__(self, other: Any) -> Self: ...
        def __le__(self, other: Any) -> Self: ...
        def __ge__(self, other: Any) -> Self: ...
        def __and__(self, other: Any) -> Self: ...
        def __or__(self, other: Any) -> Self: ...
        def __invert__(self) -> Self: ...
