"""How the peers that train make a step: ``build(work, threads, folder) -> Program``, as in
``peers``. A call is a whole step, with the optimizer, on states that stay where they are; ``fetch``
gives the loss, and in a row each all parameters, their first and their second moments."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import lumc_build
from peers import Arrays, Program, aligned, for_jax, loaded, pointers
from workloads.training import BETAS, DECAY, EPS, RATE, Training

# ---- lumc


def lumc(work: Training, threads: int, folder: Path) -> Program:
    from lumc.runtime.cpu import Bundle

    profile = os.environ["BENCH_PROFILE"].format(threads=threads)
    notes, path = lumc_build.compiled(work, folder, profile), folder / "model.lb"
    with Bundle.open(path) as bundle:
        spec, states = bundle.entry(), bundle.states
    library, handle = loaded(path, threads)
    library.lumc_state_data.restype = ctypes.c_void_p
    given = work.inputs | {"lr": np.full((), RATE, np.float32)}
    inputs, loss = [given[t.name] for t in spec.inputs], aligned(())

    def call(inputs: Arrays, *memory: Any) -> None:
        """Of the memory of these inputs."""
        if library.lumc_run(handle, 0, *memory):
            raise RuntimeError(library.lumc_error().decode())

    def fetch() -> Arrays:
        by_name = dict[str, np.ndarray]()
        for i, t in enumerate(states):
            bytes_ = np.prod(t.shape, dtype=int) * t.dtype.nbytes
            at = library.lumc_state_data(handle, i)
            by_name[t.name] = np.frombuffer(
                (ctypes.c_char * bytes_).from_address(at), t.dtype.numpy
            )
        kept = ([by_name[n + end] for n in work.parameters] for end in ("", ".m", ".v"))
        return [loss, *map(row, kept)]

    return Program(partial(call, inputs, pointers(inputs), pointers([loss])), fetch, notes)


def row(arrays: Iterable[Any]) -> np.ndarray:
    return np.concatenate([np.asarray(a).reshape(-1) for a in arrays])


# ---- torch


def torch(work: Training, threads: int, folder: Path, compiled: bool = False) -> Program:
    import torch as t

    t.set_num_threads(threads)
    if compiled:
        t._dynamo.reset()  # or the workloads count as too many versions of one function
    return _torch(work, t.float32, compiled)


def torch_compile(work: Training, threads: int, folder: Path) -> Program:
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(folder.parent / "inductor")
    return torch(work, threads, folder, compiled=True)


def in_float64(work: Training) -> Arrays:
    """After one step. Raises ImportError without torch."""
    try:
        import torch as t
    except ImportError as e:
        raise ImportError("torch in float64 judges steps of training, and is missing") from e

    program = _torch(work, t.float64)
    program.call()
    return [np.asarray(y) for y in program.fetch()]


def _torch(work: Training, dtype: Any, compiled: bool = False) -> Program:
    """The optimizer is torch's own fused one, in both."""
    import torch as t

    from ops import torch_ops

    params = {k: t.nn.Parameter(t.tensor(v, dtype=dtype)) for k, v in work.parameters.items()}
    every = [t.from_numpy(v) for v in work.inputs.values()]
    inputs = [x.to(dtype) if x.is_floating_point() else x for x in every]
    how = {"lr": RATE, "betas": BETAS, "eps": EPS, "weight_decay": DECAY, "fused": True}
    optimizer, state = t.optim.AdamW(params.values(), **how), dict[str, Any]()

    def loss(*inputs: Any) -> Any:
        return work.loss(torch_ops, params, *inputs)

    run = t.compile(loss, fullgraph=True, dynamic=False) if compiled else loss

    def call() -> None:
        optimizer.zero_grad(set_to_none=True)
        value = run(*inputs)
        value.backward()
        optimizer.step()
        state["loss"] = value.detach()

    def fetch() -> Arrays:
        values = list(params.values())
        weights = [p.detach().numpy() for p in values]
        kept = [[optimizer.state[p][k] for p in values] for k in ("exp_avg", "exp_avg_sq")]
        return [state["loss"].numpy(), row(weights), *map(row, kept)]

    return Program(call, fetch)


# ---- jax


def jax(work: Training, threads: int, folder: Path) -> Program:
    """AdamW is written out, as jax has no optimizer; the states are donated to the next ones."""
    j = for_jax(threads)
    from ops import jax_ops

    tree = j.tree_util.tree_map
    batch = [v.astype(np.int32) if v.dtype == np.int64 else v for v in work.inputs.values()]
    inputs = [j.device_put(v) for v in batch]
    params = {k: j.device_put(v) for k, v in work.parameters.items()}
    zeros = [tree(j.numpy.zeros_like, params) for _ in BETAS]
    first, second = BETAS

    def step(kept: Any, rate: Any, *inputs: Any) -> tuple[Any, Any]:
        params, m, v, count = kept
        loss, slopes = j.value_and_grad(lambda p: work.loss(jax_ops, p, *inputs))(params)
        count += 1
        m = tree(lambda m, g: first * m + (1 - first) * g, m, slopes)
        v = tree(lambda v, g: second * v + (1 - second) * g * g, v, slopes)
        mean, square = 1 - first**count, 1 - second**count

        def moved(p: Any, m: Any, v: Any) -> Any:
            move = (m / mean) / (j.numpy.sqrt(v / square) + EPS)
            return p - rate * DECAY * p - rate * move

        return (tree(moved, params, m, v), m, v, count), loss

    state = {"kept": (params, *zeros, j.numpy.float32(0)), "loss": None}
    rate = j.device_put(np.float32(RATE))
    compiled = j.jit(step, donate_argnums=0).lower(state["kept"], rate, *inputs).compile()

    def call() -> None:
        state["kept"], state["loss"] = j.block_until_ready(compiled(state["kept"], rate, *inputs))

    def fetch() -> Arrays:
        kept = ([part[n] for n in work.parameters] for part in state["kept"][:3])
        return [np.asarray(state["loss"]), *map(row, kept)]

    return Program(call, fetch)


TRAINERS: dict[str, Callable[[Training, int, Path], Program]] = {
    "lumc": lumc,
    "torch": torch,
    "torch.compile": torch_compile,
    "jax": jax,
}
