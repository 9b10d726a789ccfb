"""The operations that workloads are written in, once per framework.

A back end is a module; its tensors have ``+ - * / @`` and unary minus. ``reference`` (float64
numpy) says what each operation means. Every other module says it the way its users would: by a
fused operator where the framework has one, by the nodes of the usual exporters in ONNX, naively in
lumc.

linear(x, w, b=None)      x [.., k], w [n, k], b [n] -> [.., n]
conv3x3(x, w)             x [n, c, h, w], w [o, c, 3, 3], padding 1
attention(q, k, v, causal=False)    [1, h, s, d]; k and v may have fewer heads (grouped queries)
softmax(x), layer_norm(x, g, b, eps), rms_norm(x, g, eps)       over the last axis
batch_norm(x, mean, variance, g, b, eps)                        per channel of [n, c, h, w]
gelu(x), gelu_tanh(x), silu(x), relu(x), step(x), tanh(x), exp(x), log(x), rsqrt(x)
sum(x, axis), mean(x, axis), max(x, axis)                       keep the axis with extent 1
permute(x, order), reshape(x, shape), concat(xs, axis), halves(x), take(table, ids)
"""
