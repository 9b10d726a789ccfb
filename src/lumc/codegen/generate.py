"""From a plan to code: every kernel is printed once, every value gets a place.

Nothing is decided here: kernels, schedules and the order of launches come from the plan.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from lumc.codegen.code import Code, EntryPlan, KernelCode, Launch, Value
from lumc.codegen.cpu import kernel as c
from lumc.codegen.exchanges import by_kernels, in_place, places, through_turns, turns_of
from lumc.codegen.gpu.cuda import Cuda
from lumc.codegen.gpu.distribute import distribute
from lumc.codegen.gpu.grid import Grid
from lumc.codegen.gpu.hip import Hip
from lumc.codegen.gpu.metal import Metal
from lumc.codegen.gpu.operations import print_kernel
from lumc.codegen.gpu.words import words_of
from lumc.codegen.in_place import Shared, shared_buffers, without_copies
from lumc.codegen.interleave import in_order, ways_of, with_waiting
from lumc.codegen.lookups import Held, lookups, through
from lumc.codegen.slabs import on_slabs
from lumc.codegen.text.headers import header_of
from lumc.codegen.tile.lower import lower
from lumc.codegen.tile.memory import Arena, Interval, allocate
from lumc.codegen.tile.packing import Packing
from lumc.codegen.tile.passes import Watch, unwatched
from lumc.codegen.tile.program import Program
from lumc.codegen.tile.rows import touched
from lumc.graph.bind import require_lengths, require_room
from lumc.graph.expr import axis
from lumc.graph.graph import Entry
from lumc.graph.ops import DType
from lumc.graph.tensor import Tensor
from lumc.kernel.inside import escape, require_inside
from lumc.kernel.instance import elements_of, whole_of
from lumc.kernel.target import Target
from lumc.kernel.term import Buffer, Kernel, Root, load
from lumc.schedule.first import first_schedules
from lumc.schedule.legal import is_legal
from lumc.schedule.plan import Plan
from lumc.schedule.schedule import Threads

COPY = """/* {n} bytes of one value into an output: the value is a leaf, or an output already */
void {symbol}(void *const *args, long part, long nparts) {{
  long start = {n}l * part / nparts, end = {n}l * (part + 1) / nparts;
  __builtin_memcpy((char *)args[1] + start, (const char *)args[0] + start, end - start);
}}
"""
PARALLEL_COPY = 1 << 18  # bytes
DIALECTS = {  # of the languages of GPUs
    "cuda": Cuda(),
    "hip": Hip(),
    "metal": Metal(),
}


def generate(plan: Plan, watch: Watch = unwatched) -> Code:
    """Lower and print every kernel, name the packed weights, place the values of every entry.
    ``watch`` sees every tile program after every pass. Raises E0416 for a kernel that may leave
    its buffers, and E0112 for dims that may be 0 or too large."""
    require_lengths(plan.graph, "codegen")
    launches = {entry.name: steps_of(plan, entry) for entry in plan.graph.entries}
    programs = lowered(plan, launches, watch)
    held = share_tables(plan, launches, programs, watch)
    launches = {
        e.name: without_copies(plan, e, launches[e.name], programs) for e in plan.graph.entries
    }
    launches, on_slab = on_slabs(plan, launches)
    for key, kernel in on_slab.items():
        programs[key] = lower(kernel, plan.kernels[key].schedule, plan.target, watch)
    every = by_kernels(launches)
    keys, shared = list(dict.fromkeys(x.kernel for x in every)), shared_buffers(plan, every)
    used = Counter(key for i in plan.instances for key in kernels_in(plan, i.region))
    kernels = {
        key: print_code(plan, key, i, programs[key], used[key], shared.get(key, frozenset()))
        for i, key in enumerate(keys)
    }
    packings = Packings()
    entries = list[EntryPlan]()
    for entry in plan.graph.entries:
        named = [
            launch
            if launch.exchanges
            else name_operands(
                launch,
                kernels[launch.kernel],
                programs[launch.kernel],
                packings,
                held.get(launch.kernel, {}),
            )
            for launch in launches[entry.name]
        ]
        entries.append(place_values(plan, entry, named, packings.by_name))
    by_name = packings.by_name
    printed = (*kernels.values(), *copy_kernels(entries, plan.target))
    header = header_of(plan.target.kind)
    return Code(plan.graph, plan.target, header, printed, by_name, tuple(entries))


def lowered(
    plan: Plan, launches: Mapping[str, list[Launch]], watch: Watch = unwatched
) -> dict[str, Program]:
    """The tile programs of all kernels that are launched, by key. Raises E0416."""
    keys = list(dict.fromkeys(launch.kernel for launch in by_kernels(launches)))
    for key in keys:
        require_inside(plan.kernels[key].kernel)
    return {
        key: lower(plan.kernels[key].kernel, plan.kernels[key].schedule, plan.target, watch)
        for key in keys
    }


def launched(plan: Plan, entry: Entry) -> list[Launch]:
    """The launches of an entry as its code has them, on kernels by key: without copies of updates
    that are done in place."""
    launches = steps_of(plan, entry)
    programs = lowered(plan, {entry.name: launches})
    return by_kernels({entry.name: without_copies(plan, entry, launches, programs)})


def launches_of(plan: Plan, entry: Entry) -> list[Launch]:
    """The steps of every region instance in order, on values of the graph and parts of them; local
    values are called ``instance.name``."""
    return [launch for launch in steps_of(plan, entry) if not launch.exchanges]


def steps_of(plan: Plan, entry: Entry) -> list[Launch]:
    """The same, and the collectives between."""
    out, own = list[Launch](), [i for i in plan.instances if i.entry == entry.name]
    between = iter(places(entry, own))
    for i, instance in enumerate(plan.instances):
        if instance.entry != entry.name:
            continue
        region = plan.regions[instance.region]
        names = instance.names | {v.name: f"{i}.{v.name}" for v in region.local}
        out += next(between)
        out += [Launch(s.kernel, tuple(names[a] for a in s.args)) for s in region.steps]
    return [*out, *next(between)]


def kernels_in(plan: Plan, region: str) -> Iterable[str]:
    """The kernels of a region, each once."""
    return dict.fromkeys(s.kernel for s in plan.regions[region].steps)


# ---- kernels


def print_code(
    plan: Plan, key: str, position: int, program: Program, instances: int, shared: Shared
) -> KernelCode:
    """A kernel as code; ``instances`` of regions run it. Buffers that are ``shared`` may be one
    memory."""
    kernel = program.kernel
    plain = (c if c.isascii() and c.isalnum() else " " for c in kernel.name.lower())
    name = "_".join("".join(plain).split())[:60]
    symbol = f"k{position}_{name}" if name else f"k{position}"
    schedule = plan.kernels[key].schedule
    source, grid = print_source(program, schedule.threads, symbol, shared)
    return KernelCode(
        key=key,
        name=kernel.name,
        symbol=symbol,
        source=source,
        args=(
            *(b.name for b in kernel.buffers),
            *program.packed,
            *(d.name for d in kernel.lengths.dims),
        ),
        scratch_bytes=program.scratch_bytes,
        parallel=int(program.tiles > 0) and (schedule.parts or 1),
        regions=instances,
        grid=grid,
    )


def print_source(
    program: Program, threads: Threads | None, symbol: str, shared: Shared = frozenset()
) -> tuple[str, Grid | None]:
    """The text of a kernel for its kind of target; on a GPU also how it is launched."""
    dialect = DIALECTS.get(program.target.kind)
    if dialect is None:
        return c.print_kernel(program, symbol, shared), None
    return print_kernel(distribute(program, threads), dialect, symbol)


def copy_kernels(entries: Iterable[EntryPlan], target: Target) -> list[KernelCode]:
    """One for every size that ``place_values`` copies."""
    symbols = {launch.kernel for e in entries for launch in e.launches}
    sizes = sorted(int(s.removeprefix("copy_")) for s in symbols if s.startswith("copy_"))
    return [_copy_kernel(n, f"copy_{n}", target) for n in sizes]


def _copy_kernel(n: int, symbol: str, target: Target) -> KernelCode:
    source, grid = COPY.format(n=n, symbol=symbol), None
    if target.kind in DIALECTS:
        kernel = copy_of(n)
        schedule = next(first_schedules(kernel, target))
        source, grid = print_source(lower(kernel, schedule, target), schedule.threads, symbol)
    parallel = int(n > PARALLEL_COPY)
    return KernelCode(f"copy {n}", "copy", symbol, source, ("b0", "out"), 0, parallel, 0, grid)


def copy_of(n: int) -> Kernel:
    """``out = b0``, n bytes, in words if these are whole."""
    kind = DType.I32 if n % DType.I32.nbytes == 0 else DType.U8
    count = n // kind.nbytes
    root = Root("out", (axis("i"),), load("b0", kind, "i"))
    buffers = tuple(Buffer(name, kind, (count,)) for name in ("b0", "out"))
    return Kernel("copy", ("i",), {"i": count}, (root,), buffers)


class Packings:
    """The packed copies of weights, each once."""

    def __init__(self) -> None:
        self.by_name = dict[str, Packing]()
        self.names = dict[object, str]()

    def name(self, packing: Packing) -> str:
        key = packing.weight, packing.memory
        if key not in self.names:
            self.names[key] = f"{packing.weight}@{len(self.names)}"
            self.by_name[self.names[key]] = packing
        return self.names[key]


def share_tables(
    plan: Plan, launches: Mapping[str, list[Launch]], programs: dict[str, Program], watch: Watch
) -> dict[str, Held]:
    """Lower lookups again, with the same schedule, on weights as products have them: what they read
    so, by key. Where that cannot be a kernel stays as it is; for GPUs nothing is packed."""
    if plan.target.kind in DIALECTS:
        return {}
    every = by_kernels(launches)
    buffers = {
        key: [b.name for b in plan.kernels[key].kernel.buffers if b.name in touched(p.body)]
        for key, p in programs.items()
    }
    packed = dict[Packing, None]()
    for launch in every:
        names = [b.name for b in plan.kernels[launch.kernel].kernel.buffers]
        value = dict(zip(names, launch.args, strict=True))
        wanted = programs[launch.kernel].packed.values()
        packed |= dict.fromkeys(replace(p, weight=value[p.weight]) for p in wanted)
    kernels = {key: plan.kernels[key].kernel for key in programs}
    out = dict[str, Held]()
    for key, held in lookups(kernels, every, buffers, packed).items():
        kernel, schedule = through(kernels[key], held), plan.kernels[key].schedule
        if is_legal(kernel, plan.target, schedule) and not escape(kernel):
            programs[key], out[key] = lower(kernel, schedule, plan.target, watch), held
    return out


def name_operands(
    launch: Launch,
    kernel: KernelCode,
    program: Program,
    packings: Packings,
    held: Held,
) -> Launch:
    """Append the packed operands, one name per (weight, layout), and the dims, and drop what is
    never touched: a weight that a kernel reads only in packed form need not be in the bundle.
    Buffers that are ``held`` by a packing are read from there."""
    value = dict(zip((b.name for b in program.kernel.buffers), launch.args, strict=True))
    used = touched(program.body)
    args = [
        packings.name(replace(held[buffer], weight=name))
        if buffer in held
        else name * (buffer in used)
        for buffer, name in value.items()
    ]
    if program.target.kind in DIALECTS:
        for i, packing in enumerate(words_of(program.kernel).get(buffer) for buffer in value):
            if args[i] and packing:
                args[i] = packings.name(replace(packing, weight=args[i]))
    for name, wanted in program.packed.items():
        packing = replace(wanted, weight=value[wanted.weight])
        assert packing.size == program.places[name].size, f"{kernel.symbol}: {name}"
        args.append(packings.name(packing))
    dims = (d.name for d in program.kernel.lengths.dims)
    return Launch(kernel.symbol, (*args, *dims))


# ---- values


def place_values(
    plan: Plan, entry: Entry, launches: list[Launch], packings: Mapping[str, Packing]
) -> EntryPlan:
    """Inputs, outputs, weights and states where they are, all others in an arena, those too of
    which launches touch parts."""
    tensors = tensors_of(plan, entry)
    fixed = {
        **{w.name: ("weight", 0) for w in plan.graph.weights},
        **{s.name: ("state", i) for i, s in enumerate(plan.graph.states)},
        **{n.name: ("input", i) for i, n in enumerate(entry.inputs)},
        **{name: ("dim", i) for i, name in enumerate(plan.graph.dims)},
    }
    tensors |= {name: Tensor(name, p.dtype, (p.size,)) for name, p in packings.items()}
    fixed |= dict.fromkeys(packings, ("packed", 0))
    values = {n.name: _placed(tensors[n.name], *fixed[n.name]) for n in entry.inputs}
    before, after = list[Launch](), list[Launch]()
    outputs = plan.outputs[entry.name]
    for i, (_, name) in enumerate(outputs):
        if name in fixed or name in values:  # it has a place already
            value = _placed(replace(tensors[name], name=f"output {i}"), "output", i)
            copy = Launch(f"copy_{value.nbytes}", (name, value.name))
            (before if name in fixed else after).append(copy)
        else:
            value = _placed(tensors[name], "output", i)
        values[value.name] = value
    public = [name for _, name in outputs]
    present = {*fixed, *values}
    launches = in_order(entry, [*before, *launches, *after], packings, present)
    launches = in_place(entry, launches, public, fixed)
    for name in dict.fromkeys(whole_of(a) for launch in launches for a in launch.args if a):
        if name in fixed:
            values.setdefault(name, _placed(tensors[name], *fixed[name]))
    between = {n: t for n, t in tensors.items() if n not in values}
    arena = arena_of(plan, entry, launches, packings, present, between)
    require_room(plan.graph, entry.name, arena.nbytes)
    for name, offset in arena.offsets.items():
        values[name] = _placed(tensors[name], "arena", offset)
    parts = parts_of(launches, values)
    return EntryPlan(
        entry.name,
        (*values.values(), *parts.values()),
        tuple(name for name, _ in outputs),
        tuple(launches),
        arena.nbytes,
        arena.nbytes_without_reuse,
    )


def arena_of(
    plan: Plan,
    entry: Entry,
    launches: Sequence[Launch],
    packings: Mapping[str, Packing],
    present: Collection[str],
    between: Mapping[str, Tensor],
) -> Arena:
    """Places of values between launches; behind them those that wait for a way back."""
    ways = ways_of(plan.graph, entry, launches, packings, present)
    waiting = {n: between[n] for n in ways.waiting} if ways else {}
    intervals = lifetimes(launches, {n: t for n, t in between.items() if n not in waiting})
    arena = allocate(through_turns(intervals, turns_of(entry, launches)))
    return with_waiting(plan.graph, ways, waiting, arena) if ways else arena


def parts_of(launches: Iterable[Launch], values: Mapping[str, Value]) -> dict[str, Value]:
    """The parts of values that launches touch, by name: places in the arena, or in what states,
    inputs and outputs lie in."""
    out = dict[str, Value]()
    for name in (name for launch in launches for name in launch.args):
        if part := elements_of(name):
            whole = values[whole_of(name)]
            own = replace(whole, name=name, shape=(len(part),))
            in_arena = whole.place == "arena"
            out[name] = replace(own, offset=whole.offset + own.start) if in_arena else own
    return out


def _placed(t: Tensor, place: str, offset: int) -> Value:
    return Value(t.name, t.dtype, t.shape, place, offset)


def tensors_of(plan: Plan, entry: Entry) -> dict[str, Tensor]:
    """Every value of an entry, by name: graph values, and local ones of its regions."""
    nodes = (*plan.graph.weights, *plan.graph.states, *entry.inputs, *entry.nodes)
    out = {n.name: Tensor(n.name, n.dtype, n.sizes) for n in nodes}
    out |= {name: Tensor(name, DType.I64, ()) for name in plan.graph.dims}
    for i, instance in enumerate(plan.instances):
        if instance.entry == entry.name:
            for v in plan.regions[instance.region].local:
                out[f"{i}.{v.name}"] = Tensor(f"{i}.{v.name}", v.dtype, v.shape)
    return out


def lifetimes(launches: Sequence[Launch], tensors: Mapping[str, Tensor]) -> list[Interval]:
    """From the first to the last launch that touches each of these values, or a part of it."""
    ends = dict[str, tuple[int, int]]()
    for i, launch in enumerate(launches):
        for name in map(whole_of, launch.args):
            if name in tensors:
                ends[name] = (ends.get(name, (i, i))[0], i)
    return [Interval(name, tensors[name].nbytes, *span) for name, span in ends.items()]
