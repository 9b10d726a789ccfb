"""Artifacts of strangers, whose digests are right: each is refused by the pass that reads it, with
exit code 5 and one clear error, and nothing is compiled, run or written."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from commands import Lumc
from forging import GRAPH, forge
from lumc.artifacts import files
from lumc.artifacts.bodies import plan_to_json, space_to_json
from lumc.artifacts.source import foreign_line
from lumc.cli import commands
from lumc.codegen.text.headers import NAMES, header_of
from lumc.graph.expr import Expr, add, axis, make, substitute, subterms
from lumc.kernel.term import load

Change = Callable[[Any], Any]
NEXT = {"ls": ("profile", "--estimate"), "lp": ("codegen",), "lk": ("link",)}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the artifacts of one graph."""
    folder = tmp_path_factory.mktemp("made")
    (folder / "m.lg").write_text(GRAPH)
    steps = (
        ("search", "m.lg", "-o", "m.ls"),
        ("profile", "--estimate", "m.ls", "-o", "m.lp"),
        ("codegen", "m.lp", "-o", "m.lk"),
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for step in steps:
            done = CliRunner().invoke(commands, list(step), catch_exceptions=False)
            assert done.exit_code == 0, done.output
    return folder


def refused(end: str, change: Change, made: Path, lumc: Lumc) -> str:
    """What the pass that reads a forged artifact says; the folder holds no other file then."""
    file = Path(shutil.copy(made / f"m.{end}", lumc.folder))
    forge(file, change)
    said = lumc.fails(5, *NEXT[end], file.name, "-o", "out")
    assert [*lumc.folder.iterdir()] == [file]
    assert said.startswith("E0") and "\n" not in said.partition("\n  ")[0]
    return said


def target(**fields: Any) -> Change:
    return lambda b: b["target"].update(fields)


SHELL = ["-march=x86-64-v3", "-wrapper", "/bin/sh,-c,echo pwned >> PWNED"]
TARGETS: dict[str, Change] = {
    "flags that run a shell": target(flags=SHELL),
    "a plug-in": target(flags=["-fplugin=./evil.so"]),
    "no flags": target(flags=[]),
    "a name that is a path": target(name="cpu:x/../../../../victim/new"),
    "a name of another kind": target(name="cuda:sm_90"),
    "no such target": target(name="cpu:pdp-11"),
    "a short name": target(name="cpu"),
    "another architecture": target(arch="aarch64"),
    "no threads": target(threads=0),
    "too many threads": target(threads=1 << 20),
    "lanes": target(lanes=5),
    "registers": target(registers=10**9),
    "no cache": target(l2=0),
    "no speed": target(gflops=0.0),
    "three units": target(fmas=3),
    "a GPU": target(gpu={"processors": 1, "shared": 1, "tensor_gflops": 1.0}),
}


@pytest.mark.parametrize("end", NEXT)
@pytest.mark.parametrize("what", TARGETS)
def test_targets_are_those_of_lumc(what: str, end: str, made: Path, lumc: Lumc) -> None:
    refused(end, TARGETS[what], made, lumc)


# ---- names


NAMES_OF: dict[str, tuple[str, Callable[[Any, str], Any]]] = {
    "kernel": ("lp", lambda b, n: b["kernels"][0]["kernel"].update(name=n)),
    "kernel key": ("lp", lambda b, n: b["kernels"][0].update(key=n)),
    "buffer": ("lp", lambda b, n: b["kernels"][0]["kernel"]["buffers"][0].update(name=n)),
    "root": ("lp", lambda b, n: b["kernels"][0]["kernel"]["roots"][0].update(buffer=n)),
    "axis": ("lp", lambda b, n: b["kernels"][0]["kernel"]["axes"].__setitem__(0, n)),
    "extent": ("lp", lambda b, n: b["kernels"][0]["kernel"]["extent"].update({n: 3})),
    "region": ("ls", lambda b, n: b["regions"][0].update(key=n)),
    "axis of a region": ("ls", lambda b, n: b["regions"][0]["frame"]["extent"].update({n: 3})),
    "input of a region": ("ls", lambda b, n: b["regions"][0]["frame"]["inputs"][0].update(name=n)),
    "symbol": ("lk", lambda b, n: b["kernels"][0].update(symbol=n)),
    "kernel of a .lk": ("lk", lambda b, n: b["kernels"][0].update(name=n)),
    "value": ("lk", lambda b, n: b["entries"][0]["values"][-1].update(name=n)),
    "entry": ("lk", lambda b, n: b["entries"][0].update(name=n)),
    "output": ("lk", lambda b, n: b["entries"][0].update(outputs=[n])),
}
BAD = (
    "**// __attribute__((constructor)) static void pwn(void) {} /**",
    *("*/", "../../x", "a/b", "a\nb", "b0\n", "a;b", 'a"b', "a\\b", "a\0b", "\N{DEGREE SIGN}"),
    "x" * 2000,
)  # fmt: skip


@pytest.mark.parametrize("which", NAMES_OF)
def test_names_mean_nothing_elsewhere(which: str, made: Path, lumc: Lumc) -> None:
    end, change = NAMES_OF[which]
    for name in BAD:
        said = refused(end, lambda b, n=name: change(b, n), made, lumc)
        assert name not in said or len(name) < 20
        (lumc.folder / f"m.{end}").unlink()


# ---- indices


def moved(e: Expr, by: int) -> Expr:
    """With every load so many elements further along its first dim."""
    loads = [r for r in subterms(e) if r.kind == "load" and r.kids]
    assert loads
    return substitute(
        e, {r: make("load", r.attr, (add(r.kids[0], by), *r.kids[1:])) for r in loads}
    )


@pytest.mark.parametrize("by", [30_000_000, 1, -1])
def test_loads_of_plans_stay_inside(by: int, made: Path, lumc: Lumc) -> None:
    plan, _ = files.plan_from_text((made / "m.lp").read_text(), made, "m.lp")
    for key, k in plan.kernels.items():
        roots = tuple(replace(r, value=moved(r.value, by)) for r in k.kernel.roots)
        changed = {**plan.kernels, key: replace(k, kernel=replace(k.kernel, roots=roots))}
        body = plan_to_json(replace(plan, kernels=changed))
        assert "is not proven to lie inside" in refused(
            "lp", lambda b, new=body: b.update(new), made, lumc
        )


@pytest.mark.parametrize("by", [30_000_000, 1, -1])
def test_loads_of_spaces_stay_inside(by: int, made: Path, lumc: Lumc) -> None:
    space, _ = files.space_from_text((made / "m.ls").read_text(), made, "m.ls")
    region, *others = space.regions
    *rest, last = region.variants
    variants = (*rest, replace(last, value=moved(last.value, by)))
    body = space_to_json(replace(space, regions=(replace(region, variants=variants), *others)))
    assert "is not proven to lie inside" in refused("ls", lambda b: b.update(body), made, lumc)


@pytest.mark.parametrize("by", [30_000_000, 1, -1])
def test_stores_stay_inside(by: int, made: Path, lumc: Lumc) -> None:
    plan, _ = files.plan_from_text((made / "m.lp").read_text(), made, "m.lp")
    key, k = next(iter(plan.kernels.items()))
    (root,) = k.kernel.roots
    late = replace(root, index=(add(root.index[0], by), *root.index[1:]))
    changed = {**plan.kernels, key: replace(k, kernel=replace(k.kernel, roots=(late,)))}
    body = plan_to_json(replace(plan, kernels=changed))
    assert "out[" in refused("lp", lambda b: b.update(body), made, lumc)


def test_cuts_are_values_of_their_variant(made: Path, lumc: Lumc) -> None:
    space, _ = files.space_from_text((made / "m.ls").read_text(), made, "m.ls")
    region, *others = space.regions
    (first, *rest), reads = region.variants, region.frame.inputs
    assert reads and reads[0].shape
    strange = load(reads[0].name, reads[0].dtype, *[0] * len(reads[0].shape))
    for cuts in ((strange,), (first.value, first.value), (axis("i"),)):
        variants = (replace(first, cuts=cuts), *rest)
        body = space_to_json(replace(space, regions=(replace(region, variants=variants), *others)))
        assert "cut" in refused("ls", lambda b, new=body: b.update(new), made, lumc)


@pytest.mark.parametrize("factor", [1 << 61, 0])
def test_indices_do_not_overflow(factor: int, made: Path, lumc: Lumc) -> None:
    """Six times 2**61 wraps in 64 bits, and in the proof it divides out."""
    plan, _ = files.plan_from_text((made / "m.lp").read_text(), made, "m.lp")
    key, k = next(iter(plan.kernels.items()))
    (root,) = k.kernel.roots
    far = make("lin", (0, (factor,)), (root.index[0],))
    index = (make("div", (1 << 61,), (far,)), *root.index[1:])
    roots = (replace(root, index=index),)
    changed = {**plan.kernels, key: replace(k, kernel=replace(k.kernel, roots=roots))}
    body = plan_to_json(replace(plan, kernels=changed))
    assert ("overflows" if factor else "does not count") in refused(
        "lp", lambda b: b.update(body), made, lumc
    )


def term(b: Any, kind: str) -> Any:
    return next(t for k in b["kernels"] for t in k["terms"] if t[0] == kind)


TERMS: dict[str, Change] = {
    "a guard that lets more in": lambda b: term(b, "guard").__setitem__(1, [-5, 99]),
    "a smaller buffer": lambda b: b["kernels"][0]["kernel"]["buffers"][0].update(shape=[1, 1]),
    "a longer axis": lambda b: b["kernels"][0]["kernel"]["extent"].update(
        dict.fromkeys(b["kernels"][0]["kernel"]["extent"], 1 << 20)
    ),
    "a load of another type": lambda b: term(b, "load")[1].__setitem__(1, "f64"),
    "a logarithm of an index": lambda b: term(b, "red").__setitem__(1, ["sum", []]),
    "a sum over nothing known": lambda b: term(b, "red").__setitem__(1, ["sum", ["zz"]]),
    "a buffer that is no weight": lambda b: b["kernels"][0]["kernel"]["buffers"][0].update(
        constant=True
    ),
}


@pytest.mark.parametrize("what", TERMS)
def test_terms_of_plans(what: str, made: Path, lumc: Lumc) -> None:
    refused("lp", TERMS[what], made, lumc)


# ---- sources


SOURCES = (
    '#include "/etc/passwd"', "#include </etc/passwd>", ' # include "lumc_kernel.h"',
    "/* */ #include <stdio.h>", "#embed </etc/passwd>", "%:include <stdio.h>",
    "??=include <stdio.h>",
    '__asm__(".incbin \\"/etc/passwd\\"");', '__asm__("nop");', 'asm("" ".incbin");',
    '_Pragma("GCC dependency \\"/etc/passwd\\"")', "#pragma GCC dependency </etc/passwd>",
    "#pragma GCC pch_preprocess </etc/passwd>", "#pragma omp simd\\", "#def\\", "#define S(x) #x",
    "#define asm", "#line 3", 'static int x __attribute__((section("a,\\"a\\"\n.incbin")));',
    "int a; \r#include <stdio.h>", "a \x0b", "// \N{LATIN SMALL LETTER E WITH ACUTE}",
    '__asm__("" : "+r"(x)); __asm__("nop");', 'extern "C" __global__ extern "C"',
)  # fmt: skip


@pytest.mark.parametrize("line", SOURCES)
def test_compiling_a_source_reads_no_other_file(line: str, made: Path, lumc: Lumc) -> None:
    def change(b: Any) -> None:
        b["kernels"][0]["source"] += line + "\n"

    assert "a line that lumc does not write" in refused("lk", change, made, lumc)


def test_what_lumc_writes_is_taken() -> None:
    """Every line of the golden kernels, and headers that make no text of what they are given."""
    kernels = sorted((Path(__file__).parents[1] / "golden" / "kernels").iterdir())
    assert len(kernels) > 10
    for file in kernels:
        assert not foreign_line(file.read_text()), file
    for kind in NAMES:
        lines = header_of(kind).splitlines()
        inside = [s.replace("##", "") for s in lines if not s.lstrip().startswith("#")]
        defined = [s.partition("#define")[2].replace("##", "") for s in lines if "#define" in s]
        assert not any("#" in s for s in (*inside, *defined)), kind


def swapped(b: Any) -> None:
    """A kernel writes where an input of its region lies."""
    step = b["regions"][0]["steps"][-1]
    step["args"] = ["b0" if a == "out" else "out" if a == "b0" else a for a in step["args"]]


def test_nothing_given_is_written(made: Path, lumc: Lumc) -> None:
    refused("lp", swapped, made, lumc)
    (lumc.folder / "m.lp").unlink()
    refused("lp", lambda b: b["instances"][-1].update(outputs=["x"]), made, lumc)


def test_instances_have_the_values_of_their_region(made: Path, lumc: Lumc) -> None:
    refused("ls", lambda b: b["instances"][0]["inputs"].append("x"), made, lumc)
    (lumc.folder / "m.ls").unlink()
    refused("ls", lambda b: b["regions"].append(b["regions"][0]), made, lumc)


def test_schedules_are_of_the_kernel_that_is_lowered(made: Path, lumc: Lumc) -> None:
    """An axis of extent 1 is none, and so may be no part of a schedule."""

    def shrink(b: Any) -> None:
        for k in b["kernels"]:
            k["kernel"]["extent"]["i"] = 1

    said = refused("lp", shrink, made, lumc)
    assert "E0411" in said and "does not list the axes" in said


CODES: dict[str, Change] = {
    "another header": lambda b: b.update(header=b["header"] + "\n"),
    "an include in the header": lambda b: b.update(header='#include "/etc/passwd"\n'),
    "an input of another size": lambda b: b["entries"][0]["values"][0].update(shape=[7, 10]),
    "an input more": lambda b: b["entries"][0]["values"].append(
        {"name": "z", "dtype": "f32", "shape": [1], "place": "input", "offset": 5}
    ),
    "an entry less": lambda b: b.update(entries=[]),
    "a state of another size": lambda b: next(
        v for v in b["entries"][0]["values"] if v["place"] == "state"
    ).update(shape=[1 << 20]),
}


@pytest.mark.parametrize("what", CODES)
def test_kernels_fit_their_graph(what: str, made: Path, lumc: Lumc) -> None:
    refused("lk", CODES[what], made, lumc)
