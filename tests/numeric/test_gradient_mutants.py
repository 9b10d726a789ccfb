"""Wrong gradient passes: each fault, planted in a copy of lumc.grad, must fail one of the checks
that it names. A few run always, all of them with LUMC_FUZZ=1."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module, invalidate_caches
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import lumc
import lumc.grad
from gradient_checks import CHECKS

SOURCE = Path(lumc.__file__).parent / "grad"
RANDOM = ("fibres of random reads", "adjoints of random reads")
SMALL = "fibres of movements are small"


class Mutant(NamedTuple):
    file: str
    old: str
    new: str
    checks: tuple[str, ...]  # one of which fails


def mutant(file: str, old: str, new: str, *checks: str) -> Mutant:
    return Mutant(f"{file}.py", old, new, checks)


QUICK = {
    "a quotient has one value less": mutant(
        "fibre", "self.fresh(extent(add(most, 1)))", "self.fresh(extent(most))", *RANDOM
    ),
    "parts are summed where they are padded": mutant(
        "adjoint", "if part and _are_free", "if False and _are_free", "work move slice of columns"
    ),
    "a degree is of any element": mutant(
        "degrees",
        "(d.kind, d.of) == (more[0].kind, more[0].of)",
        "d.kind == more[0][0]",
        "case shifted, of the neighbour",
    ),
    "equal maxima all count": mutant(
        "rules",
        "[top, dy * reciprocal(count).expand(*a.shape)]",
        "[top, dy.expand(*a.shape)]",
        "equal maxima share",
    ),
    "readers give one after the other": mutant(
        "reverse",
        "self.parts.setdefault(o.source, []).append(",
        "self.parts.__setitem__(o.source, []) or self.parts[o.source].append(",
        "case each twice",
    ),
}
MORE = {
    # ---- fibres
    "bounds are no equations": mutant("fibre", "if b.hi == b.lo + 1]", "if False]", SMALL),
    "bounds of two values are equations": mutant(
        "fibre", "if b.hi == b.lo + 1]", "if b.hi == b.lo + 2]", *RANDOM
    ),
    "equations begin at 0": mutant("fibre", "add(b.index, -b.lo)", "b.index", *RANDOM),
    "solutions may lie outside": mutant(
        "fibre", "        self.require(value, self.extents[name])\n", "", *RANDOM
    ),
    "bounds are taken for proven": mutant(
        "fibre", "if not is_inside(e, n, (), self.extents, self.dims):", "if False:", *RANDOM
    ),
    "a remainder has one value less": mutant(
        "fibre", "1))), self.fresh(c)", "1))), self.fresh(c - 1)", *RANDOM
    ),
    "a constant is divided too": mutant("fibre", "r, -constant)", "r)", *RANDOM),
    "no quotient becomes an axis": mutant("fibre", "QUOTIENTS = 64", "QUOTIENTS = 0", SMALL),
    "sums keep the name of another constant": mutant(
        "fibre", "linear(t)[0] - constant", "0", *RANDOM
    ),
    "a sum begins at 0": mutant(
        "fibre", "-1), 1))), low)\n        alike", "-1), 1))))\n        alike", *RANDOM
    ),
    "a name stands for nothing": mutant(
        "fibre",
        "self.equations.append(self.simple(add(x,",
        "list().append(self.simple(add(x,",
        *RANDOM,
    ),
    "what is not solved may be off by one": mutant(
        "fibre",
        "            self.require(e, 1)\n            return",
        "            self.require(e, 2)\n            return",
        *RANDOM,
    ),
    "what is not solved is forgotten": mutant(
        "fibre", "            self.require(e, 1)\n            return", "            return", *RANDOM
    ),
    "constants change sides with their sign": mutant(
        "fibre", "from_linear(-constant, {", "from_linear(constant, {", *RANDOM
    ),
    "known axes change sides with their sign": mutant(
        "fibre", "{a: -c for a, c", "{a: c for a, c", *RANDOM
    ),
    "the last one counts as the first": mutant(
        "fibre", "value = add(value, mul(last, -c))", "value = value", *RANDOM
    ),
    "turned axes begin behind the end": mutant(
        "fibre", "self.fresh(n), add(as_expr(n), -1)", "self.fresh(n), as_expr(n)", *RANDOM
    ),
    "any value is a multiple": mutant(
        "fibre", "self.require(mod(value, common, self.ranges), 1)", "pass", *RANDOM
    ),
    "digits reach the next one": mutant("fibre", "if reach < step:", "if reach <= step:", *RANDOM),
    "no digits": mutant("fibre", "if reach < step:", "if False:", SMALL),
    "the reach forgets the factor": mutant(
        "fibre", "reach += parts[a] * (self.most(a) - 1)", "reach += self.most(a) - 1", *RANDOM
    ),
    "digits above are not divided": mutant(
        "fibre",
        "{b: parts[b] // step for b in order[i:]}",
        "{b: parts[b] for b in order[i:]}",
        *RANDOM,
    ),
    "the shortest axis follows": mutant(
        "fibre", "name = max(parts, key=", "name = min(parts, key=", SMALL
    ),
    "any rest is a multiple": mutant(
        "fibre", "            self.require(mod(rest, parts[name], self.ranges), 1)\n", "", *RANDOM
    ),
    "no phases": mutant("fibre", "if len(small) == 1 and", "if False and", SMALL),
    "phases of any factor": mutant("fibre", "and parts[small[0]] == 1:", "and True:", *RANDOM),
    "windows lose their last step": mutant(
        "fibre",
        "add(floordiv(add(as_expr(n), -1), step, self.ranges), 1)",
        "floordiv(as_expr(n), step, self.ranges)",
        *RANDOM,
        SMALL,
    ),
    # ---- adjoints
    "bounds of the read are forgotten": mutant(
        "adjoint", "*back.bounds, *_under(read.bounds, back.loops)", "*back.bounds,", *RANDOM
    ),
    "bounds of a part are forgotten": mutant(
        "adjoint",
        "limits = _under(read.bounds, at)",
        "limits = ()",
        "case move pad of a slice",
        *RANDOM,
    ),
    "a part has no border": mutant("adjoint", "env, back.bounds)", "env, ())", "case move slice"),
    "a part is what is fixed, whatever is free": mutant(
        "adjoint",
        "if part and _are_free(back, rest, rank):",
        "if part:",
        *RANDOM,
        "case conv2d k3 s2 p1 d1",
    ),
    "copies count once": mutant(
        "adjoint", "out = out * (float(n) if", "out = out * (1.0 if", "case move sum of a copy"
    ),
    "dims count once": mutant(
        "adjoint", "else out.model.size(n, out.dtype))", "else 1.0)", "copies along a dim"
    ),
    "bounds without end": mutant(
        "adjoint",
        "if len(operand.bounds) > MAX_RANK:",
        "if False:",
        "chains of slices and reshapes",
    ),
    "unproven indices are left": mutant(
        "adjoint",
        "out.append(mod(e, n, loop_ranges(loops, dims)))",
        "out.append(e)",
        "indices without a proof",
    ),
    "bounds of the fibre are forgotten": mutant(
        "adjoint", "limits = (*back.bounds, *", "limits = (*(), *", *RANDOM
    ),
    # ---- degrees
    "beyond a bound it moves too": mutant(
        "degrees", 'if o.bounds and d.kind != "mul":', "if False:", "case shifted, padded"
    ),
    "an element is that of the reader": mutant(
        "degrees",
        "tuple(substitute(e, over) for e in d.of)",
        "d.of",
        "case shifted, of the neighbour",
        "case shifted, over rows",
    ),
    "a sum moves as its first term": mutant(
        "degrees",
        "total = sum(d.by for d in some)",
        "total = some[0].by",
        "maxima that cancel cost nothing",
    ),
    "all that is summed cancels": mutant(
        "degrees",
        "if abs(total) > small else None",
        "if False else None",
        "case shifted, and back in part",
    ),
    "sums of powers move as one": mutant(
        "degrees",
        "case Op.ADD if both and some[0] == some[-1]:",
        "case Op.ADD if some[0] == some[-1]:",
        "case shifted, sum with others, over all",
    ),
    "products move as their factor": mutant(
        "degrees",
        "if isinstance(o, Scalar) and not o.bounds]",
        "if isinstance(o, Scalar)] or [1.0]",
        "case shifted, product with others, and back",
    ),
    "a factor counts for nothing": mutant(
        "degrees",
        "_total([d._replace(by=d.by * by[0])])",
        "d",
        "case shifted, and doubled",
        "maxima that cancel cost nothing",
    ),
    "squares move as their root": mutant(
        "degrees",
        'case Op.MUL if alike and d.kind == "mul":',
        "case Op.MUL if alike:",
        "maxima that cancel cost nothing",
    ),
    "selects move as what they select": mutant(
        "degrees",
        'return d if d.kind == "mul" and ds[0] is None else OTHER',
        "return d",
        "case shifted, kept where positive",
    ),
    "sums move with any element": mutant(
        "degrees",
        "if any(name in e.free for e in d.of):",
        "if False:",
        "case shifted, over rows",
        "case shifted, over both",
    ),
    "a sum moves as each term": mutant(
        "degrees",
        "return d._replace(by=d.by * size) if",
        "return d if",
        "case shifted, and back in full",
        "case shifted, and back",
    ),
    "a root moves as its square": mutant(
        "degrees",
        "return d._replace(by=d.by / 2)",
        "return d",
        "case shifted, root against all",
        "case shifted, root",
    ),
    "a reciprocal moves as its number": mutant(
        "degrees",
        "return d._replace(by=-d.by)",
        "return d",
        "maxima that cancel cost nothing",
        "case shifted, opposite",
    ),
    "nearly 0 is half": mutant(
        "degrees",
        "EXACT = 1e-12",
        "EXACT = 0.9",
        "case shifted, another degree",
        "case shifted, and back in part",
    ),
    "comparisons move": mutant(
        "degrees",
        "        return None\n    if OTHER",
        "        return OTHER\n    if OTHER",
        "maxima that cancel cost nothing",
    ),
    "the end may move": mutant(
        "degrees", "is OTHER or (found and n is end):", "is OTHER:", "a maximum is a loss"
    ),
    "a maximum that is the loss": mutant(
        "degrees", "    if m is end:\n        return True\n", "", "a maximum is a loss"
    ),
    # ---- rules
    "a logarithm to another base": mutant("rules", "dy * (1.0 / LN2)", "dy", "case each log2"),
    "a power of another base": mutant("rules", "[dy, y * LN2]", "[dy, y]", "case each exp2"),
    "a sine is its own": mutant("rules", "(x + math.pi / 2)", "(x + 0.0)", "case each sin"),
    "a root grows twice as fast": mutant(
        "rules", "[dy * 0.5, reciprocal(y)]", "[dy, reciprocal(y)]", "case each sqrt"
    ),
    "a reciprocal grows": mutant(
        "rules", "[dy * -1.0, y, y]", "[dy, y, y]", "case each reciprocal"
    ),
    "a reciprocal falls as its number": mutant(
        "rules", "[dy * -1.0, y, y]", "[dy * -1.0, y]", "case each reciprocal"
    ),
    "sums have one term": mutant(
        "rules",
        "{0: [dy], 1: [dy]}\n        case Op.MUL if",
        "{0: [dy]}\n        case Op.MUL if",
        "case each of three",
    ),
    "selects let all through": mutant(
        "rules", "return {1: [a, dy]}", "return {1: [dy]}", "case each where"
    ),
    "factors are their own": mutant(
        "rules", "{0: [dy, b], 1: [dy, a]}", "{0: [dy, a], 1: [dy, b]}", "case matmul"
    ),
    "divisors do not count": mutant(
        "rules", "1: [dy, (y - a) * reciprocal(b)]}", "}", "case each fmod below it"
    ),
    "divisors count backwards": mutant(
        "rules", "(y - a) * reciprocal(b)", "(a - y) * reciprocal(b)", "case each fmod below it"
    ),
    "casts keep the dtype": mutant("rules", "dy.to(a.dtype)", "dy", "casts go back"),
    "what was written over counts": mutant(
        "rules", "[logical_not(written), dy]", "[dy]", "states after an update"
    ),
    "what is written counts for nothing": mutant(
        "rules", "dy], 1: [dy]}\n    return", "dy]}\n    return", "states after an update"
    ),
    "casts carry nothing": mutant(
        "rules", "if a.dtype.is_float else {}", "if False else {}", "casts go back"
    ),
    # ---- the way back
    "maxima that others read are left out": mutant(
        "reverse", "if len(self.readers[n]) > 1 or", "if", "equal maxima share"
    ),
    "maxima that are asked by are left out": mutant(
        "reverse", "> 1 or n in self.targets:", "> 1:", "inner maxima"
    ),
    "what has no element gives something": mutant(
        "reverse", " and 0 not in t.shape", "", "nothing comes of nothing"
    ),
    "maxima of maxima are taken one by one": mutant(
        "reverse",
        "and o.source.op is Op.MAX and not",
        "and o.source.op is Op.MAX and False and not",
        "equal maxima share",
    ),
    "no maximum cancels": mutant(
        "reverse", "elif moves(", "elif True or moves(", "maxima that cancel cost nothing"
    ),
    "every maximum cancels": mutant("reverse", "elif moves(", "elif False and moves(", "case max"),
    "nothing stops": mutant(
        "reverse",
        "return n.dtype.is_float and n not in stopped",
        "return n.dtype.is_float",
        "what stops is constant",
    ),
    "views are whatever they are of": mutant(
        "reverse",
        "if read.bounds or set(index) != own or [",
        "if False and [",
        "what has no gradient is refused",
    ),
    "integers have gradients": mutant(
        "reverse",
        "    if not t.dtype.is_float:\n",
        "    if False:\n",
        "what has no gradient is refused",
    ),
    "any number of losses": mutant(
        "reverse", "if any(e != 1 for e in loss.shape) or", "if", "what has no gradient is refused"
    ),
    "a gradient has the axes of the node": mutant(
        "reverse",
        "return [_like(flow.total(n), t) for",
        "return [flow.total(n) for",
        "values on the way",
    ),
    "no dependence is a zero": mutant(
        "reverse", "if n not in flow.alive]", "if False]", "what has no gradient is refused"
    ),
    "the loss counts twice": mutant(
        "reverse", "full(loss.shape, 1.0,", "full(loss.shape, 2.0,", "case sum"
    ),
    # ---- graphs
    "weights are inputs of one entry": mutant(
        "entries", "if w in used or e is entry", "if e is entry", "graphs keep all that was there"
    ),
    "weights that are only written stay": mutant(
        "entries",
        "        used |= {u.value for u in e.updates}\n",
        "",
        "graphs keep all that was there",
    ),
    "weights stay": mutant(
        "entries", '[n for n in found if n.op == "weight"]', "[]", "graphs keep all that was there"
    ),
    "names change": mutant(
        "entries",
        "            m.name(m.whole(new[n]), n.name)\n",
        "",
        "graphs keep all that was there",
    ),
    "patterns take all": mutant(
        "entries", "if n in lives or text in known:", "if True:", "names and patterns"
    ),
    "nothing of a graph stops": mutant(
        "entries", "[m.whole(new[n]) for n in stopped]", "[]", "a stop in a graph"
    ),
    "names match nothing": mutant(
        "entries", "    if not found or not", "    if not", "names and patterns"
    ),
}
EVERY = QUICK | MORE


@contextmanager
def mutated(m: Mutant, folder: Path) -> Iterator[Any]:
    """The package lumc.grad with a fault, in the place of ours."""
    shutil.copytree(SOURCE, folder / "grad", ignore=shutil.ignore_patterns("__pycache__"))
    file = folder / "grad" / m.file
    text = file.read_text()
    assert text.count(m.old) == 1, f"{m.old!r} occurs {text.count(m.old)} times"
    file.write_text(text.replace(m.old, m.new))
    kept = {name: module for name, module in sys.modules.items() if is_grad(name)}
    for name in kept:
        del sys.modules[name]
    lumc.__path__.insert(0, str(folder))
    invalidate_caches()
    try:
        yield import_module("lumc.grad")
    finally:
        lumc.__path__.remove(str(folder))
        for name in [name for name in sys.modules if is_grad(name)]:
            del sys.modules[name]
        sys.modules.update(kept)
        lumc.grad = kept["lumc.grad"]  # type: ignore[attr-defined]


def is_grad(name: str) -> bool:
    return f"{name}.".startswith("lumc.grad.")


def dies(m: Mutant, folder: Path) -> bool:
    """Whether one of its checks fails; whatever is raised is a failure."""
    with mutated(m, folder) as package:
        assert Path(package.__file__).is_relative_to(folder)
        for name in m.checks:
            try:
                CHECKS[name](package)
            except (Exception, pytest.fail.Exception):
                return True
    return False


@pytest.mark.parametrize("name", MORE)
def test_more_faults_can_be_made(name: str) -> None:
    """The deep suite finds their lines; a change that moves them is told at once."""
    m = MORE[name]
    assert (SOURCE / m.file).read_text().count(m.old) == 1


@pytest.mark.parametrize("name", QUICK)
def test_a_fault_is_caught(name: str, tmp_path: Path) -> None:
    assert dies(QUICK[name], tmp_path)


@pytest.mark.deep
@pytest.mark.parametrize("name", MORE)
def test_more_faults_are_caught(name: str, tmp_path: Path) -> None:
    assert dies(MORE[name], tmp_path)


def test_no_fault_is_none(tmp_path: Path) -> None:
    """What is the same lives, and the checks that mutants name pass without them."""
    assert not dies(
        mutant(
            "rules",
            "LN2 = math.log(2.0)",
            "LN2 = math.log(2)",
            *sorted({c for m in EVERY.values() for c in m.checks}),
        ),
        tmp_path,
    )
