"""The .lg form: canonical text, everything that can be written, and where errors point."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graph_reference import RandomGraph
from lumc.errors import Exit, LumcError
from lumc.graph.builder import Builder
from lumc.graph.expr import add, axis, num
from lumc.graph.graph import Iota, Read, Scalar, WeightFile
from lumc.graph.ops import DType, Op
from lumc.graph.text import parse_graph, print_graph
from lumc.graph.verify import verify_graph

SHA = "3fa9a6f1b2c3d4e5f60718293a4b5c6d7e8f90a1b2c3d4e5f60718293a4b5c6d"

WRITTEN = f"""
# RUN: a header of comments may come first
lumc graph 1
dim    b in 1..64          # a batch
dim    s in 16..2048 multiple 16
file   "mlp \\"x\\".safetensors" size 1234 sha256 {SHA}

input  x  f32[b, 784]
weight w1 f32[784, 128]  "mlp \\"x\\".safetensors" "fc1.weight"
weight b1 f32[128]       "mlp \\"x\\".safetensors" "fc1.bias"
state  kc f16[8, 4096, 64]
input  new f16[8, s, 64]
input  input f32[3, 28]
input  f32 f32[]

t0 f32[b, n, k] = mul x[b, k], w1[k, n]
t1 f32[b, n]    = sum k of t0[b, n, k]
t2 f32[b, n]    = add t1[b, n], b1[n]
p0 f32[c, y:30] = add input[c, y - 1] if 0 <= y - 1 < 28, 0.5
m  bool[q:10, k:10] = lt i64(q), i64(2*(k + 1) - 2)
z  f32[q, k] = mul m[q, k], f32(-inf)
z2 f32[q, k] = add z[q, k], f32(nan) if 0 <= q < 3 and 2 <= k < s - 1
h  f16[] = contiguous f16(0.1)
u  f32[] = max k:9 of input[k // 3, (k % 3) * 2 + 1]
i3 f32[k:3] = add f32(-k), f32[]
v  bool[i:2] = add bool(true), false
r  f32[i:128] = contiguous w1[(3*i + i) // 4, 127 - i]
output h = t2
output t = z2
output in = x
update kc[q, j + 3, r] = new[q, j, r]
"""

PRINTED = f"""lumc graph 1
dim b in 1..64
dim s in 16..2048 multiple 16
file "mlp \\"x\\".safetensors" size 1234 sha256 {SHA}
weight w1 f32[784, 128] "mlp \\"x\\".safetensors" "fc1.weight"
weight b1 f32[128] "mlp \\"x\\".safetensors" "fc1.bias"
state kc f16[8, 4096, 64]

input x f32[b, 784]
input new f16[8, s, 64]
input input f32[3, 28]
input f32 f32[]
t0 f32[b, n:128, k:784] = mul x[b, k], w1[k, n]
t1 f32[b, n:128] = sum k:784 of t0[b, n, k]
t2 f32[b, n:128] = add t1[b, n], b1[n]
p0 f32[c:3, y:30] = add input[c, y - 1] if 0 <= y - 1 < 28, 0.5
m bool[q:10, k:10] = lt i64(q), i64(2*k)
z f32[q:10, k:10] = mul m[q, k], f32(-inf)
z2 f32[q:10, k:10] = add z[q, k], nan if 0 <= q < 3 and 2 <= k < s - 1
h f16[] = contiguous f16(0.1)
u f32[] = max k:9 of input[k // 3, 2*(k % 3) + 1]
i3 f32[k:3] = add f32(-k), f32[]
v bool[i:2] = add bool(true), false
r f32[i:128] = contiguous w1[i, -i + 127]
output h = t2
output t = z2
output in = x
update kc[d0, d1 + 3, d2] = new[d0, d1, d2]
"""


def test_written_text_becomes_canonical_text():
    graph = parse_graph(WRITTEN, "a.lg")
    verify_graph(graph)
    assert print_graph(graph) == PRINTED
    assert print_graph(parse_graph(PRINTED)) == PRINTED
    assert graph.entries[0].nodes[0].origin == "a.lg:16"
    assert graph.weights[0].file == WeightFile('mlp "x".safetensors', 1234, SHA)
    assert (graph.weights[1].key, graph.weights[1].op) == ("fc1.bias", "weight")


def test_several_entries_share_weights_and_states():
    text = f"""lumc graph 1
file "w" size 9 sha256 {SHA}
weight w f32[3] "w" "w"
state st f32[3]

entry prefill
input x f32[3]
t0 f32[i:3] = add x[i], st[i]
output y = t0
update st[i] = t0[i]

entry decode
input x f32[2]
t0 f32[i:2] = mul x[i], w[i]
output y = t0
"""
    graph = parse_graph(text)
    verify_graph(graph)
    assert print_graph(graph) == text
    assert graph.entries[1].nodes[0].operands[1].source is graph.weights[0]


def test_paths_can_be_replaced():
    graph = parse_graph(WRITTEN, path=lambda p: f"/models/{p}")
    assert graph.weights[0].file.path == '/models/mlp "x".safetensors'
    assert 'file "f0" size' in print_graph(graph, lambda f: "f0")
    assert 'f32[128] "f0" "fc1.bias"' in print_graph(graph, lambda f: "f0")


def test_a_weight_without_a_file_cannot_be_printed():
    b = Builder()
    b.leaf("weight", "w", DType.F32, (3,))
    b.finish()
    with pytest.raises(LumcError, match="weight 'w' is in no file"):
        print_graph(b.graph())


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32))
def test_built_graphs_come_back(seed):
    graph = RandomGraph(np.random.default_rng(seed)).graph
    text = print_graph(graph)
    again = parse_graph(text)
    verify_graph(again)
    assert print_graph(again) == text


SCALARS = {
    DType.F32: [0.0, -0.0, 1, 0.1, 1e30, 1.5e-45, math.inf, -math.inf, math.nan],
    DType.F64: [5e-324, 1.7976931348623157e308],
    DType.F16: [65504.0],
    DType.I64: [0, -(2**63), 2**63 - 1],
    DType.I8: [-128, 127],
    DType.U8: [0, 255],
    DType.BOOL: [True, False],
}


@pytest.mark.parametrize(("dtype", "value"), [(d, v) for d, vs in SCALARS.items() for v in vs])
def test_scalars_come_back(dtype, value):
    b = Builder()
    b.node(Op.ADD, [Scalar(dtype, value), Scalar(dtype, value)], [])
    b.outputs.append(("y", b.nodes[0]))
    b.finish()
    text = print_graph(b.graph())
    for operand in parse_graph(text).entries[0].nodes[0].operands:
        assert operand.dtype is dtype and repr(operand.value) == repr(type(operand.value)(value))
    assert print_graph(parse_graph(text)) == text


def test_a_constant_index_is_a_scalar():
    b = Builder()
    n = b.node(Op.ADD, [Iota(DType.U8, num(-3)), Iota(DType.U8, add("i", -3))], [("i", 3)])
    assert n.operands[0] == Scalar(DType.U8, 253)
    n = b.node(Op.CONTIGUOUS, [Iota(DType.F16, num(7))], [])
    assert repr(n.operands[0].value) == "7.0"


def test_index_maps_are_simplified_on_the_way():
    b = Builder()
    x = b.leaf("input", "x", DType.F32, (3, 4))
    flat = [Read(x, (add("i", num(0)), axis("j")))]
    n = b.node(Op.CONTIGUOUS, flat, [("i", 3), ("j", 4)])
    graph = parse_graph(
        "lumc graph 1\ninput x f32[3, 4]\n"
        "t f32[i:3, j:4] = contiguous x[(4*i + j) // 4, (4*i + j) % 4]\noutput y = t"
    )
    assert graph.entries[0].nodes[0].operands[0].index == n.operands[0].index


# ---- errors: what is wrong, in which line and column

HEAD = "lumc graph 1\ndim s in 1..8\ninput x f32[s, 3]\ninput m bool[3]\nstate st f32[3]\n"
ERRORS = [
    ("t f32[i:3] = contiguous x[0, i] $", "6:33", "E0301", "expected the end of the line, got '$'"),
    ("t f32[i:3] contiguous x[0, i]", "6:12", "E0301", "expected '=', got 'contiguous'"),
    ("t f32[i:3] = contiguous x[0, i", "6:31", "E0301", "expected ',', got the end of the line"),
    ("t f32[i:3] = contiguous x[0, i] 5", "6:33", "E0301", "expected the end of the line"),
    ("t f33[i:3] = contiguous x[0, i]", "6:3", "E0301", "expected a dtype, got 'f33'"),
    ("t f32[i:3.5] = contiguous x[0, i]", "6:9", "E0301", "expected an integer, got '3.5'"),
    ("t f32[i:3] = add 0.5, x[0, i]", "6:18", "E0301", "expected NAME[..] or DTYPE(..)"),
    ("t f32[i:3] = add x[0, i], tru", "6:27", "E0301", "expected a value of f32, got 'tru'"),
    ("t bool[i:3] = add m[i], 1", "6:25", "E0301", "expected true or false"),
    ("t f32[] = sum k:3 x[0, k]", "6:19", "E0301", "expected 'of', got 'x'"),
    ("dim a in 1..", "6:13", "E0301", "expected an integer, got the end"),
    ("dim a on 1..2", "6:7", "E0301", "expected 'in'"),
    ('file "a" size 3 sha256 abc', "6:24", "E0301", "expected 64 hexadecimal digits"),
    ('file "a\\q" size 3', "6:6", "E0301", "not a string of JSON"),
    ("input 3 f32[3]", "6:7", "E0301", "expected a name, got '3'"),
    ("t f32[i:123456789012345678901] = contiguous x[0, 0]", "6:9", "E0302", "more than 20 digits"),
    ("t f32[i:3] = contiguous x[0, " + "(" * 200, "6:159", "E0302", "more than 128 terms"),
    ("t f32[i:3] = exp x[0, i]", "6:14", "E0303", "no operation 'exp'"),
    ("t f32[i:3] = contiguous q[0, i]", "6:25", "E0303", "no tensor 'q' above"),
    ("t f32[i:3] = contiguous x[0, j]", "6:30", "E0303", "no axis or dim 'j'"),
    ("t f32[i:3] = contiguous x[0, i*i]", "6:31", "E0303", "an index is affine"),
    ("t f32[i:3] = contiguous x[0, i // 0]", "6:32", "E0303", "an index is affine"),
    ("t f32[i:3] = contiguous x[0, 5 // i]", "6:32", "E0303", "an index is affine"),
    ("t f32[i] = contiguous x[0, 0]", "6:30", "E0303", "the extent of axis 'i' is not known"),
    ("t f32[i] = add x[0, i], m[i]\n", "6:1", "E0303", "different dtypes: f32 and bool"),
    ("t f32[i:4] = contiguous x[0, i]", "6:1", "E0303", "reads 'x' [s, 3] out of bounds"),
    ("t f32[i:3] = contiguous x[1, i]", "6:1", "E0303", "index 1 spans 1..1, extent s"),
    ("t f32[i:3] = contiguous x[i]", "6:1", "E0303", "with 1 indices, needs 2"),
    ("t f16[i:3] = log2 x[0, i]", "6:1", "E0303", "result is f32, declared f16"),
    ("t f32[s:3] = contiguous x[0, s]", "6:1", "E0303", "has the name of a dim but extent 3"),
    ("t f32[i:3, i:3] = contiguous x[0, i]", "6:1", "E0303", "axis names repeat: i, i"),
    ("x f32[i:3] = contiguous x[0, i]", "6:1", "E0303", "the name 'x' is used twice"),
    ("t i8[] = contiguous i8(300)", "6:1", "E0303", "300 is not a value of i8"),
    ("t f32[nan:3] = contiguous x[0, 0]", "6:1", "E0303", "'nan' is a word of the text form"),
    ("t f32[i:-3] = contiguous x[0, 0]", "6:1", "E0303", "negative extent"),
    ("t f32[" + "1, " * 3 + "]", "6:7", "E0301", "expected a name"),
    ("t f32[] = contiguous x[]", "6:1", "E0303", "with 0 indices"),
    ("dim s in 1..8", "6:5", "E0303", "dim 's' is declared twice"),
    ("dim a in 5..2", "6:1", "E0303", "impossible bounds"),
    ('weight w f32[3] "a" "b"', "6:24", "E0303", "no line 'file \"a\" ..' above"),
    ("update st[i] = m[i]", "6:1", "E0303", "update of state 'st' f32 with bool"),
    ("update x[i] = st[i]", "6:1", "E0303", "update of input 'x'"),
    ("update st[0] = st[i]", "6:1", "E0303", "may write an element twice"),
    ("update st[i + 1] = st[i]", "6:1", "E0303", "out of bounds"),
    ("update st[i] = st[i, j]", "6:24", "E0303", "'st' has 1 axes"),
    ("output y = x\noutput y = x", "7:8", "E0303", "two outputs are named 'y'"),
    ("output y = x\nentry a\noutput y = st\nentry a", "9:7", "E0303", "two entries"),
    (
        "output y = x\nentry a\nstate q f32[3]",
        "8:1",
        "E0303",
        "a state stands before the first entry",
    ),
    (
        "t f32[i:3] = contiguous x[0, i]\ndim q in 1..2",
        "7:1",
        "E0303",
        "before the first operation",
    ),
    ("", "6:1", "E0303", "entry 'main' has no output"),
]


@pytest.mark.parametrize(("line", "place", "code", "what"), ERRORS)
def test_errors_point_at_the_word(line, place, code, what):
    with pytest.raises(LumcError) as caught:
        parse_graph(HEAD + line, "bad.lg")
    e = caught.value
    assert what in e.what
    assert (e.code, e.where.split("\n")[0]) == (code, f"bad.lg:{place}")
    assert e.exit == (Exit.UNSUPPORTED if code == "E0303" else Exit.CORRUPT)
    row, column = (int(n) for n in place.split(":"))
    _, shown, caret = e.where.split("\n")
    start = max(column - 80, 0)
    assert shown.strip() == (HEAD + line).split("\n")[row - 1][start : start + 120].strip()
    assert len(caret) == 4 + column - start and caret.endswith("^")


@pytest.mark.parametrize("text", ["", "# nothing", "lumc graph 2\n", "lumc graph", "{}", "graph"])
def test_the_first_line_says_what_it_is(text):
    with pytest.raises(LumcError, match="a graph starts with the line 'lumc graph 1'"):
        parse_graph(text)


def test_a_graph_names_its_tokenizer_and_may_call_a_node_so() -> None:
    text = f"""lumc graph 1
file "m.tokenizer.json" size 5 sha256 {SHA}
tokenizer "m.tokenizer.json"

input x f32[2]
tokenizer f32[i:2] = exp2 x[i]
output y = tokenizer
"""
    graph = parse_graph(text)
    assert graph.tokenizer == WeightFile("m.tokenizer.json", 5, SHA) and graph.files
    assert print_graph(graph) == text
    for wrong, said in (
        (text.replace('r "m.', 'r "n.'), "no line 'file"),
        (text.replace("\n\n", '\ntokenizer "m.tokenizer.json"\n'), "stands once"),
        (text.replace("output", 'tokenizer "m.tokenizer.json"\noutput'), "stands once"),
    ):
        with pytest.raises(LumcError, match=said):
            parse_graph(wrong)
