"""How each peer runs a workload: ``build(work, threads, folder) -> Program``.

A peer that is not installed raises ImportError. Calls use the leanest way that a peer offers:
memory bound once, results in place where it can.
"""

from __future__ import annotations

import ctypes
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import lumc_build
from workloads import Workload

Arrays = list[np.ndarray]


@dataclass
class Program:
    """``call`` runs once and returns when the results are there; ``fetch`` gives the last ones."""

    call: Callable[[], Any]
    fetch: Callable[[], Sequence[Any]]
    notes: dict[str, Any] = field(default_factory=dict)  # goes into the record


def aligned(shape: Sequence[int], dtype: Any = np.float32) -> np.ndarray:
    """Uninitialised memory at the start of a cache line; numpy's own is 16 bytes off."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    memory = np.empty(size + 64, np.uint8)
    start = -memory.ctypes.data % 64
    return memory[start : start + size].view(dtype).reshape(shape)


# ---- lumc


def lumc(work: Workload, threads: int, folder: Path, precision: str = "") -> Program:
    profile = os.environ["BENCH_PROFILE"].format(threads=threads)
    folder = folder / precision.strip("-") if precision else folder
    folder.mkdir(exist_ok=True)
    notes = lumc_build.compiled(work, folder, profile, precision)
    return opened(folder / "model.lb", work, threads, notes)


def opened(
    bundle: Path, work: Workload, threads: int, notes: dict[str, Any] | None = None
) -> Program:
    """A compiled bundle; its inputs are those of the workload by name, or in their order."""
    from lumc.runtime.cpu import Bundle

    with Bundle.open(bundle) as b:
        spec = b.entry()
    names = [t.name for t in spec.outputs]
    outputs = [aligned(t.shape, t.dtype.numpy) for t in spec.outputs]
    library, handle = loaded(bundle, threads)
    known = work.inputs.keys() >= {t.name for t in spec.inputs}
    given = [work.inputs[t.name] for t in spec.inputs] if known else list(work.inputs.values())
    memory = pointers(given), pointers(outputs)

    def fetch() -> Arrays:
        order = [f"y{i}" for i in range(len(names))]
        return [outputs[names.index(n)] for n in (order if {*order} == {*names} else names)]

    return Program(lambda: library.lumc_run(handle, 0, *memory), fetch, notes or {})


def loaded(bundle: Path, threads: int) -> tuple[Any, ctypes.c_void_p]:
    """The library of a bundle, and the bundle as it opened it."""
    library = ctypes.CDLL(str(bundle / "lib" / "liblumc.so"))
    library.lumc_error.restype = ctypes.c_char_p
    handle = ctypes.c_void_p()
    if library.lumc_open(os.fsencode(bundle), threads, ctypes.byref(handle)):
        raise RuntimeError(library.lumc_error().decode())
    return library, handle


def lumc_bf16(work: Workload, threads: int, folder: Path) -> Program:
    return lumc(work, threads, folder, "--dtype=bf16")


def lumc_q8(work: Workload, threads: int, folder: Path) -> Program:
    return lumc(work, threads, folder, "--weights=q8")


def pointers(arrays: Arrays) -> Any:
    return (ctypes.c_void_p * len(arrays))(*(a.ctypes.data for a in arrays))


# ---- runtimes that read ONNX


def onnxruntime(work: Workload, threads: int, folder: Path) -> Program:
    import onnxruntime as ort

    path = folder / "ort.onnx"
    work.save_onnx(path)
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.log_severity_level = 3
    session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    binding = session.io_binding()
    for name, value in work.inputs.items():
        binding.bind_cpu_input(name, value)
    outputs, specs = [], session.get_outputs()
    fixed = all(isinstance(n, int) for s in specs for n in s.shape)
    if not fixed or any(s.type != "tensor(float)" for s in specs):  # it makes their memory itself
        for spec in specs:
            binding.bind_output(spec.name, "cpu")
        return Program(lambda: session.run_with_iobinding(binding), binding.copy_outputs_to_cpu)
    for spec in specs:
        outputs.append(aligned(spec.shape))
        binding.bind_ortvalue_output(spec.name, ort.OrtValue.ortvalue_from_numpy(outputs[-1]))
    return Program(lambda: session.run_with_iobinding(binding), lambda: outputs)


def openvino(work: Workload, threads: int, folder: Path, precision: str = "f32") -> Program:
    import openvino as ov

    path = folder / f"openvino-{precision}.onnx"
    work.save_onnx(path)
    config = {
        "INFERENCE_NUM_THREADS": threads,
        "NUM_STREAMS": 1,
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_PRECISION_HINT": precision,
    }
    compiled = ov.Core().compile_model(str(path), "CPU", config)
    request = compiled.create_infer_request()
    for i, value in enumerate(work.inputs.values()):
        request.set_input_tensor(i, ov.Tensor(value, shared_memory=True))

    def call() -> None:
        request.start_async()
        request.wait()

    def fetch() -> Arrays:
        return [request.get_output_tensor(i).data for i in range(len(compiled.outputs))]

    return Program(call, fetch)


def openvino_bf16(work: Workload, threads: int, folder: Path) -> Program:
    return openvino(work, threads, folder, "bf16")


# ---- torch


def torch(work: Workload, threads: int, folder: Path, compiled: bool = False) -> Program:
    import torch as t

    t.set_num_threads(threads)
    inputs = [t.from_numpy(v) for v in work.inputs.values()]
    function = work.torch_function()
    state: dict[str, Any] = {}

    if compiled:
        t._dynamo.reset()  # or the workloads count as too many versions of one function
    run = t.compile(function, fullgraph=True, dynamic=False) if compiled else function

    def call() -> None:
        with t.inference_mode():
            state["out"] = run(*inputs)

    return Program(call, lambda: [y.numpy() for y in state["out"]])


def torch_compile(work: Workload, threads: int, folder: Path) -> Program:
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(folder.parent / "inductor")
    return torch(work, threads, folder, compiled=True)


# ---- jax and what compiles its programs


def for_jax(threads: int) -> Any:
    """The module; its settings are read when it is loaded."""
    os.environ |= {"PJRT_NPROC": str(threads), "NPROC": str(threads), "JAX_PLATFORMS": "cpu"}
    if threads == 1:
        single = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
        os.environ["XLA_FLAGS"] = single
    import jax

    return jax


def _narrow_inputs(work: Workload) -> Arrays:
    return [v.astype(np.int32) if v.dtype == np.int64 else v for v in work.inputs.values()]


def jax(work: Workload, threads: int, folder: Path) -> Program:
    j = for_jax(threads)
    from ops import jax_ops

    inputs = [j.device_put(v) for v in _narrow_inputs(work)]
    weights = {k: j.device_put(v) for k, v in work.weights.items()}
    state: dict[str, Any] = {}

    def function(weights: Any, *inputs: Any) -> list[Any]:
        return work.function(jax_ops, weights, *inputs)

    compiled = j.jit(function).lower(weights, *inputs).compile()

    def call() -> None:
        state["out"] = j.block_until_ready(compiled(weights, *inputs))

    return Program(call, lambda: state["out"])


_iree: list[Any] = []  # one device per process: several would share a core


def iree(work: Workload, threads: int, folder: Path) -> Program:
    import iree.compiler.tools as tools
    import iree.runtime as rt

    j = for_jax(threads)
    from ops import jax_ops

    inputs = _narrow_inputs(work)

    def function(*inputs: Any) -> list[Any]:
        weights = {k: j.numpy.asarray(v) for k, v in work.weights.items()}
        return work.function(jax_ops, weights, *inputs)

    shapes = [j.ShapeDtypeStruct(v.shape, v.dtype) for v in inputs]
    exported = j.export.export(j.jit(function, keep_unused=True))(*shapes)
    options = ["--iree-llvmcpu-target-cpu=host", "--iree-opt-level=O3", "--iree-opt-data-tiling"]
    options += ["--iree-llvmcpu-stack-allocation-limit=262144"]

    def compiled(*more: str) -> bytes:
        return tools.compile_str(
            exported.mlir_module_serialized,
            input_type="stablehlo",
            target_backends=["llvm-cpu"],
            extra_args=[*options, *more],
        )

    try:
        code = compiled()
    except tools.CompilerToolError:  # 3.13 fuses more than it can lower in the training step
        code = compiled("--iree-dispatch-creation-enable-aggressive-fusion=false")
    if not _iree:
        if threads > 1:
            rt.flags.parse_flags(f"--task_topology_group_count={threads}")
        _iree.append(rt.Config("local-task" if threads > 1 else "local-sync"))
    module = rt.load_vm_module(rt.VmModule.copy_buffer(_iree[0].vm_instance, code), _iree[0])
    arrays = [rt.asdevicearray(_iree[0].device, v) for v in inputs]
    state: dict[str, Any] = {}

    def call() -> None:
        state["out"] = module.main(*arrays)

    def fetch() -> Arrays:
        out = state["out"]
        return [y.to_host() for y in (out if isinstance(out, tuple | list) else [out])]

    return Program(call, fetch)


# ---- tinygrad


def tinygrad(work: Workload, threads: int, folder: Path) -> Program:
    clang = shutil.which(os.environ.get("CLANG", "clang"))
    if clang is None:
        raise ImportError("tinygrad compiles with clang, which is not on PATH")
    os.environ |= {"DEV": "CPU:CLANG", "CC": clang, "CACHELEVEL": "0"}
    from tinygrad import Device, Tensor, TinyJit

    from ops import tinygrad_ops

    inputs = [Tensor(v).realize() for v in _narrow_inputs(work)]
    weights = {k: Tensor(v).realize() for k, v in work.weights.items()}
    state: dict[str, Any] = {}

    @TinyJit
    def run(*inputs: Any) -> list[Any]:
        outputs = [y.contiguous() for y in work.function(tinygrad_ops, weights, *inputs)]
        Tensor.realize(*outputs)
        return outputs

    def call() -> None:
        state["out"] = run(*inputs)
        Device[Device.DEFAULT].synchronize()

    call(), call()  # the first two runs are captured
    return Program(call, lambda: [y.numpy() for y in state["out"]])


# ---- the list


@dataclass(frozen=True)
class Peer:
    build: Callable[..., Program]
    package: str  # whose version is recorded
    exact: bool = True  # computes in f32


PEERS = {
    "lumc": Peer(lumc, "lumc"),
    "onnxruntime": Peer(onnxruntime, "onnxruntime"),
    "openvino": Peer(openvino, "openvino"),
    "torch": Peer(torch, "torch"),
    "torch.compile": Peer(torch_compile, "torch"),
    "jax": Peer(jax, "jax"),
    "iree": Peer(iree, "iree-base-runtime"),
    "tinygrad": Peer(tinygrad, "tinygrad"),
    "lumc-bf16": Peer(lumc_bf16, "lumc", exact=False),
    "lumc-q8": Peer(lumc_q8, "lumc", exact=False),
    "openvino-bf16": Peer(openvino_bf16, "openvino", exact=False),
}


def environment(threads: int, profile: str) -> dict[str, str]:
    """What a worker process is started with; the peers' own settings come on top."""
    names = ("OMP", "MKL", "OPENBLAS")
    env = {f"{n}_NUM_THREADS": str(threads) for n in names}
    return dict(os.environ) | env | {"NUM_CPU_THREADS": str(threads), "BENCH_PROFILE": profile}
