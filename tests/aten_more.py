"""Calls of ATen operators that move, look up, write, order and reduce; for numeric/test_aten.py."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

Case = tuple[str, str, tuple[Any, ...], dict[str, Any]]
F32, F64, F16, BF16, I64, BOOL = (
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.bool,
)
END = 2**63 - 1


def named(target: str, *args: Any, **kwargs: Any) -> Case:
    """A case that is called as its operator and arguments are."""
    said = ", ".join(
        str(list(a.shape)) if isinstance(a, torch.Tensor) else str(a)[:24] for a in args
    )
    more = "".join(f" {k}={v}" for k, v in kwargs.items() if not isinstance(v, torch.Tensor))
    return f"{target} {said}{more}"[:110], target, args, kwargs


def more_cases(draw_of: Any) -> Iterator[Case]:
    for part in (moved, created, looked, written, ordered, reduced, sized, others, emptied):
        yield from part(draw_of(part.__name__))


def moved(draw: Any) -> Iterator[Case]:
    x, y = draw(2, 3, 4), draw(3, 1, 5)
    for size in ([6, 4], [24], [2, -1], [1, 2, 3, 4], [-1, 3, 2, 2]):
        yield named("view", x, size)
    for target in ("_unsafe_view", "view_copy", "reshape"):
        yield named(target, x, [4, 6])
    yield named("_reshape_alias", x, [4, 6], [6, 1])
    yield named("view", draw(0, 4), [0, 2, 2])
    yield named("view", draw(0, 4), [4, -1])
    yield named("view", draw(1), [])
    yield named("view_as", x, draw(4, 3, 2))
    for a, b in ((0, -1), (1, 2), (0, 1)):
        yield named("flatten.using_ints", x, a, b)
    yield named("flatten.using_ints", draw(), 0, -1)
    yield named("ravel", x)
    yield named("unflatten.int", x, 2, [2, -1])
    yield named("permute", x, [2, 0, -2])
    yield named("permute", draw(), [])
    for target in ("transpose.int", "swapdims", "swapaxes"):
        yield named(target, x, 0, -1)
    yield named("t", draw(3, 4))
    yield named("t", draw(3))
    yield named("numpy_T", x)
    for target in ("movedim.int", "moveaxis.int"):
        yield named(target, x, 0, 2)
    for target in ("movedim.intlist", "moveaxis.intlist"):
        yield named(target, x, [0, 2], [1, 0])
    yield named("expand", y, [2, 3, 4, 5])
    yield named("expand", y, [-1, 4, -1])
    yield named("expand", draw(1), [0])
    yield named("expand_as", y, draw(2, 3, 4, 5))
    yield named("squeeze", y)
    yield named("squeeze.dim", y, 1)
    yield named("squeeze.dim", y, 0)
    yield named("squeeze.dims", draw(1, 3, 1), [0, 1, 2])
    yield named("squeeze.dim", draw(), 0)
    for d in (0, 1, -1, 3):
        yield named("unsqueeze", x, d)
    yield named("unsqueeze", draw(), 0)
    yield named("select.int", x, 1, 2)
    yield named("select.int", x, -1, -1)
    for start, end, step in (
        (1, END, 1),
        (0, 2, 1),
        (-3, -1, 1),
        (0, 4, 2),
        (3, 1, 1),
        (None, None, 3),
    ):
        yield named("slice.Tensor", x, 2, start, end, step)
    yield named("narrow", x, 1, 1, 2)
    yield named("narrow", x, 1, -2, 1)
    yield named("unfold", draw(2, 9), 1, 3, 2)
    for off in (0, 1, -1, 3, -2):
        yield named("diagonal", draw(4, 5), off)
    yield named("diagonal", draw(2, 4, 3), 1, 2, 0)
    yield named("as_strided", draw(4, 5), [2, 3], [5, 2], 1)
    yield named("as_strided", draw(4, 5), [3, 3], [1, 1])
    for dtype in (F32, F16, I64, BOOL):
        parts = [draw(2, n, dtype=dtype) for n in (3, 1, 2)]
        yield named("cat", parts, 1)
    yield named("cat", [draw(2, 3, dtype=I64), draw(1, 3)], 0)
    yield named("cat", [draw(0), draw(2, 3)], 0)
    yield named("cat", [draw(2, 0), draw(2, 3)], -1)
    for target in ("concat", "concatenate"):
        yield named(target, [draw(2), draw(3)])
    for d in (0, 1, -1):
        yield named("stack", [draw(2, 3), draw(2, 3)], d)
    for target in ("split_with_sizes", "split.sizes", "split"):
        yield named(target, x, [1, 3], 2)
    for target in ("split.Tensor", "unsafe_split.Tensor"):
        yield named(target, x, 3, -1)
    yield named("chunk", draw(7, 2), 3)
    yield named("unbind.int", x, 1)
    yield named("flip", x, [0, -1])
    yield named("flip", x, [])
    yield named("roll", x, [1, -1], [0, 2])
    yield named("roll", x, [5])
    for r in ([2, 1, 3], [2, 1, 1, 2], [0, 1, 1]):
        yield named("repeat", x, r)
    yield named("tile", x, [2])
    yield named("repeat_interleave.self_int", x, 2, 1)
    yield named("repeat_interleave.self_int", x, 2)
    for args in ((1, 1, 3), (1, 0, END), (2, -2, END), (2, 0, END, 2), (2, 1, END, 3)):
        start, end, step = args[1], args[2], (*args, 1)[3] if len(args) > 3 else 1
        shape = [2, 3, 4]
        shape[args[0]] = len(range(*slice(start, end, step).indices(shape[args[0]])))
        yield named("slice_scatter", x, draw(*shape), *args)
    yield named("select_scatter", x, draw(2, 4), 1, -2)
    for k in (0, 1, -2):
        yield named("tril", draw(2, 4, 5), k)
        yield named("triu", draw(4, 3), k)
    yield named("constant_pad_nd", x, [1, 2, 0, 1], 1.5)
    yield named("constant_pad_nd", x, [-1, 2, 1, -1])
    yield named("constant_pad_nd", draw(2, 3, dtype=I64), [1, 1], 7)
    for rank, pads in ((1, [2, 1]), (2, [1, 2, 0, 1]), (3, [1, 0, 1, 1, 0, 1])):
        z = draw(2, *(3, 4, 5)[:rank])
        yield named(f"reflection_pad{rank}d", z, pads)
        yield named(f"replication_pad{rank}d", z, pads)
    for mode in ("constant", "reflect", "replicate", "circular"):
        yield named("pad", x, [1, 2], mode)
    yield named("pixel_shuffle", draw(2, 8, 3, 2), 2)
    yield named("pixel_unshuffle", draw(2, 2, 6, 4), 2)
    yield named("copy", x, draw(3, 4))
    yield named("copy", x, draw(4, dtype=I64))


def created(draw: Any) -> Iterator[Case]:
    x = draw(2, 3)
    for dtype in (F32, I64, BOOL, F16):
        yield named("full", [2, 3], 1, dtype=dtype)
        yield named("_to_copy", x, dtype=dtype)
        yield named("_to_copy", draw(3, dtype=I64, low=-3, high=300), dtype=dtype)
        yield named("to.dtype", draw(3, dtype=BOOL), dtype)
        yield named("ones", [2], dtype=dtype)
        yield named("zeros", [0, 2], dtype=dtype)
        yield named("full_like", x, 1, dtype=dtype)
    for value in (2, 2.5, True):
        yield named("full", [3], value)
        yield named("scalar_tensor", value)
    yield named("full_like", x, 2.5)
    yield named("to.dtype_layout", x, dtype=F64)
    yield named("to.device", x, torch.device("cpu"), F64)
    yield named("to.other", x, draw(1, dtype=F64))
    yield named("type_as", x, draw(1, dtype=I64))
    yield named("lift_fresh", x)
    yield named("lift_fresh_copy", x)
    yield named("positive", x)
    yield named("fill.Scalar", x, 3)
    yield named("fill.Tensor", x, torch.tensor(4.5))
    yield named("zero", x)
    yield named("new_full", x, [2], 3)
    yield named("new_ones", x, [2, 1])
    yield named("new_zeros", x, [2, 1], dtype=I64)
    for args in ((0, 5), (2, 9, 3), (5, 0, -2), (0, 1, 0.15), (0.5, 4.0)):
        yield named("arange.start_step", *args)
    yield named("arange.start_step", 0, 5, dtype=F32)
    yield named("arange", 4)
    yield named("arange", 2.5)
    yield named("arange.start", 2, 6, dtype=F16)
    yield named("linspace", -1.0, 2.0, 7)
    yield named("linspace", 3, 3, 1)
    yield named("eye", 3)
    yield named("eye.m", 2, 4, dtype=I64)


def others(draw: Any) -> Iterator[Case]:
    """Other names of operators, and what gives any values."""
    x, y, c = draw(3, 4), draw(3, 4, low=0.5), draw(3, 4, dtype=BOOL)
    for name in ("multiply", "divide", "subtract", "true_divide"):
        yield named(f"{name}.Tensor", x, y)
        yield named(f"{name}.Scalar", x, 2.5)
    yield named("divide.Tensor_mode", x, y, rounding_mode="trunc")
    yield named("divide.Scalar_mode", x, 0.7, rounding_mode="floor")
    yield named("floor_divide.Scalar", x, 0.7)
    yield named("max.other", x, y)
    yield named("min.other", x, y)
    yield named("clamp_min.Tensor", x, y)
    yield named("clamp_max.Tensor", x, y)
    yield named("where.ScalarSelf", c, 1.5, x)
    yield named("where.Scalar", c, 1.5, 2.5)
    n = draw.ids(99, 4)
    for name in ("__and__", "__or__"):
        yield named(f"{name}.Tensor", n, draw.ids(99, 4))
        yield named(f"{name}.Scalar", n, 12)
        yield named(f"{name}.Tensor", c, draw(3, 4, dtype=BOOL))
    yield named("bitwise_left_shift.Tensor_Scalar", n, 3)
    yield named("bitwise_right_shift.Tensor", n, draw.ids(4, 4))
    yield named("_prelu_kernel", x, y)
    yield named("alpha_dropout", x, 0.5, False)
    yield named("feature_dropout", x, 0.5, False)
    yield named("numel", x)


def emptied(draw: Any) -> Iterator[Case]:
    """Tensors whose values mean nothing: of the right shape and dtype."""
    x = draw(3, 4)
    yield named("empty.memory_format", [2, 3], dtype=F64)
    yield named("empty_like", x)
    yield named("empty_permuted", [2, 3], [1, 0])
    yield named("empty_strided", [2, 3], [1, 2])
    yield named("new_empty", x, [2])


def looked(draw: Any) -> Iterator[Case]:
    w, x = draw(7, 4), draw(3, 5, 6)
    yield named("embedding", w, draw.ids(7, 2, 3))
    yield named("embedding", w, draw.ids(7), 2)
    yield named("index_select", x, 1, draw.ids(5, 4))
    yield named("index_select", x, -1, torch.tensor(2))
    yield named("index_select", draw(), 0, torch.tensor([0]))
    yield named("gather", x, 1, draw.ids(5, 3, 2, 4))
    yield named("gather", x, -1, draw.ids(6, 3, 5, 1))
    yield named("gather", draw(), 0, torch.tensor(0))
    yield named("take_along_dim", x, draw.ids(5, 3, 2, 6), 1)
    yield named("take_along_dim", draw(4, 5), draw.ids(20, 3))
    for indices in (
        [draw.ids(3, 4)],
        [None, draw.ids(5, 2, 2)],
        [draw.ids(3, 4), draw.ids(5, 4)],
        [None, draw.ids(5, 4, 1), draw.ids(6, 3)],
        [draw.ids(3, 4), None, draw.ids(6, 4)],
        [draw.ids(3, 2), draw.ids(5, 2), draw.ids(6, 2)],
        [None, None, torch.tensor(-1)],
        [draw.ids(3, 2) - 3, draw.ids(5, 1)],
        [torch.zeros(0, dtype=I64)],
    ):
        yield named("index.Tensor", x, indices)
    yield named("_unsafe_index.Tensor", x, [None, draw.ids(5, 3)])
    yield named("one_hot", draw.ids(4, 2, 3), 5)


def written(draw: Any) -> Iterator[Case]:
    x = draw(3, 5, 6)
    first, second = draw.order(3)[:2], draw.order(5)[:2]
    for indices, values in (
        ([first], draw(2, 5, 6)),
        ([first], draw(1)),
        ([first, second], draw(2, 6)),
        ([None, second], draw(3, 2, 6)),
        ([None, second], draw(6)),
        ([first, None, torch.tensor([4, 1])], draw(2, 5)),
        ([None, second, draw.order(6)[:2] - 6], draw(3, 2)),
    ):
        yield named("index_put", x, indices, values)
        yield named("index_put", x, indices, values, True)
    yield named("index_put", x, [draw.ids(3, 6), draw.ids(5, 6)], draw(6, 6), True)
    yield named("index_put", x, [draw(3, 5, 6, dtype=BOOL)], torch.tensor(7.0))
    yield named("index_put", x, [draw(3, 5, dtype=BOOL)], draw(6))
    yield named("_unsafe_index_put", x, [first], draw(2, 5, 6))
    rows = torch.stack([draw.order(5)[:3] for _ in range(18)]).reshape(3, 6, 3).transpose(1, 2)
    few = rows[:2, :, :4]
    for at in (rows, few):
        yield named("scatter.src", x, 1, at, draw(3, 5, 6))
        yield named("scatter.value", x, 1, at, 2.5)
        yield named("scatter_add", x, 1, draw.ids(5, *at.shape), draw(*at.shape))
    yield named("scatter.value", x, 1, draw.ids(5, 3, 5, 6), 1.5)
    yield named("scatter.src", draw(), 0, torch.tensor(0), draw())
    yield named("scatter_add", draw(4, dtype=I64), 0, draw.ids(4, 9), draw.ids(9, 9))
    for how in ("sum", "prod", "amax", "amin", "mean"):
        for own in (True, False):
            at, src = draw.ids(5, 3, 4, 6), draw(3, 4, 6)
            yield named("scatter_reduce.two", x, 1, at, src, how, include_self=own)
    at, src = draw.ids(5, 9), draw.ids(9, 9)
    yield named("scatter_reduce.two", draw.ids(9, 5), 0, at, src, "amin", include_self=False)
    yield named("index_add", x, 1, draw.ids(5, 3), draw(3, 3, 6), alpha=2)
    yield named("index_fill.int_Scalar", x, 1, torch.tensor([0, -1]), 3.5)
    mask = draw(3, 5, 6, dtype=BOOL)
    yield named("masked_scatter", x, mask, draw(90))
    yield named("masked_scatter", x, mask[0], draw(90))


def ordered(draw: Any) -> Iterator[Case]:
    x = draw(3, 7, 2)
    for k, dim, largest in ((3, 1, True), (7, 1, False), (1, -1, True), (0, 0, True)):
        yield named("topk", x, k, dim, largest)
    yield named("topk", draw(2, 1500), 3)
    yield named("topk", draw(), 1)
    for dim, down in ((1, False), (-1, True), (0, False)):
        yield named("sort", x, dim, down)
        yield named("argsort", x, dim, down)
    yield named("sort", draw.order(120).reshape(3, 40), 1)
    yield named("sort", draw(0), 0)
    yield named("sort", draw(), 0)
    yield named("sort.stable", draw.ids(4, 9), stable=True)
    yield named("argsort.stable", draw.ids(4, 9), stable=True)
    yield named("kthvalue", x, 3, 1)
    yield named("kthvalue", x, 3, 1, True)


def reduced(draw: Any) -> Iterator[Case]:
    x, n = draw(3, 4, 5), draw.ids(9, 3, 4)
    for dim in ([0], [1, -1], None, []):
        for keep in (False, True):
            for target in ("sum.dim_IntList", "mean.dim", "any.dims", "all.dims"):
                yield named(target, x, dim, keep)
            for target in ("var.correction", "std.correction", "var_mean.correction"):
                yield named(target, x, dim, correction=0, keepdim=keep)
            if dim is not None:
                yield named("amax", x, dim, keep)
                yield named("amin", x, dim, keep)
    for dtype in (F16, BF16, F64):
        z = draw(4, 6, dtype=dtype)
        for target in ("sum.dim_IntList", "mean.dim", "amax"):
            yield named(target, z, [1])
    for target in ("sum", "mean", "any", "all", "max", "min", "prod", "var", "std"):
        yield named(target, draw(3, 4))
    for target in ("sum", "any", "all", "max", "min", "prod"):
        yield named(target, n)
    yield named("sum", draw(3, 4, dtype=BOOL))
    yield named("sum", x, dtype=F64)
    yield named("sum.dim_IntList", draw(0, 3), [0])
    yield named("mean.dim", draw(0, 3), [0])
    yield named("sum.dim_IntList", draw(), [0])
    yield named("mean", n, dtype=F32)
    yield named("prod.dim_int", x, 1, True)
    yield named("prod.dim_int", draw(0, 3), 0)
    for target in ("max.dim", "min.dim"):
        yield named(target, x, 1)
        yield named(target, n, -1, True)
        yield named(target, draw(), 0)
    for target in ("argmax", "argmin"):
        for dim, keep in ((None, False), (1, False), (-1, True)):
            yield named(target, x, dim, keep)
        yield named(target, n, 1)
    for target in ("any.dim", "all.dim"):
        yield named(target, draw(3, 4, dtype=BOOL), 1, True)
    yield named("aminmax", x, dim=1)
    yield named("count_nonzero", n)
    yield named("count_nonzero.dim_IntList", n, [1])
    for correction in (None, 1, 2, 5):
        yield named("var.correction", x, [1], correction=correction)
    yield named("var.correction", draw(1, 3), [0])
    yield named("var.dim", x, [0, 1], False)
    yield named("std.dim", x, [1], True, True)
    for dim in (0, 1, -1):
        yield named("cumsum", x, dim)
        yield named("cumprod", x, dim)
    yield named("cumsum", n, 1)
    yield named("cumsum", draw(3, 4, dtype=BOOL), 0)
    yield named("cumsum", draw(), 0)
    yield named("logsumexp", x, [1, 2])
    yield named("logsumexp", x * 100, [0], True)
    for ord in (2, 1, 0, 3, 0.5, float("inf"), -float("inf")):
        yield named("linalg_vector_norm", x, ord, [1])
    yield named("linalg_vector_norm", x)
    yield named("linalg_vector_norm", x, 2, [-1], True, dtype=F64)
    yield named("norm.Scalar", x)
    yield named("norm.ScalarOpt_dim", x, 1, [1], True)
    yield named("norm.ScalarOpt_dim", x, None, [1])
    for target in ("_softmax", "_log_softmax"):
        for dim in (0, -1):
            yield named(target, x, dim, False)
        yield named(target, draw(), 0, False)
        yield named(target, draw(3, 4, dtype=BF16), 1, False)
    yield named("softmax.int", x, 1)
    yield named("softmax.int", draw(2, 3, dtype=F16), 1, F32)
    yield named("log_softmax.int", x, 1)
    yield named("_safe_softmax", x, 1)


def sized(draw: Any) -> Iterator[Case]:
    x = draw(2, 3, 4)
    yield named("sym_size.int", x, -1)
    yield named("sym_numel", x)
    yield named("sym_stride.int", x, 0)
