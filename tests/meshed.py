"""Plans for a mesh, with stages and without, written by hand."""

from lumc.bundle import planfile
from lumc.bundle.ranks import Segment
from lumc.bundle.weights import Layout
from lumc.codegen.code import Code, EntryPlan, KernelCode, Launch, Value
from lumc.graph.ops import DType
from lumc.graph.text import parse_graph
from lumc.kernel.machines import resolve_target

MESH = """lumc graph 1
mesh a 2
mesh b 3
input x f32[4, 6]
state kept f32[4, 6] part 0 by b, 1 by a
y f32[i:4, j:6] = all_reduce sum by a of x[i, j]
z f32[i:4, j:2] = reduce_scatter max split j by b of y[i, j]
whole f32[i:8, j:6] = all_gather concat i by a of kept[i, j]
t f32[i:2, j:12] = all_to_all split i concat j by a of x[i, j]
own f32[i:2, j:6] = all_slice split i by a of x[i, j]
output y = y
output z = z
output whole = whole
output t = t
output own = own
"""


STAGED = """lumc graph 1
mesh a 2
mesh b 3
mesh c 5 in time
state kept f32[4, 6] part 1 by a on 1 by b
state own f32[4, 6] on 0 by b
state all f32[4, 6]
input x f32[4, 6] part 0 by c
y f32[i:4, j:6] = add own[i, j], x[i, j]
p f32[i:4, j:6] = all_reduce sum by c of y[i, j]
s f32[i:4, j:6] = send 0 to 1 by b of p[i, j]
z f32[i:4, j:6] = add kept[i, j], s[i, j]
t f32[i:4, j:6] = all_reduce max by a of z[i, j]
u f32[i:4, j:6] = broadcast 1 by b of t[i, j]
output u = u
"""


def staged() -> bytes:
    """A plan with three stages, what goes between them, constants of two of them, micro-batches."""
    graph = parse_graph(STAGED)
    f = DType.F32
    values = [Value("x", f, (4, 6), "input", 0), Value("u", f, (4, 6), "output", 0)]
    values += [Value(s.name, f, (4, 6), "state", i) for i, s in enumerate(graph.states)]
    values += [Value(n, f, (4, 6), "arena", 128 * i) for i, n in enumerate("yszt")]
    values.append(Value("p", f, (4, 6), "arena", 512))
    names = [("own", "x", "y"), ("y", "p"), ("p", "s"), ("kept", "s", "z"), ("z", "t"), ("t", "u")]
    launches = [Launch("k0_add" if len(args) > 2 else "exchange", args) for args in names]
    made = EntryPlan("main", tuple(values), ("u",), tuple(launches), 640, 640)
    kernel = KernelCode("k", "add", "k0_add", "", ("b0", "b1", "out"), 0, 1, 2)
    code = Code(graph, resolve_target("cpu:generic"), "", (kernel,), {}, (made,))
    segments = [Segment(0, 0, 64, 1, (0, 0, 0)), Segment(64, 64, 128, 2, (1, 0, 0), 2)]
    segments.append(Segment(320, 64, 64, 1, (0, 0, 0), 1))
    place = planfile.loading(code, Layout({}, 8, 192), {}, segments)
    return planfile.encode(code, "cpu-generic", "generic", (), place)


def meshed() -> bytes:
    """A plan with every collective, one of them in the memory of its result."""
    graph = parse_graph(MESH)
    (entry,) = graph.entries
    f, nodes = DType.F32, {n.name: n for n in entry.nodes}
    values = [Value("x", f, (4, 6), "input", 0), Value("kept", f, (4, 6), "state", 0)]
    values += [Value(n, f, nodes[n].sizes, "output", i) for i, (n, _) in enumerate(entry.outputs)]
    values += [Value("in", f, (4, 6), "arena", 0), Value("out", f, (4, 6), "arena", 0)]
    names = [(n.reads[0].source.name, n.name) for n in entry.nodes]
    launches = [Launch("exchange", pair) for pair in names]
    made = EntryPlan("main", tuple(values), tuple(nodes), tuple(launches), 256, 256)
    code = Code(graph, resolve_target("cpu:generic"), "", (), {}, (made,))
    segments = [Segment(0, 0, 64, 6, (1, 2)), Segment(384, 64, 128, 2, (1, 0))]
    segments.append(Segment(640, 192, 64, 1, (0, 0)))
    place = planfile.loading(code, Layout({}, 8, 256), {}, segments)
    return planfile.encode(code, "cpu-generic", "generic", (), place)


TURNS = """lumc graph 1
mesh pp 2
mesh t 3 in time
state a f32[4, 4] on 0 by pp
state b f32[4, 4] on 1 by pp
input x f32[4, 4] part 0 by t
y f32[i:4, j:4] = add a[i, j], x[i, j]
s f32[i:4, j:4] = send 0 to 1 by pp of y[i, j]
z f32[i:4, j:4] = mul b[i, j], s[i, j]
u f32[i:4, j:4] = send 1 to 0 by pp of z[i, j]
w f32[i:4, j:4] = mul u[i, j], y[i, j]
p f32[i:4, j:4] = all_reduce sum by t of w[i, j]
v f32[i:4, j:4] = all_reduce sum by t of z[i, j]
q f32[i:4, j:4] = broadcast 0 by pp of p[i, j]
r f32[i:4, j:4] = broadcast 1 by pp of v[i, j]
output p = q
output v = r
"""


def alternating() -> bytes:
    """A plan with two stages that have three micro-batches forward and back in turn."""
    graph = parse_graph(TURNS)
    f, shape = DType.F32, (4, 4)
    values = [Value("x", f, shape, "input", 0)]
    values += [Value(n, f, shape, "output", i) for i, n in enumerate("qr")]
    values += [Value(s.name, f, shape, "state", i) for i, s in enumerate(graph.states)]
    values += [Value(n, f, shape, "arena", 64 * i) for i, n in enumerate("szuwpv")]
    values.append(Value("y", f, shape, "arena", 384))  # waits, as two micro-batches are open
    names = [("a", "x", "y"), ("y", "s"), ("b", "s", "z"), ("z", "u"), ("z", "v"), ("u", "y", "w")]
    names += [("w", "p"), ("p", "q"), ("v", "r")]
    launches = [Launch("k0_any" if len(args) > 2 else "exchange", args) for args in names]
    made = EntryPlan("main", tuple(values), ("p", "v"), tuple(launches), 384 + 2 * 64, 512)
    kernel = KernelCode("k", "any", "k0_any", "", ("b0", "b1", "out"), 0, 1, 3)
    code = Code(graph, resolve_target("cpu:generic"), "", (kernel,), {}, (made,))
    place = planfile.loading(code, Layout({}, 8, 0), {}, ())
    return planfile.encode(code, "cpu-generic", "generic", (), place)
