"""Tile programs as text: all that they do is said, in few lines."""

import re
from dataclasses import fields, replace

import pytest

import lumc.codegen.tile.program as ir
from kernel_zoo import FAMILIES, attention, linear_gelu, softmax
from lumc.codegen.tile.lower import lower
from lumc.codegen.tile.text import program_text
from lumc.errors import LumcError
from lumc.kernel.machines import resolve_target
from lumc.profile.price import scheduled

V4, RTX = resolve_target("cpu:x86-64-v4"), resolve_target("cuda:sm_89")
SOFTMAX = """tile program 'softmax' for cpu:x86-64-v4
argument x f32[64, 256]
argument out f32[64, 256]
scratch stage.2 f32[m:1 from m]
scratch stage.3 f32[m:1 from m]
par m:64 by 8
  rows m:8
    reduce over i:256, lanes reduced, 4 streams
      stage.2[m] = top of x[m, i] from -inf
    reduce over j:256, lanes reduced, 4 streams
      stage.3[m] = sum of decay(mul(add(x[m, j], mul(stage.2[m], -1.0)), 1.4426950408889634)) from 0.0
      out[m, j] = decay(mul(add(x[m, j], mul(stage.2[m], -1.0)), 1.4426950408889634))
    map n:256.  out[m, n] = mul(out[m, n], recip(stage.3[m]))"""  # noqa: E501


def text_of(kernel, target=V4) -> str:
    return program_text(scheduled(kernel, target)[1])


def test_a_program() -> None:
    assert text_of(softmax(64, 256)) == SOFTMAX


def test_attention_is_read_at_a_glance() -> None:
    text = text_of(attention(2, 128, 128, 64))
    assert len(text.splitlines()) <= 25
    assert "stage.8[h, q, d] = stage.6[h, q, j] * V[h, j, d], contract 12 x 2" in text


def test_a_loop_says_where_it_ends() -> None:
    text = text_of(attention(2, 512, 512, 64, mask=False, causal=True), RTX)
    assert re.search(r"block j:512 by \d+ to q\.0 \+ \d+$", text, re.MULTILINE)
    assert " to " not in text_of(attention(2, 512, 512, 64, mask=False, causal=True))


def test_every_operation_of_the_zoo_is_said() -> None:
    """A line for each, and every place that it touches is named above."""
    for target in (V4, resolve_target("cuda:sm_90+tf32")):
        for family, shapes in FAMILIES.items():
            try:
                program = scheduled(family(*shapes[-1]), target)[1]
            except LumcError:
                continue
            text = program_text(program)
            words = re.findall(r"^ *(map|reduce|contract) ", text, re.MULTILINE)
            kinds = [type(op).__name__.lower() for op in ir.leaves(program.body)]
            assert words == kinds
            named = set(re.findall(r"^(?:argument|scratch|packed) (\S+) ", text, re.MULTILINE))
            assert named == {e.attr[0] for op in ir.leaves(program.body) for e in ir.loads_of(op)}


@pytest.mark.parametrize("name", ["turn", "copy", "stream", "abreast"])
def test_what_a_map_does_besides_is_said(name: str) -> None:
    program = lower(*(lambda s: (softmax(4, 8), s, V4))(scheduled(softmax(4, 8), V4)[0]))
    op = next(o for o in ir.leaves(program.body) if isinstance(o, ir.Map))
    assert name in {f.name for f in fields(op)}
    changed = replace(op, **{name: op.axes[-1] if name == "turn" else True})
    before, after = (program_text(replace(program, body=[o])) for o in (op, changed))
    assert before != after and before.splitlines()[:-1] == after.splitlines()[:-1]


def test_the_words_of_gpus() -> None:
    target = resolve_target("cuda:sm_90+tf32")
    assert re.search(r"\], mma \d+ x \d+", text_of(linear_gelu(64, 96, 64), target))
    assert re.search(r"\], simt \d+ x \d+", text_of(linear_gelu(64, 96, 64), RTX))
