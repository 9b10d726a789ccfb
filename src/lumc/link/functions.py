"""src/NAME.c of a model as plain C: its functions, which call kernels in order."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from lumc.codegen.code import Launch
from lumc.graph.graph import shape_text
from lumc.kernel.instance import elements_of, whole_of
from lumc.link.plain import Bucket, Call, Model


def launches(model: Model, offsets: Mapping[str, int]) -> str:
    """src/NAME.c: the kernels of every entry, in order."""
    lines = [f'#include "{model.name}.h"', f'#include "{model.name}_kernels.h"']
    has_states, first = bool(model.states[1]), 0
    checked = ["arena", "state"] if has_states else ["arena"]
    wrong = " || ".join(f"!{n} || (uintptr_t){n} % {model.upper}_ALIGN" for n in checked)
    for call in model.calls:
        if not call.dims.names:
            lines += ["", f"{call.declaration(has_states)} {{"]
            lines += [*_body(model, call, call.buckets[0], offsets, f"  if ({wrong}) return 1;")]
            lines += ["  return 0;", "}"]
            continue
        parameters = call.parameters(has_states)
        for i, b in enumerate(call.buckets, first):
            said = ", ".join(parameters.values())
            lines += ["", f"/* {b.entry.heading} */", f"static void bucket{i}({said}) {{"]
            body = [*_body(model, call, b, offsets)]
            unused = [n for n in parameters if not re.search(rf"\b{n}\b", "\n".join(body))]
            lines += [*body, *(f"  (void){n};" for n in unused), "}"]
        lines += ["", f"{call.declaration(has_states)} {{", f"  if ({wrong}) return 1;"]
        lines += [*_chosen(model, call, first, ", ".join(parameters)), "  return 0;", "}"]
        first += len(call.buckets)
    return "\n".join([*lines, *_begun(model, offsets), ""])


def _begun(model: Model, offsets: Mapping[str, int]) -> Iterable[str]:
    """The function that writes what states begin with, of a model where any is not all zeros."""
    if not model.begun:
        return
    yield from ("", f"{model.begun} {{", "  char *to = state;")
    yield f"  __builtin_memset(to, 0, {model.upper}_STATE_BYTES);"
    for at, s in zip(model.states[0], model.code.graph.states, strict=True):
        if s.file:
            where = f"(const char *){model.name}_weights + {offsets[s.name]}"
            yield f"  __builtin_memcpy(to + {at}, {where}, {s.size * s.dtype.nbytes});"
    yield "}"


def _chosen(model: Model, call: Call, first: int, given: str) -> Iterable[str]:
    """Checks of the dims, and the call of the first bucket that holds them."""
    macros = {d.name: f"{model.upper}_DIM_{name.upper()}" for name, d in model.dims.items()}
    for name, word in call.dims.names.items():
        macro = macros[name]
        wrong = f"{word} < {macro}_LEAST || {word} > {macro}_MOST || {word} % {macro}_MULTIPLE"
        yield f"  if ({wrong}) return {macro}_WRONG;"
    for i, b in enumerate(call.buckets[:-1], first):
        ends = " && ".join(
            f"{call.dims.names[n]} <= {d.values[-1]}" for n, d in b.entry.dims.items()
        )
        yield f"  {'else ' * (i > first)}if ({ends}) bucket{i}({given});"
    last = f"bucket{first + len(call.buckets) - 1}({given});"
    yield f"  {'else ' * (len(call.buckets) > 1)}{last}"


def _body(
    model: Model, call: Call, bucket: Bucket, offsets: Mapping[str, int], check: str = ""
) -> Iterable[str]:
    """The launches of a bucket, between copies of what is smaller than kernels want it."""
    places = _places(model, call, bucket, offsets)
    ran = [_launch(model, launch, places) for launch in bucket.plan.launches]
    body, dims, copies = "\n".join(ran), call.dims, bucket.copies
    yield f"  char *at = arena, *scratch = at + {model.scratch};"
    if "weights +" in body:
        yield f"  const char *weights = (const char *){model.name}_weights;"
    if "states +" in body:
        yield "  char *states = state;"
    if check:
        yield check
    if copies:
        yield f"  void *own[] = {{{', '.join(f'(void *){c.name}' for c in copies)}}};"
    for c in copies:
        shape = f"{c.name}{shape_text(c.node.shape)} in {shape_text(c.node.sizes)}"
        yield f"  if ({c.smaller(dims)}) {{ /* {shape} */"
        yield f"    own[{c.own}] = at + {c.at};"
        if c.name in call.inputs:
            yield from (f"    {line}" for line in c.lines(dims, into=True))
        yield "  }"
    if counter := bucket.entry.repeat:
        values = model.code.graph.dims[counter].values
        head = f"int64_t turn = {values[0]}; turn <= {values[-1]}; turn += {values.step}"
        ran = [f"  for ({head}) {{", *(f"  {line}" for line in ran), "  }"]
    yield from ran
    for c in copies:
        if c.name in call.outputs:
            yield f"  if ({c.smaller(dims)})"
            yield from (f"    {line}" for line in c.lines(dims, into=False))
    yield "  (void)scratch;"


def _places(
    model: Model, call: Call, bucket: Bucket, offsets: Mapping[str, int]
) -> Mapping[str, str]:
    """What a kernel is given for each value."""
    places, plan = {"": "0"}, bucket.plan
    for v in plan.values:
        if v.place == "arena":
            places[v.name] = f"at + {v.offset}"
        elif v.place == "state":
            places[v.name] = f"states + {model.states[0][v.offset] + v.start}"
        elif v.place in ("weight", "packed"):
            places[v.name] = f"(void *)(weights + {offsets[v.name]})"
        elif v.place == "dim" and v.name in call.dims.names:
            places[v.name] = f"(void *)&{call.dims.names[v.name]}"
        elif v.place == "dim" and v.name == bucket.entry.repeat:
            places[v.name] = "(void *)&turn"
    inputs = zip(call.inputs, plan.place("input"), strict=True)
    outputs = zip(call.outputs, plan.place("output"), strict=True)
    places |= {v.name: f"(void *){n}" for n, v in inputs} | {v.name: n for n, v in outputs}
    copied = {c.name: f"own[{c.own}]" for c in bucket.copies}
    known = dict(zip(call.tensors, (*plan.place("input"), *plan.place("output")), strict=True))
    places |= {known[name].name: text for name, text in copied.items()}
    parts = (v for v in plan.values if v.place in ("input", "output") and elements_of(v.name))
    return places | {v.name: f"(char *){places[whole_of(v.name)]} + {v.start}" for v in parts}


def _launch(model: Model, launch: Launch, places: Mapping[str, str]) -> str:
    args = ", ".join([*(places[a] for a in launch.args), "scratch"])
    return f"  {model.name}_{launch.kernel}((void *const[]){{{args}}}, 0, 1);"
