"""Every ATen operator against torch: random inputs, odd shapes, extents of 1 and 0, all dtypes."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from aten_cases import differs, ours, overload  # noqa: E402
from aten_more import more_cases  # noqa: E402
from aten_wide import wide_cases  # noqa: E402
from lumc.frontend.aten.refused import REASONS  # noqa: E402
from lumc.frontend.aten.registry import ROWS, SILENT  # noqa: E402

F32, F64, F16, BF16 = torch.float32, torch.float64, torch.float16, torch.bfloat16
I64, I32, I16, I8, U8, BOOL = (
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.bool,
)
SHAPES = [(3, 5), (), (1,), (2, 1, 3), (0, 4)]
TOLERANCE = {F16: (4e-3, 4e-3), BF16: (3e-2, 3e-2), F64: (1e-6, 1e-6)}  # others: 2e-5
CORE = 150  # names of core ATen, of 160, that there have to be rows for


class Draw:
    """Random tensors, other ones for every case."""

    def __init__(self, seed: str) -> None:
        self.generator = torch.Generator().manual_seed(zlib.crc32(seed.encode()))

    def __call__(self, *shape: int, dtype: Any = F32, low: float = -2.5, high: float = 2.5) -> Any:
        values = torch.rand(shape, generator=self.generator, dtype=F64) * (high - low) + low
        if dtype is BOOL:
            return values > (low + high) / 2
        return values.to(dtype)

    def ids(self, high: int, *shape: int, dtype: Any = I64) -> Any:
        return torch.randint(0, high, shape, generator=self.generator, dtype=dtype)

    def order(self, n: int) -> Any:
        return torch.randperm(n, generator=self.generator)


Case = tuple[str, str, tuple[Any, ...], dict[str, Any]]
UNARY = "abs acos acosh asin asinh atan atanh ceil cos cosh erf exp exp2 expm1 floor isinf isnan"
UNARY += " log log10 log1p log2 logical_not neg reciprocal relu round rsqrt sigmoid sign sin sinh"
UNARY += " sqrt tan tanh trunc square silu mish hardswish hardsigmoid relu6 selu log_sigmoid frac"
UNARY += " isfinite sgn clone alias detach zeros_like ones_like gelu elu celu leaky_relu"
UNARY += " hardtanh softplus softshrink hardshrink nan_to_num logit erfc contiguous"
RANGE = {"acos": (-0.99, 0.99), "asin": (-0.99, 0.99), "atanh": (-0.95, 0.95), "acosh": (1.1, 9.0)}
RANGE |= dict.fromkeys(("log", "log10", "log2", "rsqrt", "sqrt", "log1p"), (0.1, 4.0))
RANGE |= {"logit": (0.05, 0.95), "reciprocal": (0.5, 3.0), "erfc": (-1.5, 1.5)}
INTS = "abs neg sign relu logical_not isnan isinf ceil floor round trunc exp sin sqrt reciprocal"
BINARY = "add sub mul div fmod remainder eq ne lt le gt ge maximum minimum atan2 rsub"


def unary() -> Iterator[Case]:
    for name in UNARY.split():
        low, high = RANGE.get(name, (-2.5, 2.5))
        for shape in SHAPES:
            draw = Draw(f"{name}{shape}")
            yield f"{name} {list(shape)}", name, (draw(*shape, low=low, high=high),), {}
        for dtype in (F64, F16, BF16):
            x = Draw(f"{name}{dtype}")(4, 3, dtype=dtype, low=low, high=high)
            yield f"{name} {dtype}", name, (x,), {}
    for name in INTS.split():
        for dtype in (I64, I32, U8):
            x = Draw(f"{name}{dtype}").ids(5, 3, 4, dtype=dtype)
            yield f"{name} {dtype}", name, ((x + 1) if name == "reciprocal" else x,), {}
    odd = torch.tensor([float("inf"), -float("inf"), float("nan"), 0.0, -0.0, 1e30, -1e30])
    for name in [
        "isinf",
        "isnan",
        "isfinite",
        "relu",
        "sigmoid",
        "tanh",
        "erf",
        "exp",
        "abs",
        "sign",
        "gelu",
        "silu",
    ]:
        yield f"{name} of odd ones", name, (odd[2:5] if name in ("gelu", "silu") else odd,), {}
    for how in ("none", "tanh"):
        yield f"gelu {how}", "gelu", (Draw(how)(7, 3),), {"approximate": how}
    yield "elu scales", "elu", (Draw("e")(4, 5), 0.7, 1.3, 0.5), {}
    yield "softplus beta", "softplus", (Draw("s")(4, 5, high=30.0), 2.0, 10.0), {}
    yield "logit eps", "logit", (Draw("l")(4, 5), 0.1), {}
    yield "threshold", "threshold", (Draw("t")(4, 5), 0.3, -1.0), {}
    yield "glu", "glu", (Draw("g")(4, 6), 1), {}
    for shape in ((4, 3, 5), (2, 3)):
        yield f"prelu {shape}", "prelu", (Draw("p")(*shape), Draw("q")(3)), {}
    yield "native_dropout", "native_dropout", (Draw("d")(3, 4), 0.5, False), {}
    yield "dropout", "dropout", (Draw("d")(3, 4), 0.5, False), {}


def binary() -> Iterator[Case]:
    pairs = [((3, 5), (3, 5)), ((2, 1, 4), (3, 1)), ((), (3,)), ((0, 4), (4,)), ((1, 1), (1,))]
    for name in BINARY.split():
        full = name if name in ("maximum", "minimum", "atan2") else f"{name}.Tensor"
        for a, b in pairs:
            draw = Draw(f"{name}{a}{b}")
            y = draw(*b, low=0.4, high=3.0) if name in ("div", "fmod") else draw(*b)
            yield f"{name} {list(a)} {list(b)}", full, (draw(*a), y), {}
        for dtype in (I64, I32, F64, F16, BF16):
            draw = Draw(f"{name}{dtype}")
            x, y = draw(4, 3, dtype=dtype, low=-9, high=9), draw(4, 3, dtype=dtype, low=1, high=9)
            yield f"{name} {dtype}", full, (x, y), {}
        if full != name:
            draw = Draw(f"{name}s")
            yield f"{name} scalar", f"{name}.Scalar", (draw(4, 3), 1.75), {}
            yield f"{name} int by int", f"{name}.Scalar", (draw(4, 3, dtype=I64, high=9), 3), {}
            yield f"{name} int by float", f"{name}.Scalar", (draw(4, 3, dtype=I64, high=9), 1.5), {}
    for mixed in (
        (I64, F32),
        (F16, F32),
        (BF16, F16),
        (U8, I8),
        (BOOL, I64),
        (BOOL, F32),
        (I32, I64),
    ):
        draw = Draw(str(mixed))
        x, y = (draw(3, 4, dtype=d, low=0, high=5) for d in mixed)
        for name in ("add.Tensor", "mul.Tensor", "maximum", "eq.Tensor", "lt.Tensor"):
            yield f"{name} {mixed}", name, (x, y), {}
    draw = Draw("more")
    x, y = draw(4, 5), draw(4, 5, low=0.5)
    yield "add alpha", "add.Tensor", (x, y), {"alpha": 2.5}
    yield "sub alpha", "sub.Tensor", (x, y), {"alpha": 3}
    yield "rsub alpha", "rsub.Scalar", (x, 2.0, 3), {}
    for mode in (None, "floor", "trunc"):
        for dtype in (F32, I64, I32):
            a, b = draw(5, 7, dtype=dtype, low=-9, high=9), draw(5, 7, dtype=dtype, low=1, high=6)
            yield f"div {mode} {dtype}", "div.Tensor_mode", (a, b), {"rounding_mode": mode}
            yield f"div {mode} {dtype} scalar", "div.Scalar_mode", (a, -3), {"rounding_mode": mode}
    yield "div of nothing", "div.Tensor_mode", (x, torch.zeros(5)), {"rounding_mode": "floor"}
    whole = torch.arange(60.0).reshape(3, 20)
    yield "div whole", "div.Tensor_mode", (whole, torch.tensor(7.0)), {"rounding_mode": "floor"}
    yield "floor_divide", "floor_divide", (x, y), {}
    yield "pow", "pow.Tensor_Tensor", (x.abs() + 0.1, y), {}
    yield "pow odd", "pow.Tensor_Tensor", (x, torch.tensor([2.0, -1.0, 3.0, 0.0, 0.5])), {}
    yield "pow ints", "pow.Tensor_Tensor", (draw.ids(6, 3, 4), draw.ids(5, 3, 4)), {}
    for e in (2, 3, 0.5, -1, -0.5, 2.3, 0):
        yield f"pow {e}", "pow.Tensor_Scalar", (x.abs() + 0.2, e), {}
        if isinstance(e, int) and e >= 0:
            yield f"pow {e} of ints", "pow.Tensor_Scalar", (draw.ids(9, 3, 4), e), {}
    yield "pow 20 of ints", "pow.Tensor_Scalar", (draw.ids(4, 3, 4), 20), {}
    yield "pow scalar", "pow.Scalar", (2.5, x), {}
    yield "pow scalar of ints", "pow.Scalar", (3, draw.ids(6, 3, 4)), {}
    yield "addcmul", "addcmul", (x, y, draw(5)), {"value": 0.5}
    yield "addcdiv", "addcdiv", (x, y, y), {"value": 2}
    yield "lerp", "lerp.Scalar", (x, y, 0.3), {}
    yield "lerp tensors", "lerp.Tensor", (x, y, draw(4, 1)), {}
    yield "logaddexp", "logaddexp", (x, y), {}
    for low, high in ((-1.0, 1.0), (None, 0.5), (0.25, None), (2, 1)):
        yield f"clamp {low} {high}", "clamp", (x, low, high), {}
    yield "clamp ints", "clamp", (draw.ids(9, 4, 5), 2, 6), {}
    yield "clamp tensors", "clamp.Tensor", (x, draw(5, high=0), draw(4, 1, low=0)), {}
    yield "clamp_min", "clamp_min", (x, 0.1), {}
    yield "clamp_max", "clamp_max", (x, 0.1), {}
    for kind in ("and", "or", "xor"):
        for dtype in (BOOL, I64, I32, U8, I8):
            a, b = (draw(4, 3, dtype=dtype, low=-9 if dtype in (I64, I8) else 0, high=99)
                    for _ in range(2))  # fmt: skip
            yield f"bitwise_{kind} {dtype}", f"bitwise_{kind}.Tensor", (a, b), {}
        yield f"bitwise_{kind} scalar", f"bitwise_{kind}.Scalar", (draw.ids(99, 4), 13), {}
        a, b = draw.ids(2, 4, 3), draw(4, 3, dtype=BOOL)
        yield f"logical_{kind}", f"logical_{kind}", (a, b), {}
    for dtype in (BOOL, I64, U8, I16):
        yield f"bitwise_not {dtype}", "bitwise_not", (draw(4, dtype=dtype, low=0, high=9),), {}
    yield "left shift", "bitwise_left_shift.Tensor", (draw.ids(99, 4), draw.ids(5, 4)), {}
    yield "right shift", "bitwise_right_shift.Tensor_Scalar", (draw.ids(99, 4) - 50, 2), {}
    c = draw(4, 5, dtype=BOOL)
    yield "where", "where.self", (c, x, y[0]), {}
    yield "where scalar", "where.ScalarOther", (c, x, -1.5), {}
    yield "where ints", "where.self", (c, draw.ids(9, 4, 5), draw.ids(9, 5)), {}
    yield "masked_fill", "masked_fill.Scalar", (x, c[0], -float("inf")), {}
    yield "masked_fill tensor", "masked_fill.Tensor", (x, c, torch.tensor(3.0)), {}


def all_cases() -> list[Case]:
    return [*unary(), *binary(), *more_cases(Draw), *wide_cases(Draw)]


CASES = all_cases()


def id_of(case: Case) -> str:
    return case[0]


@pytest.mark.parametrize("case", CASES, ids=id_of)
def test_operator(case: Case) -> None:
    _, target, args, kwargs = case
    only = kwargs.pop("only", None) if "only" in kwargs else None
    kinds = {t.dtype for t in args if isinstance(t, torch.Tensor)}
    rtol, atol = max((TOLERANCE.get(k, (2e-5, 2e-5)) for k in kinds), default=(2e-5, 2e-5))
    got, want = ours(target, args, kwargs, only)
    for g, w in zip(got, want, strict=True):
        assert not differs(g, torch.zeros_like(w) if "empty" in target else w, rtol, atol)


def core() -> dict[str, list[str]]:
    """The names of core ATen, and their overloads."""
    found = dict[str, list[str]]()
    for name in dir(torch.ops.aten):
        packet = getattr(torch.ops.aten, name)
        for kind in packet.overloads() if hasattr(packet, "overloads") else ():
            if torch.Tag.core in getattr(packet, kind).tags and kind != "out":
                found.setdefault(name, []).append(kind)
    return found


def test_core_aten_is_covered() -> None:
    """At least 150 of its 160 names, with all overloads; the others say why not."""
    rows = set(ROWS)
    target: Callable[[str, str], str] = lambda n, k: f"aten.{n}" + f".{k}" * (k != "default")  # noqa: E731
    whole = {n for n, kinds in core().items() if all(target(n, k) in rows for k in kinds)}
    missing = sorted(set(core()) - whole)
    assert len(whole) >= CORE, f"{len(whole)} of {len(core())}; without {missing}"
    assert not [n for n in missing if n not in REASONS], "no reason"


def test_every_row_has_a_case() -> None:
    tested = {f"aten.{target}" for _, target, _, _ in CASES}
    left = sorted(n for n in ROWS if n.startswith("aten.") and n not in tested)
    assert not left


def test_rows_have_the_parameters_of_their_schemas() -> None:
    """Names, order and defaults, but for those that change nothing."""
    for name, row in ROWS.items():
        if not name.startswith("aten."):
            continue
        schema = overload(name.removeprefix("aten."))._schema.arguments
        theirs = [a.name for a in schema]
        own = row.parameters
        assert [n for n in own if n in theirs] == [n for n in theirs if n in own], name
        assert not [n for n in theirs if n not in own and n not in SILENT], name
        for a in (a for a in schema if a.name in own and a.has_default_value()):
            default = own[a.name].default
            assert default is not own[a.name].empty, f"{name}: {a.name}"
            if isinstance(a.default_value, bool | int | float | str):
                assert default == a.default_value, f"{name}: {a.name}"
