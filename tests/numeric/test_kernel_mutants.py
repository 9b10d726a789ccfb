"""A test that cannot fail is a defect: each of these faults in lowering, printer or header must
make a test fail. A few run always, all of them with LUMC_FUZZ=1."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

SOURCE = Path(__file__).parents[2] / "src"
HANGS = 240  # seconds; the slowest mutant takes a tenth of it


class Mutant(NamedTuple):
    file: str
    old: str
    new: str
    tests: str  # what catches it: a pytest -k expression


RANDOM, DEFAULT, VALUES = "random_schedules", "default_schedules", "test_kernel_values"
QUICK = {
    "overwrites at every tile": Mutant(
        "codegen/tile/lower.py",
        "self.contractions.contract(g, s, done[s], cut)",
        "self.contractions.contract(g, s, done[s], ())",
        f"{RANDOM} and matmul",
    ),
    "no edge kernels": Mutant(
        "codegen/text/writer.py",
        "return [by] * (r.largest >= by) + r.rests(by)",
        "return [by]",
        f"{DEFAULT} and matmul",
    ),
    "tile sums are not rescaled": Mutant(
        "codegen/tile/weighted.py",
        'rescaled = binary("mul", sums[s], w.scale)',
        "rescaled = sums[s]",
        f"{RANDOM} and attention",
    ),
    "row of -inf gives 0": Mutant(
        "codegen/tile/weighted.py",
        'binary("add", sums[s], _minus(top, top))',
        "sums[s]",
        f"{VALUES} and weighted",
    ),
    "maximum forgets NaN": Mutant(
        "codegen/cpu/reduce.py",
        'if o.op == "max" and self.kind.is_float:',
        "if False:",
        f"{VALUES} and max_carries_nan",
    ),
    "lanes of the rest are taken twice": Mutant(
        "codegen/cpu/reduce.py",
        "< `seen` ? {old} : {value})",
        "< 0 * `seen` ? {old} : {value})",
        f"{DEFAULT} and layernorm",
    ),
    "a streamed row goes on after its end": Mutant(
        "codegen/cpu/lumc_kernel/stream.h",
        "LUMC_PIECE / size, left)",
        "LUMC_PIECE / size, left + 1)",
        "change_no_bit",
    ),
    "prefetches beside the least work": Mutant(
        "codegen/tile/ahead.py", "(-work, i, later)", "(work, i, later)", "prefetched_once"
    ),
    "a value is kept for one pass only": Mutant(
        "codegen/tile/walks.py", "for n in found:\n", "for n in found[:1]:\n", "every_later_pass"
    ),
}
MORE = {
    "what fills no chunk is left out": Mutant(
        "codegen/cpu/skew.py", "rest = [n % chunk //", "rest = [0 * n //", "change_no_bit"
    ),
    "a row is written over while it is read": Mutant(
        "codegen/tile/skew.py", "slots = 1 + max(", "slots = max(", "change_no_bit"
    ),
    "a row at a border loses a step": Mutant(
        "codegen/tile/program.py",
        "own[i][0] <= v < own[i][1]",
        "own[i][0] < v < own[i][1]",
        f"({DEFAULT} or {RANDOM}) and conv",
    ),
    "rows inside are taken for those at a border": Mutant(
        "codegen/cpu/contract.py",
        'test = f"({here})" if left[m] else',
        "test =",
        f"({DEFAULT} or {RANDOM}) and conv",
    ),
    "steps at a border are others": Mutant(
        "codegen/cpu/micro.py",
        'f"{v}"), self._stands',
        'f"{len(self.valid) - 1 - v}"), self._stands',
        f"({DEFAULT} or {RANDOM}) and conv",
    ),
    "phases of a copy change places": Mutant(
        "codegen/tile/staging.py",
        "dst = substitute(phased, {axis(p): num(n)})",
        "dst = substitute(phased, {axis(p): num(step - 1 - n)})",
        f"({DEFAULT} or {RANDOM}) and windows",
    ),
    "every row is finished as the first one": Mutant(
        "codegen/cpu/reduce.py",
        "terms = [substitute(substitute(op.then.term, at), results) for at in there]",
        "terms = [substitute(substitute(op.then.term, there[0]), results) for _ in there]",
        f"({DEFAULT} or {RANDOM}) and windows",
    ),
    "a finished sum that others read is not stored": Mutant(
        "codegen/tile/rows.py",
        "touched.get(dst.attr[0]) == 2 and",
        "touched.get(dst.attr[0], 2) > 1 and",
        "follows_a_window",
    ),
    "halves of two conditions are one choice": Mutant(
        "kernel/normal.py",
        'if other == binary("lt", c, const(True, DType.BOOL)):',
        'if other.kind == "bin":',
        "other_halves_stay",
    ),
    "a choice is the wrong way round": Mutant(
        "kernel/normal.py",
        "return where(c, a, b)",
        "return where(c, b, a)",
        f"({DEFAULT} or {RANDOM}) and chosen",
    ),
    "steps beyond the end of the border count": Mutant(
        "codegen/cpu/contract.py",
        '{_step_at(w, op, b, b.hi)} - {first}"',
        '{_step_at(w, op, b, b.hi)}"',
        f"({DEFAULT} or {RANDOM}) and bordered_conv",
    ),
    "what is not computed is read": Mutant(
        "codegen/tile/walks.py",
        "done[s] = guard(axis(a), r.lo.attr[0], r.lo.attr[0] + r.largest, done[s])",
        "pass",
        f"({DEFAULT} or {RANDOM}) and pooled_beside",
    ),
    "zeros begin too early": Mutant(
        "codegen/tile/walks.py",
        "min(n, hi - constant)",
        "min(n, hi - constant) - 1",
        f"({DEFAULT} or {RANDOM}) and pooled_beside",
    ),
    "steps before the border count": Mutant(
        "codegen/cpu/contract.py",
        "w.let(first, _step_at(w, op, b, b.lo))",
        'w.let(first, "0")',
        f"({DEFAULT} or {RANDOM}) and bordered_conv",
    ),
    "a number of steps has no text": Mutant(
        "codegen/tile/contractions.py",
        "tuple(sorted({*counts}))",
        "tuple(sorted({*counts}))[:1]",
        f"({DEFAULT} or {RANDOM}) and bordered_conv",
    ),
    "logarithms around 1 are differences": Mutant(
        "codegen/cpu/lumc_kernel/logarithm.h",
        "0x3f864a87, 0x3f800000}",
        "0x3f864a87, 0x3f820821}",
        "whole_vectors",
    ),
    "logarithms below 0 are those above": Mutant(
        "codegen/cpu/lumc_kernel/logarithm.h",
        "getmantps512_mask(x, 15,",
        "getmantps512_mask(x, 7,",
        "whole_vectors",
    ),
    "a running sum forgets what was before a piece": Mutant(
        "codegen/cpu/running.py",
        "{total} = lumc_run_sum_f32({name}, {count}, {total});",
        "lumc_run_sum_f32({name}, {count}, {total});",
        f"{DEFAULT} and running",
    ),
    "a running sum forgets all vectors but the last": Mutant(
        "codegen/cpu/lumc_kernel/running.h",
        "sum += v[LUMC_LANES - 1];",
        "sum = v[LUMC_LANES - 1];",
        f"{DEFAULT} and running",
    ),
    "a running row goes on from itself": Mutant(
        "codegen/cpu/running.py",
        "back = {axis(over): add(axis(over), -1)}",
        "back = {axis(over): add(axis(over), 0)}",
        f"{DEFAULT} and running",
    ),
    "runs from the end start one late": Mutant(
        "kernel/running.py",
        "empty = here - there + c + 1 if backward",
        "empty = here - there + c + 2 if backward",
        f"{DEFAULT} and running",
    ),
    "the last maximum is like those before": Mutant(
        "kernel/running.py",
        "last = steps == there and other is not zero",
        "last = False and other is not zero",
        f"{DEFAULT} and running",
    ),
    "results with nothing to take are left out": Mutant(
        "codegen/tile/walks.py",
        "if r.empty:",
        "if r.empty > 1:",
        f"{DEFAULT} and running",
    ),
    "all of a running result in every part": Mutant(
        "codegen/tile/walks.py",
        "owned = r.along in opened and not self.c.is_cut(r.along)",
        "owned = True",
        "running_results_are_sound",
    ),
    "rows that are not there are read": Mutant(
        "codegen/text/levels.py",
        ": {w.spelling.zeros}",
        ": &{w.address(start)}",
        f"{DEFAULT} and windows",
    ),
    "windows of the last rows are left out": Mutant(
        "codegen/cpu/reduce.py",
        "for rest in r.rests(many):",
        "for rest in r.rests(1):",
        f"{DEFAULT} and windows",
    ),
    "windows of neighbours are the same": Mutant(
        "codegen/cpu/reduce.py",
        "add(axis(row), n)} if n",
        "add(axis(row), n)} if n > 1",
        f"{DEFAULT} and windows",
    ),
    "a case begins a row early": Mutant(
        "codegen/cpu/kernel.py",
        'f"{c} >= {op.lo}"',
        'f"{c} >= {op.lo} - 1"',
        f"{DEFAULT} and reflected",
    ),
    "a piece of the lanes is one short": Mutant(
        "codegen/tile/domains.py",
        "span[1] - span[0] + 1\n",
        "max(1, span[1] - span[0])\n",
        f"{DEFAULT} and joined",
    ),
    "guards hold when they begin to": Mutant(
        "codegen/tile/domains.py",
        "if lo <= least and most < hi:",
        "if lo <= least and least < hi:",
        f"{DEFAULT} and (joined or reflected or pad_iota)",
    ),
    "a row that goes round goes on": Mutant(
        "codegen/tile/domains.py", "add(x, -least * c)", "add(x, -least)", f"{DEFAULT} and rolled"
    ),
    "what is written out is all the same": Mutant(
        "codegen/tile/abreast.py",
        "num(n)} for n in",
        "num(0 * n)} for n in",
        f"{DEFAULT} and paired",
    ),
    "zeros that are multiplied are left out": Mutant(
        "kernel/folded.py",
        "return const(0, dtype(e))\n        if (op",
        "return other\n        if (op",
        f"{DEFAULT} and joined",
    ),
    "levels change places in a word": Mutant(
        "codegen/tile/packing.py",
        "WORD // 8 * (i % each) for i",
        "WORD // 8 * (1 - i % each) for i",
        f"{DEFAULT} and levels",
    ),
    "levels are not shifted": Mutant(
        "codegen/cpu/levels.py",
        '`shift{j}` * `s{i}`" if self.op.shift is not None else ""\n                out',
        '`shift{j}`" if self.op.shift is not None else ""\n                out',
        f"{DEFAULT} and levels",
    ),
    "a block goes on from the one before": Mutant(
        "codegen/cpu/levels.py",
        "return self._block(m, parts, ends)",
        "return self._block(m, parts, ends)[m * len(parts) :]",
        f"{DEFAULT} and levels",
    ),
    "signed levels are not": Mutant(
        "codegen/cpu/levels.py",
        "if dtype(self.op.b) is DType.I8 else 'u'",
        "if False else 'u'",
        f"{DEFAULT} and levels",
    ),
    "bytes of the next block": Mutant(
        "codegen/cpu/levels.py",
        "+ part * BYTES",
        "+ (1 - part) * BYTES",
        "sums_of_integers",
    ),
    "bytes count from 0": Mutant(
        "codegen/cpu/levels.py",
        "if dtype(self.op.b) is DType.I8 else 0",
        "if False else 0",
        "sums_of_integers",
    ),
    "blocks in parts": Mutant(
        "schedule/applies.py",
        "return kernel.extent[axis] if levels and axis == levels.inner else 1",
        "return 1",
        f"{RANDOM} and levels",
    ),
    "the last vector is stored whole": Mutant(
        "codegen/cpu/micro.py",
        "{before}{value}, {p.used});",
        "{before}{value}, {p.width});",
        "test_sanitizers",  # the rows behind write over it, but for the last one
    ),
    "weights lie across the wrong axis": Mutant(
        "codegen/tile/across.py",
        "dims = tuple(ir.Dim(a, num(0), extent[a]) for a in axes)",
        "dims = tuple(ir.Dim(a, num(0), extent[a]) for a in (*axes[1:], axes[0]))",
        f"{DEFAULT} and windows",
    ),
    "padded once for other rows": Mutant(
        "codegen/tile/staging.py",
        "seen = forms, {axis(n): i for",
        "seen = forms, {axis(n): add(i, 1) for",
        f"{DEFAULT} and windows",
    ),
    "phases of other windows": Mutant(
        "codegen/tile/staging.py",
        "= mod(rest, step, {})",
        "= mod(add(rest, 1), step, {})",
        f"{DEFAULT} and windows",
    ),
    "rows are rounded down": Mutant(
        "codegen/tile/vectors.py",
        "else -r.largest % half",
        "else -(r.largest % half)",
        f"{DEFAULT} and windows",
    ),
    "keys lose NaN": Mutant(
        "codegen/cpu/lumc_kernel/arithmetic.h",
        "> 0x7f800000 ? lumc_float(0x7fc00000) :",
        "> 0x7f800001 ? lumc_float(0x7f800000) :",
        f"{VALUES} and max_of_windows",
    ),
    "keys are left": Mutant(
        "codegen/cpu/reduce.py",
        'if o.op == "keyed" else t\n',
        'if o.op == "max" else t\n',
        f"{DEFAULT} and windows",
    ),
    "parts of other rows": Mutant(
        "codegen/tile/windows.py",
        "substitute(part, {axis(along): i})",
        "substitute(part, {axis(along): i.kids[0]})",
        f"{DEFAULT} and windows",
    ),
    "the rest of a row starts late": Mutant(
        "codegen/cpu/lanes.py",
        "{end} - {width if again else rest}",
        "{end} - {width if again else rest} + 1",
        f"{DEFAULT} and (moments or layernorm)",
    ),
    "every lane starts with the sum so far": Mutant(
        "codegen/cpu/reduce.py",
        "{'0' if self.sums else",
        "{'0' if 0 else",
        f"{RANDOM} and moments",
    ),
    "window starts one late": Mutant(
        "codegen/tile/families.py",
        "lo, n, sizes = num(constant), num(1), {1}",
        "lo, n, sizes = num(constant + 1), num(1), {1}",
        f"{RANDOM} and conv",
    ),
    "kept although its axis is tiled": Mutant(
        "codegen/tile/walks.py",
        "if n != j and not self.c.is_cut(n) and again[n] in wanted",
        "if n != j and again[n] in wanted",
        f"{RANDOM} and softmax",
    ),
    "a root is stored once per tile of an axis it lacks": Mutant(
        "codegen/tile/lower.py",
        "ir.When(around, [op]) if around else op",
        "op",
        "many_random_schedules and row_update",
    ),
    "folds what is read outside the rows": Mutant(
        "codegen/tile/rows.py",
        "p.panel is None and count == total[name]",
        "p.panel is None",
        RANDOM,
    ),
    "the last tile has the full size": Mutant(
        "codegen/tile/context.py",
        "return ir.Range(ir.block_start(name), ir.block_size(name), (rest, tile))",
        "return ir.Range(ir.block_start(name), num(tile), (tile,))",
        f"{RANDOM} and layernorm",
    ),
    "irregular operands are read in place": Mutant(
        "kernel/access.py",
        "return self.irregular.isdisjoint(axes)",
        "return True",
        f"{RANDOM} and mod_matmul",
    ),
    "a transpose although % moves the lanes": Mutant(
        "kernel/access.py",
        "if self.stride(lane) > 1 and self.is_affine(lane) else",
        "if self.stride(lane) > 1 else",
        "test_access",
    ),
    "strides of inner dims first": Mutant(
        "kernel/access.py",
        "zip(reversed(index), reversed(shape), strict=True)",
        "zip(index, shape, strict=True)",
        f"{DEFAULT} and matmul",
    ),
    "a horizontal sum forgets half": Mutant(
        "codegen/cpu/lumc_kernel/vectors.h",
        "x2 v) { return v[0] + v[1]; }",
        "x2 v) { return v[0]; }",
        f"{RANDOM} and gemv",
    ),
    "tiles of -inf poison the sum": Mutant(
        "codegen/cpu/lumc_kernel/arithmetic.h",
        "return f < -0x1.fffffep127f ? -0x1.fffffep127f : f;",
        "return f;",
        f"{VALUES} and weighted",
    ),
    "exp2 loses denormals": Mutant(
        "codegen/cpu/lumc_kernel/power.h",
        "x = -151.0f > x ? -151.0f : x;",
        "x = -126.0f > x ? -126.0f : x;",
        f"{VALUES} and functions_of_special",
    ),
    "indices truncate": Mutant(
        "codegen/cpu/lumc_kernel/scalars.h",
        "return a >= 0 ? a / b : -((b - 1 - a) / b);",
        "return a / b;",
        f"{DEFAULT} and negative_division",
    ),
    "a select multiplies": Mutant(
        "codegen/text/term.py",
        'return f"({a} ? {b} : {zero(computed(dtype(e)))})"',
        'return f"({a} * {b})"',
        f"{VALUES} and select",
    ),
    "unguarded loads": Mutant(
        "kernel/normal.py",
        "if index.free & new.free and data not in subterms(index):",
        "if False:",
        "test_sanitizers_deep",
    ),
    "an outer tile is prepared by the first part only": Mutant(
        "codegen/cpu/kernel.py",
        "`tile` == `first` || ({tests})",
        "({tests})",
        f"{RANDOM} and (rms or qkv or gated)",
    ),
    "padding of panels is not skipped": Mutant(
        "codegen/tile/program.py",
        "n * -(-self.dims[at].size // width), n",
        "n * -(-self.dims[at].size // width), n + 1",
        f"{RANDOM} and linear",
    ),
    "a loop over tiles of a live axis goes to its extent": Mutant(
        "codegen/text/writer.py",
        "return str(loop.extent) if loop.length is None else self.index(loop.length)",
        "return str(loop.extent)",
        "test_live and test_lengths",
    ),
    "a live axis has all its values": Mutant(
        "codegen/tile/context.py",
        "self.whole[a] = ir.Range(num(0), n, kernel.lengths.sizes(a))",
        "self.whole[a] = ir.whole(kernel.extent[a])",
        "test_live and test_lengths",
    ),
    "a length is one too large": Mutant(
        "codegen/cpu/kernel.py",
        'f"*(const int64_t *)`args`[{i}]"',
        'f"*(const int64_t *)`args`[{i}] + 1"',
        "test_live and test_lengths and softmax",
    ),
    "dims change places": Mutant(
        "codegen/cpu/kernel.py",
        "for i, d in enumerate(dims, len(names)):",
        "for i, d in enumerate(dims[::-1], len(names)):",
        "test_live and test_lengths and chunk",
    ),
    "dims of the first call stay": Mutant(
        "codegen/cpu/kernel.py",
        'w.line(Let("long", w.names.dim(d.name), f"*(const int64_t *)`args`[{i}]"))',
        'w.line(f"static long {w.names.dim(d.name)}; if (!{w.names.dim(d.name)}) '
        '{w.names.dim(d.name)} = *(const int64_t *)`args`[{i}];")',
        "test_live and test_lengths and softmax",
    ),
    "a rest begins where its panel does": Mutant(
        "codegen/cpu/contract.py",
        "* within",
        "* False",
        "test_live and test_lengths and gated",
    ),
    "lanes are rounded up in results": Mutant(
        "codegen/tile/contractions.py",
        'if place.kind != "scratch" or len(ranges[lane].sizes) == 1:',
        "if len(ranges[lane].sizes) == 1:",
        "test_live and test_lengths and matmul",
    ),
    "f16 is rounded down": Mutant(
        "codegen/cpu/lumc_kernel/narrow.h",
        "base = lumc_float((int32_t)((bias >> 1) + 0x07800000u)) + base;",
        "base = lumc_float((int32_t)((bias >> 1) + 0x07800000u)) + base * 0.999f;",
        f"{VALUES} and narrow_float",
    ),
    "an empty sum is 1": Mutant(
        "kernel/normal.py",
        "return const(0, kind) if",
        "return const(1, kind) if",
        f"{VALUES} and empty",
    ),
}


def catches(mutant: Mutant, folder: Path) -> bool:
    """Do the tests fail on a copy of the package with this fault?"""
    shutil.copytree(SOURCE, folder / "src")  # with its bytecode, which has the same times
    file = folder / "src" / "lumc" / mutant.file
    text = file.read_text()
    assert text.count(mutant.old) == 1, f"{mutant.old!r} occurs {text.count(mutant.old)} times"
    file.write_text(text.replace(mutant.old, mutant.new))
    tests = Path(__file__).parent
    path = f"pythonpath={folder / 'src'} {tests.parent}"
    options = ["-x", "-q", "-n", "0", "-p", "no:cacheprovider", "-o", path, "-k", mutant.tests]
    units = "unit/codegen/tile/test_lower", "unit/kernel/test_normal", "unit/kernel/test_access"
    names = (
        "numeric/test_kernels",
        f"numeric/{VALUES}",
        "numeric/test_live",
        "numeric/test_integers",
        *units,
    )
    files = [str(tests.parent / f"{name}.py") for name in names]
    command = [sys.executable, "-m", "pytest", *options, *files]
    env = {**os.environ, "PYTHONPATH": f"{folder / 'src'}", "LUMC_FUZZ": "1"}
    log = folder / "log"
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, env=env, start_new_session=True)
        try:
            code = process.wait(HANGS)
        except subprocess.TimeoutExpired:  # memory that was written over stops some for ever
            os.killpg(process.pid, signal.SIGKILL)
            code = process.wait()
    assert code <= 1, log.read_text()[-2000:]  # not: no test has that name
    return code != 0  # a crash is a failure too


@pytest.mark.parametrize("name", QUICK)
def test_a_fault_is_caught(name: str, tmp_path: Path) -> None:
    assert catches(QUICK[name], tmp_path)


@pytest.mark.deep
@pytest.mark.parametrize("name", MORE)
def test_more_faults_are_caught(name: str, tmp_path: Path) -> None:
    assert catches(MORE[name], tmp_path)
