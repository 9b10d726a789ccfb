"""Calls of ATen operators that norm, contract, pool, sample, derive; for numeric/test_aten.py."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from aten_more import Case, named

F32, F64, F16, BF16, I64, BOOL = (
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.bool,
)


def wide_cases(draw_of: Any) -> Iterator[Case]:
    for part in (normed, contracted, windowed, sampled, backward, composed):
        yield from part(draw_of(part.__name__))


def normed(draw: Any) -> Iterator[Case]:
    x, w, b = draw(2, 6, 5, 3), draw(6, low=0.5), draw(6)
    for shape, wide in (([3], True), ([5, 3], True), ([5, 3], False)):
        weight, bias = (draw(*shape), draw(*shape)) if wide else (None, None)
        yield named("native_layer_norm", x, shape, weight, bias, 1e-5)
        yield named("layer_norm", x, shape, weight, bias, 1e-5)
    yield named("layer_norm", draw(4, 8, dtype=BF16), [8], draw(8, dtype=BF16), draw(8, dtype=BF16))
    yield named("rms_norm", x, [3], draw(3))
    yield named("rms_norm", x, [5, 3], None, 1e-3)
    yield named("group_norm", x, 3, w, b)
    yield named("group_norm", x, 2)
    yield named("native_group_norm", x, w, b, 2, 6, 15, 3, 1e-5)
    mean, var = draw(6), draw(6, low=0.3, high=2.0)
    for z in (x, draw(4, 6)):
        yield named("_native_batch_norm_legit_no_training", z, w, b, mean, var, 0.1, 1e-5)
        yield named("_native_batch_norm_legit.no_stats", z, w, b, True, 0.1, 1e-5)
        yield named("_native_batch_norm_legit", z, w, b, mean, var, False, 0.1, 1e-5)
        yield named("native_batch_norm", z, None, None, mean, var, False, 0.1, 1e-5)
        yield named("batch_norm", z, w, b, mean, var, False, 0.1, 1e-5, True)
    yield named("batch_norm", x, w, b, None, None, True, 0.1, 1e-5, True)
    yield named("instance_norm", x, w, b, None, None, True, 0.1, 1e-5, True)
    yield named("instance_norm", x, w, b, mean, var, False, 0.1, 1e-5, True)


def contracted(draw: Any) -> Iterator[Case]:
    for dtype in (F32, F64, I64, F16, BF16):
        yield named("mm", draw(3, 5, dtype=dtype), draw(5, 4, dtype=dtype))
    yield named("mm", draw(3, 0), draw(0, 4))
    yield named("bmm", draw(2, 3, 5), draw(2, 5, 4))
    for a, b in (
        ((3,), (3,)),
        ((2, 3), (3,)),
        ((3,), (3, 2)),
        ((2, 1, 3, 4), (5, 4, 2)),
        ((4, 2, 3), (3, 5)),
    ):
        yield named("matmul", draw(*a), draw(*b))
    yield named("mv", draw(3, 4), draw(4))
    yield named("dot", draw(5), draw(5))
    yield named("outer", draw(3), draw(4))
    yield named("linear", draw(2, 3, 4), draw(5, 4), draw(5))
    yield named("linear", draw(4), draw(5, 4))
    m = draw(3, 5), draw(5, 4)
    yield named("addmm", draw(4), *m)
    yield named("addmm", draw(3, 4), *m, beta=0.5, alpha=2)
    yield named("addmm", torch.full((3, 4), float("nan")), *m, beta=0)
    yield named("baddbmm", draw(2, 1, 4), draw(2, 3, 5), draw(2, 5, 4), beta=2, alpha=0.5)
    yield named("addmv", draw(3), draw(3, 4), draw(4))
    yield named("einsum", "bij,bjk->bik", [draw(2, 3, 4), draw(2, 4, 5)])
    yield named("einsum", "ii->i", [draw(4, 4)])
    q, k, v = draw(2, 4, 3, 8), draw(2, 4, 5, 8), draw(2, 4, 5, 6)
    name = "scaled_dot_product_attention"
    yield named(name, q, k, v)
    yield named(name, q, k, v, None, 0.0, True)
    yield named(name, q, k, v, draw(3, 5), scale=0.3)
    mask = draw(2, 1, 3, 5, dtype=BOOL)
    mask[0, 0, 1] = False
    yield named(name, q, k, v, mask)
    yield named(name, q, k[:, :2], v[:, :2], enable_gqa=True)
    flash = "_scaled_dot_product_flash_attention_for_cpu"
    yield named(flash, q, k, draw(2, 4, 5, 8), only=[0])
    yield named(flash, q, k, draw(2, 4, 5, 8), 0.0, True, only=[0])
    x, one = draw(2, 4, 9, 7), draw(2, 4, 11)
    w = draw(6, 2, 3, 2)
    conv = ([1, 2], [2, 1], [1, 2], False, [0, 0], 2)
    yield named("convolution", x, w, draw(6), *conv)
    yield named("conv2d", x[0], w, None, [1, 2], [2, 1], [1, 2], 2)
    yield named("convolution", x, draw(5, 4, 1, 1), None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1)
    yield named("convolution", one, draw(4, 1, 3), draw(4), [2], [1], [1], False, [0], 4)
    up = ([2, 3], [1, 0], [1, 1], True, [1, 2], 2)
    yield named("convolution", x, draw(4, 3, 3, 4), draw(6), *up)
    yield named("convolution", draw(1, 2, 4, 3, 5), draw(3, 2, 2, 3, 2), draw(3),
                [1, 2, 1], [0, 1, 1], [1, 1, 2], False, [0, 0, 0], 1)  # fmt: skip
    yield named("conv1d", one, draw(6, 2, 3), draw(6), [2], [1], [2], 2)
    yield named("conv1d.padding", one, draw(3, 4, 4), None, [1], "same", [2])
    yield named("conv2d", x, w, draw(6), [1, 1], [1, 1], [1, 1], 2)
    yield named("conv2d", x, w, None, [2], [1], [1], 2)
    yield named("conv2d.padding", x, w, None, [1, 1], "same", [1, 2], 2)
    yield named("conv2d.padding", x, w, None, [2, 1], "valid", [1, 1], 2)
    yield named("conv3d", draw(1, 2, 4, 3, 5), draw(3, 2, 2, 2, 2))
    yield named("conv3d.padding", draw(1, 2, 4, 3, 5), draw(3, 2, 3, 2, 1), None, [1, 1, 1], "same")
    yield named("conv_transpose1d", one, draw(4, 3, 4), draw(3), [2], [1], [1])
    yield named("conv_transpose2d.input", x, draw(4, 3, 3, 2), None, [2, 2], [1, 0], [1, 0], 2)
    yield named("conv_transpose3d.input", draw(1, 2, 3, 2, 3), draw(2, 2, 2, 2, 2), None, [2, 1, 2])
    yield from encoders(draw)


def encoders(draw: Any) -> Iterator[Case]:
    """What torch calls for a layer of an encoder in inference; masks are true where they hide."""
    b, n, e, heads, wide = 2, 5, 12, 3, 20
    x, y = draw(b, n, e), draw(b, n, e)

    def weights(*shapes: tuple[int, ...]) -> list[Any]:
        return [draw(*shape, low=-0.5, high=0.5) for shape in shapes]

    attends = weights((3 * e, e), (3 * e,), (e, e), (e,))
    norms = weights((e,), (e,), (e,), (e,))
    feeds = weights((wide, e), (wide,), (e, wide), (e,))
    texts = torch.zeros(b, n, dtype=torch.bool)
    texts[1, 3:] = True
    later = torch.ones(n, n, dtype=torch.bool).triu(1)
    every = (later[None, None] | texts[:, None, None]).expand(b, heads, n, n).contiguous()
    masks: list[tuple[Any, ...]] = [(), (later, 0), (texts, 1), (every, 2)]
    layer, several = "_transformer_encoder_layer_fwd", "_native_multi_head_attention"
    for mask in masks:
        for gelu, before in ((False, False), (True, True)):
            options = (gelu, before, 1e-5, *norms, *feeds, *mask)
            yield named(layer, x, e, heads, *attends, *options)
        more = {"mask": mask[0], "mask_type": mask[1]} if mask else {}
        for average in (True, False):
            options = {"need_weights": True, "average_attn_weights": average, **more}
            yield named(several, x, x, x, e, heads, *attends, **options)
    yield named(several, x, y, y, e, heads, *attends)
    yield named(several, x, x, x, e, heads, *attends, need_weights=False, only=[0])


def windowed(draw: Any) -> Iterator[Case]:
    x = draw(2, 3, 9, 8)
    for args in (
        ([2, 2],),
        ([3, 2], [2, 1], [1, 1]),
        ([3, 3], [2, 2], [1, 1], [2, 1]),
        ([3, 3], [2, 2], [1, 0], [1, 1], True),
    ):
        yield named("max_pool2d_with_indices", x, *args)
        yield named("max_pool2d", x, *args)
    yield named("max_pool2d_with_indices", x[0], [2, 2], [1, 1])
    yield named("max_pool2d_with_indices", draw.ids(9, 1, 2, 6, 6), [3, 3], [2, 2])
    yield named("max_pool3d_with_indices", draw(1, 2, 5, 4, 6), [2, 2, 3], [2, 1, 2], [1, 0, 1])
    yield named("max_pool1d_with_indices", draw(2, 3, 9), [3], [2], [1])
    yield named("max_pool1d", draw(2, 3, 9), [3], [2], [1])
    yield named("max_pool3d", draw(1, 2, 5, 4, 6), [2, 2, 2])
    for args in (
        ([2, 2],),
        ([3, 2], [2, 1], [1, 1]),
        ([3, 3], [2, 2], [1, 1], False, False),
        ([3, 3], [2, 2], [1, 1], True, True),
        ([3, 3], [2, 2], [0, 1], True, False),
        ([3, 2], [2, 1], [1, 1], False, True, 5),
        ([3, 3], [2, 2], [0, 0], True, True, 4),
    ):
        yield named("avg_pool2d", x, *args)
    yield named("avg_pool2d", x[0], [2, 2])
    yield named("avg_pool3d", draw(1, 2, 5, 4, 6), [2, 2, 3], [2, 1, 2], [1, 0, 1])
    yield named("avg_pool1d", draw(2, 3, 9), [3], [2], [1])
    for size in ([1, 1], [3, 4], [5, 7], [9, 8]):
        yield named("_adaptive_avg_pool2d", x, size)
        yield named("adaptive_avg_pool2d", x, size)
        yield named("adaptive_max_pool2d", x, size, only=[0])
    yield named("_adaptive_avg_pool3d", draw(1, 2, 5, 4, 6), [2, 3, 4])
    yield named("adaptive_avg_pool3d", draw(1, 2, 5, 4, 6), [2, 3, 4])
    yield named("adaptive_avg_pool1d", draw(2, 3, 9), [4])
    yield named("im2col", x, [3, 2], [1, 2], [1, 0], [2, 1])
    columns = draw(2, 3 * 6, 24)
    yield named("col2im", columns, [5, 8], [2, 3], [1, 2], [0, 1], [1, 1])
    yield named("col2im", draw(3 * 4, 6), [5, 7], [2, 2], [1, 1], [0, 0], [2, 2])


def sampled(draw: Any) -> Iterator[Case]:
    x, line, cube = draw(2, 3, 5, 7), draw(2, 3, 6), draw(1, 2, 3, 4, 5)
    for size in ([10, 14], [8, 9], [3, 4], [5, 7], [1, 1]):
        yield named("upsample_nearest2d.vec", x, size, None)
        yield named("upsample_nearest2d", x, size)
        for align in (False, True):
            for target in ("upsample_bilinear2d", "upsample_bicubic2d"):
                yield named(f"{target}.vec", x, size, align, None)
                yield named(target, x, size, align)
        for target in ("_upsample_bilinear2d_aa.vec", "_upsample_bicubic2d_aa.vec"):
            yield named(target, x, size, False, None)
    for scales in ([2.0, 2.0], [1.5, 0.7]):
        yield named("upsample_nearest2d.vec", x, None, scales)
        yield named("upsample_bilinear2d.vec", x, None, False, scales)
        yield named("upsample_bilinear2d.vec", x, None, True, scales)
    yield named("upsample_nearest1d.vec", line, [9], None)
    yield named("upsample_nearest1d", line, [12], 2.0)
    yield named("upsample_nearest3d.vec", cube, [6, 4, 10], None)
    yield named("upsample_linear1d.vec", line, [10], False, None)
    yield named("upsample_trilinear3d.vec", cube, [4, 6, 5], True, None)
    grid = draw(2, 4, 3, 2, low=-1.3, high=1.3)
    for mode in range(3):
        for padding in range(3):
            for align in (False, True):
                yield named("grid_sampler_2d", x, grid, mode, padding, align)
    yield named("grid_sampler", x, grid, 0, 0, False)
    yield named("grid_sampler_3d", cube, draw(1, 2, 3, 2, 3, low=-1.2, high=1.2), 0, 0, True)
    a, b = draw(2, 4, 3), draw(2, 5, 3)
    for p in (0.0, 1.0, 2.0, 3.0, float("inf")):
        yield named("_cdist_forward", a, b, p, None)
        yield named("_pdist_forward", draw(5, 3), p)
    yield named("cdist", a, b)
    yield named("_pdist_forward", draw(1, 3))
    w, ids, bags = draw(9, 4), draw.ids(9, 12), torch.tensor([0, 3, 3, 8])
    for mode in range(3):
        yield named("_embedding_bag", w, ids, bags, False, mode, only=[0])
        ends = torch.tensor([0, 3, 3, 12])
        yield named("_embedding_bag", w, ids, ends, False, mode, False, None, True, only=[0])
    yield named("_embedding_bag", w, ids, bags, False, 0, False, draw(12), only=[0])
    yield named("_embedding_bag", w, ids, bags, False, 0, False, None, False, 2, only=[0])


def backward(draw: Any) -> Iterator[Case]:
    yield named("embedding_dense_backward", draw(2, 3, 4), draw.ids(5, 2, 3), 5, 2, False)
    x = draw(2, 3, 9, 8)
    for size in ((3, 4), (4, 5)):
        yield named("_adaptive_avg_pool2d_backward", draw(2, 3, *size), x)
    for args, out in (
        (([3, 2], [2, 1], [1, 1], False, True, None), (5, 9)),
        (([3, 2], [2, 1], [1, 1], False, False, None), (5, 9)),
        (([2, 2], [], [0, 0], False, True, 3), (4, 4)),
    ):
        yield named("avg_pool2d_backward", draw(2, 3, *out), x, *args)
    values, at = torch.ops.aten.max_pool2d_with_indices(x, [3, 3], [2, 2], [1, 1])
    args = ([3, 3], [2, 2], [1, 1], [1, 1], False, at)
    yield named("max_pool2d_with_indices_backward", draw(*values.shape), x, *args)
    for groups, steps in ((1, [1, 1]), (3, [2, 1])):
        w = draw(6, 3 // groups, 3, 2)
        out = torch.ops.aten.convolution(x, w, None, steps, [1, 0], [1, 2], False, [0, 0], groups)
        args = (x, w, [6], steps, [1, 0], [1, 2], False, [0, 0], groups, [True, True, True])
        yield named("convolution_backward", draw(*out.shape), *args)
    z, w, b = draw(4, 3, 5), draw(5), draw(5)
    _, mean, root = torch.ops.aten.native_layer_norm(z, [5], w, b, 1e-5)
    yield named("native_layer_norm_backward", draw(4, 3, 5), z, [5], mean, root, w, b, [True] * 3)
    z, w = draw(2, 6, 5, 3), draw(6)
    _, mean, root = torch.ops.aten.native_group_norm(z, w, None, 2, 6, 15, 3, 1e-5)
    yield named(
        "native_group_norm_backward", draw(2, 6, 5, 3), z, mean, root, w, 2, 6, 15, 3, [True] * 3
    )
    yield named("threshold_backward", draw(3, 4), draw(3, 4), 0)
    s = draw(3, 4).softmax(1)
    yield named("_softmax_backward_data", draw(3, 4), s, 1, F32)
    yield named("_log_softmax_backward_data", draw(3, 4), s.log(), 1, F32)


def composed(draw: Any) -> Iterator[Case]:
    x, y = draw(3, 4), draw(3, 4)
    y[0, 1] = float("nan")
    yield named("diff", x)
    yield named("diff", x, 2, 0)
    yield named("diff", draw.ids(9, 5), 1, -1, torch.tensor([3]), torch.tensor([7]))
    yield named("_weight_norm", draw(4, 3, 2), draw(4, 1, 1))
    yield named("_weight_norm", draw(4, 3, 2), draw(1, 1, 2), 2)
    parts = [draw(2), draw(3), draw(4)]
    yield named("meshgrid", parts)
    yield named("meshgrid.indexing", parts, indexing="xy")
    yield named("broadcast_to", draw(3, 1), [2, 3, 4])
    for target in ("hstack", "vstack"):
        yield named(target, [draw(3), draw(3)])
        yield named(target, [draw(3, 2), draw(3, 2)])
    yield named("tensor_split.sections", draw(7, 3), 3)
    yield named("cosine_similarity", x, draw(3, 4))
    edges = torch.tensor([-1.0, 0.0, 0.5, 2.0])
    for right in (False, True):
        yield named("bucketize.Tensor", torch.cat([x[0], edges]), edges, right=right)
        yield named("searchsorted.Tensor", edges.expand(3, 4).contiguous(), x, right=right)
    yield named("searchsorted.Tensor", edges, x, side="right")
    for target in ("channel_shuffle", "native_channel_shuffle"):
        yield named(target, draw(2, 6, 2, 3), 3)
    yield named("fmax", x, y)
    yield named("fmin", x, y)
    yield named("trace", draw(3, 5))
    for name, gates in (("lstm", 4), ("gru", 3), ("rnn_tanh", 1), ("rnn_relu", 1)):
        for biases, layers, both, first in (
            (True, 2, True, True),
            (False, 1, False, False),
        ):
            wide, out, ways, params = 5, 6, 1 + both, list[Any]()
            for layer in range(layers):
                for _ in range(ways):
                    here = wide if layer == 0 else out * ways
                    params += [draw(gates * out, here) * 0.3, draw(gates * out, out) * 0.3]
                    params += [draw(gates * out), draw(gates * out)] if biases else []
            seq = draw(2, 4, wide) if first else draw(4, 2, wide)
            state = draw(layers * ways, 2, out)
            hx = [state, draw(layers * ways, 2, out)] if name == "lstm" else state
            yield named(f"{name}.input", seq, hx, params, biases, layers, 0.0, False, both, first)
    w, r, b, c = draw(24, 5) * 0.3, draw(24, 6) * 0.3, draw(24), draw(24)
    for back, biases in ((False, True), (True, True), (True, False)):
        weights = (w, r, b, c) if biases else (w, r, b * 0, c * 0)
        args = (*weights, draw(1, 2, 6), draw(1, 2, 6), back, [], 2, 6, 1, biases)
        rest = (False, False, False)
        yield named("mkldnn_rnn_layer", draw(4, 2, 5), *args, *rest, only=[0, 1, 2])
