"""The backend suite of the onnx package through the whole pipeline, to compiled C.

Cases go through ``lumc.onnx_backend``. Their kernels are compiled many at a time, and run in a
process of their own, in one part and in two; what they give is compared with what the suite expects
within the suite's tolerances.
"""

from __future__ import annotations

import ctypes
import gc
import logging
import multiprocessing
import os
import pickle
import re
import shutil
import tempfile
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

import launching
from kernels import PLAIN, QUICK, native
from limiting import limited
from lumc import onnx_backend
from lumc.codegen.code import Code
from lumc.codegen.generate import generate
from lumc.errors import Exit, LumcError
from lumc.frontend.api.model import Model
from lumc.profile.choose import estimate
from lumc.schedule.plan import Plan
from lumc.search import search
from lumc.search.saturate import Limits
from lumc.search.space import Space

KINDS = ("node", "simple", "pytorch-converted", "pytorch-operator")
BF16_RTOL = 2**-6  # as the suite's own runner: two units in the last place
LIMITS = Limits(nodes=1500, iterations=10, seconds=60.0)
SECONDS = 60  # of the processor, for one case
BATCH = 24  # cases whose kernels are compiled together
PASSED = ("pass", "known")


@dataclass(frozen=True)
class How:
    """How much is searched, and how much the C compiler does."""

    limits: Limits = LIMITS
    flags: Sequence[str] = tuple(QUICK)
    plan: Callable[[Space], Plan] = estimate


def as_one(space: Space) -> Plan:
    """Every region as one kernel, if that is possible: there is little to choose from."""
    regions = [
        replace(r, variants=tuple(replace(v, cuts=()) for v in r.variants)) for r in space.regions
    ]
    try:
        return estimate(replace(space, regions=tuple(regions)))
    except LumcError as e:
        if e.code != "E0415":
            raise
        return estimate(space)


WHOLE = How()
# few steps to one variant of a region, not cut, and no optimisation: all passes, in a third of the
# time
SHORT = How(replace(LIMITS, variants=1, iterations=3), tuple(PLAIN), as_one)


@dataclass(frozen=True)
class Result:
    """What became of a case: ``pass``; ``known``, a pass with small inputs known at import;
    ``refused`` with a clean error and exit code 4, ``rounded`` where the suite's values are,
    ``random`` where they are those of numpy's generator, ``wrong``, ``crash``, ``hang`` or
    ``error``."""

    name: str
    kind: str
    operators: tuple[str, ...]
    verdict: str
    detail: str = ""
    kernels: int = 0


@cache
def cases() -> Sequence[Any]:
    """All of them, in a fixed order; making them takes some seconds."""
    from onnx.backend.test.loader import load_model_tests

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return tuple(case for kind in KINDS for case in load_model_tests(kind=kind))


def run(wanted: Sequence[Any], jobs: int = 1, batch: int = BATCH, how: How = WHOLE) -> list[Result]:
    """All data sets of each case, on so many processes. They begin anew: threads of e-graphs, which
    a process may have, are not in its copy."""
    parts = [list(wanted[i : i + batch]) for i in range(0, len(wanted), batch)]
    if jobs == 1:
        found = [r for part in parts for r in _batch(part, how)]
    else:
        with multiprocessing.get_context("spawn").Pool(jobs, maxtasksperchild=8) as pool:
            found = [
                r for part in pool.imap_unordered(partial(_batch, how=how), parts) for r in part
            ]
    order = {case.name: i for i, case in enumerate(wanted)}
    return sorted(found, key=lambda r: order[r.name])


# ---- a case


class Collected(Exception):
    """A model that is to be compiled with others."""


@dataclass
class Kernels:
    """The code of a model; it runs once it is in a library, its symbols with a prefix."""

    built: Model
    code: Code
    library: ctypes.CDLL | None = None
    prefix: str = ""
    parts: int = 1

    def __call__(self, feed: Mapping[str, Any]) -> Mapping[str, Any]:
        if self.library is None:
            raise Collected

        def leaf(node: Any) -> Any:
            return feed[node.name] if node.op == "input" else self.built.read_weight(node)

        return launching.run(self.library, self.prefix, self.code, "main", leaf, self.parts)


@dataclass
class Attempt:
    """A case, the codes of its models in the order of its data sets, and what failed first."""

    case: Any
    model: Any
    sets: list[tuple[list[Any], list[Any]]]
    how: How = WHOLE
    codes: list[Kernels] = field(default_factory=list)
    verdict: str = ""
    detail: str = ""

    @cached_property
    def prepared(self) -> onnx_backend.Prepared:
        return onnx_backend.Prepared(self.model, self.compile)

    def compile(self, built: Model) -> Kernels:
        space = search(built.graph(), native(), self.how.limits, inside=True)
        self.codes.append(Kernels(built, generate(self.how.plan(space))))
        return self.codes[-1]

    def result(self) -> Result:
        names = tuple(sorted(operators(self.model.graph)))
        kernels = sum(len(k.code.kernels) for k in self.codes)
        return Result(self.case.name, self.case.kind, names, self.verdict, self.detail, kernels)


def collected(case: Any, how: How = WHOLE) -> Attempt:
    """The case up to its generated code."""
    attempt = Attempt(case, *loaded(case), how)
    try:
        with limited(SECONDS, TimeoutError):
            for inputs, _ in attempt.sets:
                with suppress(Collected):
                    attempt.prepared.run(inputs)
        if any(k.built.graph().states for k in attempt.codes):  # which count the runs
            attempt.verdict = "random"
    except LumcError as e:
        refused = e.exit is Exit.UNSUPPORTED
        attempt.verdict = "refused" if refused else "error"
        attempt.detail = e.fix if e.what.startswith("import: ") and e.fix else f"{e.what}; {e.fix}"
    except TimeoutError:
        attempt.verdict = "hang"
    except Exception:
        attempt.verdict, attempt.detail = "error", traceback.format_exc()[-1500:]
    return attempt


def ran(attempt: Attempt, library: ctypes.CDLL, first: int) -> tuple[str, str]:
    """The verdict; the kernels of its codes are ``g{first}_..`` and the next ones."""
    for inputs, wanted in attempt.sets:
        for parts in (1, 2):
            for i, kernels in enumerate(attempt.codes, first):
                kernels.library, kernels.prefix, kernels.parts = library, f"g{i}_", parts
            got = attempt.prepared.run(inputs)
            try:
                for a, b in zip(got, wanted, strict=True):
                    compare(attempt.case, a, b)
            except AssertionError as e:
                rounded = attempt.case.name in ROUNDED and nearer(
                    attempt.case, inputs, got[0], wanted[0]
                )
                return "rounded" if rounded else "wrong", str(e)[:1000]
    return ("known" if attempt.prepared.known else "pass"), ""


def nearer(case: Any, inputs: Sequence[Any], got: Any, wanted: Any) -> bool:
    """Where they differ by more than the tolerance, are our results nearer to those of f64?"""
    exact = ROUNDED[case.name](*(np.asarray(a, np.float64) for a in inputs[:3]))
    ours, theirs = (np.abs(np.asarray(a, np.float64) - exact) for a in (got, wanted))
    far = ours + theirs > case.atol + case.rtol * np.abs(exact)
    return bool(ours[far].max() < theirs[far].max())


# ---- many cases


def _batch(wanted: Sequence[Any], how: How) -> list[Result]:
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    attempts = [collected(case, how) for case in wanted]
    todo = [a for a in attempts if not a.verdict]
    folder = Path(tempfile.mkdtemp(prefix="onnx-suite-"))
    try:
        built = _built(folder / "all", todo)
        if built or not todo:
            _run_all(built, todo)
        for i, a in enumerate(todo if not built else []):  # one of them is not C
            alone = _built(folder / str(i), [a], say=True)
            if alone:
                _run_all(alone, [a])
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return [a.result() for a in attempts]


def _built(folder: Path, attempts: Sequence[Attempt], say: bool = False) -> Path | None:
    codes = [k.code for a in attempts for k in a.codes]
    try:
        return launching.library(folder, codes, attempts[0].how.flags) if codes else None
    except AssertionError as e:
        if say:
            attempts[0].verdict, attempts[0].detail = "error", str(e)[:1000]
        return None


def _run_all(library: Path | None, attempts: Sequence[Attempt]) -> None:
    """In processes of their own, as many as crash."""
    todo, at = list(attempts), 0
    while todo:
        found = _forked(library, todo, at)
        for a, (verdict, detail) in zip(todo, found, strict=False):
            a.verdict, a.detail = verdict, detail
        at += sum(len(a.codes) for a in todo[: len(found)])
        todo = todo[len(found) :]


def _forked(library: Path | None, attempts: Sequence[Attempt], at: int) -> list[tuple[str, str]]:
    """The verdicts up to the first crash, which is the last of them."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        gc.disable()  # the end of an e-graph would wait for threads, which are not here
        os.close(read)
        with os.fdopen(write, "wb") as file:
            try:
                loaded_library = ctypes.CDLL(str(library))
                for a in attempts:
                    pickle.dump(_judged(a, loaded_library, at), file)
                    file.flush()
                    at += len(a.codes)
            finally:
                os._exit(0)
    os.close(write)
    found = list[tuple[str, str]]()
    with os.fdopen(read, "rb") as file:
        while len(found) < len(attempts):
            try:
                found.append(pickle.load(file))  # noqa: S301  from ourselves
            except EOFError:
                break
    _, status = os.waitpid(child, 0)
    if len(found) < len(attempts):
        found.append(("crash", f"status {status}"))
    return found


def _judged(attempt: Attempt, library: ctypes.CDLL, at: int) -> tuple[str, str]:
    try:
        with limited(SECONDS, TimeoutError):
            return ran(attempt, library, at)
    except TimeoutError:
        return "hang", "while it runs"
    except Exception:
        return "error", traceback.format_exc()[-1500:]


# ---- what the suite has


def loaded(case: Any) -> tuple[Any, list[tuple[list[Any], list[Any]]]]:
    """The model and its (inputs, expected outputs); what is no tensor is as the suite has it. A
    case that is not of the suite has its ``sets``."""
    if hasattr(case, "sets"):
        return case.model, case.sets
    if case.data_sets is not None:
        sets = [([_array(a) for a in i], [_array(a) for a in o]) for i, o in case.data_sets]
        return case.model, sets
    folder = Path(case.model_dir)
    model = onnx.load(folder / "model.onnx")
    sets = []
    for data in sorted(folder.glob("test_data_set_*")):
        inputs = _files(data, "input", model.graph.input)
        sets.append((inputs, _files(data, "output", model.graph.output)))
    return model, sets


def _files(folder: Path, kind: str, declared: Any) -> list[Any]:
    count = len(list(folder.glob(f"{kind}_*.pb")))
    return [_read(folder / f"{kind}_{i}.pb", declared[i]) for i in range(count)]


def _read(path: Path, declared: Any) -> Any:
    if declared.type.WhichOneof("value") != "tensor_type":
        return None
    tensor = onnx.TensorProto()
    tensor.ParseFromString(path.read_bytes())
    return numpy_helper.to_array(tensor)


def _array(value: Any) -> Any:
    """An array, a list of them, or None."""
    if isinstance(value, onnx.TensorProto):
        return numpy_helper.to_array(value)
    if isinstance(value, onnx.SequenceProto):
        return numpy_helper.to_list(value)
    if isinstance(value, onnx.OptionalProto):
        return numpy_helper.to_optional(value)
    if isinstance(value, list):
        return [_array(v) for v in value]
    return value if isinstance(value, np.ndarray | np.generic) else None


def operators(graph: Any) -> set[str]:
    """Those of a graph, and of graphs inside it, with their domain unless it is the standard."""
    found = set()
    for node in graph.node:
        domain = "" if node.domain in ("", "ai.onnx") else f"{node.domain}."
        found.add(domain + node.op_type)
        for a in node.attribute:
            found |= operators(a.g) if a.type == onnx.AttributeProto.GRAPH else set()
    return found


def compare(case: Any, got: Any, wanted: Any) -> None:
    """Raises AssertionError unless they are the same within the tolerances of the case, or as it
    compares itself."""
    if hasattr(case, "compare"):
        case.compare(got, wanted)
        return
    if isinstance(wanted, list) or wanted is None:
        assert type(got) is type(wanted), f"{type(got)}, expected {type(wanted)}"
        for a, b in zip(got or (), wanted or (), strict=True):
            compare(case, a, b)
        return
    wanted, rtol = np.asarray(wanted), case.rtol
    assert got.dtype == wanted.dtype, f"dtype {got.dtype}, expected {wanted.dtype}"
    assert got.shape == wanted.shape, f"shape {got.shape}, expected {wanted.shape}"
    if wanted.dtype.name == "bfloat16":
        rtol = max(rtol, BF16_RTOL)
    if wanted.dtype.kind not in "fiub":
        got, wanted = got.astype("f4"), wanted.astype("f4")
    np.testing.assert_allclose(got, wanted, rtol=rtol, atol=case.atol)


def causal_attention(q: Any, k: Any, v: Any) -> Any:
    scores = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])
    scores = np.where(np.tril(np.ones(scores.shape[-2:], bool)), scores, -np.inf)
    shares = np.exp(scores - scores.max(-1, keepdims=True))
    return shares / shares.sum(-1, keepdims=True) @ v


def inverse_dft(x: Any, *_: Any) -> Any:
    found = np.fft.ifft(x[..., 0] + 1j * x[..., 1], axis=1)
    return np.stack([found.real, found.imag], -1)


# expected results that themselves carry more rounding error than the tolerance of their test: f16
# steps inside the reference's attention, and f32 noise of an FFT where the exact result is 0
ROUNDED = {
    "test_attention_4d_causal_fp16": causal_attention,
    "test_attention_4d_causal_fp16_expanded": causal_attention,
    "test_dft_inverse": inverse_dft,
    "test_dft_inverse_opset19": inverse_dft,
}

# classes of refusals: what their message says, and the way out
REASONS = (
    ("strings", r"works on strings|dtype string|dtype object", "do it before the model"),
    ("the bits of a float", r"reads the bits", "cast by value"),
    ("dtype", r"dtype \w+ is not supported|of (i8|i16|i32|i64)\b|quantisation to", "cast"),
    ("data-dependent shape", r"data-dependent shape", "a mask, or after the model"),
    ("random", r"is random", "make the random values an input"),
    ("needs a run-time value", r"run-time values", "give the input a value at import"),
    ("files", r"decodes files", "do it before the model"),
    ("operator without a row", r"lumc does not know it", "write it with other operators"),
)


def reason(detail: str) -> str:
    """The class of a refusal."""
    return next((name for name, pattern, _ in REASONS if re.search(pattern, detail)), "other")
