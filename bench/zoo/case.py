"""A case of the zoo, and what it becomes on disk: a workload that needs no torch any more."""

from __future__ import annotations

import hashlib
import inspect
import json
import logging
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from torch import nn

SEED = 0


@dataclass(frozen=True)
class Ids:
    """An input of integers in ``[0, below)``."""

    shape: tuple[int, ...]
    below: int


@dataclass(frozen=True)
class Case:
    """``make`` gives the module, its weights drawn from torch's generator; inputs are normal."""

    name: str
    make: Callable[[], nn.Module]
    inputs: tuple[tuple[int, ...] | Ids, ...]

    def module(self) -> nn.Module:
        """The module with the same weights in every process."""
        import torch
        from torch import nn

        torch.manual_seed(SEED)
        module = self.make().eval()
        for m in module.modules():
            if isinstance(m, nn.BatchNorm2d):  # the statistics of a new one would do nothing
                assert m.running_mean is not None and m.running_var is not None
                m.running_mean.normal_(0, 0.1)
                m.running_var.uniform_(0.5, 1.5)
                nn.init.uniform_(m.weight, 0.7, 1.2)
                nn.init.normal_(m.bias, 0, 0.1)
        return module.requires_grad_(False)

    def arrays(self) -> list[np.ndarray]:
        rng = np.random.default_rng(SEED)
        return [
            rng.integers(0, i.below, i.shape)
            if isinstance(i, Ids)
            else rng.standard_normal(i, dtype=np.float32)
            for i in self.inputs
        ]


def cases() -> dict[str, dict[str, Case]]:
    """The suites of the zoo. Exits where torch or transformers are missing."""
    try:
        from zoo.networks import NETWORKS
        from zoo.operators import OPERATORS
    except ModuleNotFoundError as e:
        raise SystemExit(f"bench: the zoo needs {e.name}: make zoo-peers installs it") from None

    return {"operators": OPERATORS, "networks": NETWORKS}


def find(name: str) -> Case:
    return next(suite[name] for suite in cases().values() if name in suite)


class Exported:
    """A workload in a folder: ``model.onnx``, ``inputs.npz``, ``reference.npz``, ``facts.json``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        facts = json.loads((folder / "facts.json").read_text())
        self.key = str(facts["key"])  # of the sources that it comes from
        self.flops, self.reads, self.writes = facts["flops"], facts["reads"], facts["writes"]
        with np.load(folder / "inputs.npz") as stored:
            self.inputs: dict[str, np.ndarray] = dict(stored)

    def reference(self) -> list[np.ndarray]:
        with np.load(self.folder / "reference.npz") as stored:
            return [stored[f"y{i}"] for i in range(len(stored))]

    def save_graph(self, path: Path) -> None:
        command = [sys.executable, "-m", "lumc", "import", str(self.folder / "model.onnx")]
        done = subprocess.run([*command, "-o", str(path)], capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"lumc import: {done.stderr.strip()}")

    def save_onnx(self, path: Path) -> None:
        shutil.copyfile(self.folder / "model.onnx", path)

    def torch_function(self) -> Callable[..., list[Any]]:
        module = find(self.folder.name).module()
        return lambda *inputs: outputs(module(*inputs))


def outputs(y: Any) -> list[Any]:
    """The tensors of a result: alone, in a tuple, or the last state of an encoder.

    They are no views, as every other peer gives memory of its own.
    """
    if hasattr(y, "last_hidden_state"):
        y = y.last_hidden_state
    elif hasattr(y, "logits"):
        y = y.logits
    return [t.contiguous() for t in (y if isinstance(y, tuple | list) else [y])]


def export(case: Case, folder: Path, onnx: bool = True) -> None:
    """Write the case into a folder of its name, unless it is there from these sources; not as ONNX
    where nothing reads that.

    Raises RuntimeError where torch cannot export it.
    """
    key = hashlib.sha256(
        b"".join(Path(f).read_bytes() for f in (__file__, _source(case)))
    ).hexdigest()
    facts, model = folder / "facts.json", folder / "model.onnx"
    known = facts.exists() and json.loads(facts.read_text())["key"] == key
    if known and (model.exists() or not onnx):
        return
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    folder.mkdir(parents=True, exist_ok=True)
    facts.unlink(missing_ok=True)
    model.unlink(missing_ok=True)
    module, arrays = with_results(case.module()), case.arrays()
    inputs = tuple(map(torch.from_numpy, arrays))
    with torch.no_grad():
        with FlopCounterMode(display=False) as counter:
            results = module(*inputs)
        if onnx:
            _write_onnx(module, inputs, len(results), model)
        exact = _exactly(module, inputs) or results
    np.savez(folder / "inputs.npz", **{f"in{i}": a for i, a in enumerate(arrays)})
    np.savez(folder / "reference.npz", **{f"y{i}": y.numpy() for i, y in enumerate(exact)})
    read = sum(w.numel() * 4 for w in _weights(module)) + sum(a.nbytes for a in arrays)
    written = sum(y.numel() * y.element_size() for y in results)
    numbers = {"flops": counter.get_total_flops(), "reads": read, "writes": written}
    facts.write_text(json.dumps({"key": key, **numbers}))


def _exactly(module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """The results in f64, of modules that know nothing smaller; what is f32 by itself, as tables of
    angles made on the way, refuses to mix with it."""
    try:
        found: tuple[Any, ...] = module.double()(
            *(i.double() if i.is_floating_point() else i for i in inputs)
        )
    except RuntimeError:
        return None
    return found


def _source(case: Case) -> str:
    from zoo import networks, operators

    if case.name in operators.OPERATORS:
        return inspect.getfile(operators)
    return inspect.getfile(networks if case.name in networks.NETWORKS else case.make)


def with_results(module: nn.Module) -> nn.Module:
    """The module with its results as a tuple of tensors."""
    from torch import nn

    class Results(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.module = module

        def forward(self, *inputs: Any) -> tuple[Any, ...]:
            return tuple(outputs(self.module(*inputs)))

    return Results()


def _weights(module: nn.Module) -> list[Any]:
    """What every run reads: not the tables of which it takes some rows."""
    from torch import nn

    tables = {id(m.weight) for m in module.modules() if isinstance(m, nn.Embedding)}
    return [w for w in module.parameters() if id(w) not in tables]


def _write_onnx(module: nn.Module, inputs: tuple[Any, ...], count: int, path: Path) -> None:
    import torch

    names = {
        "input_names": [f"in{i}" for i in range(len(inputs))],
        "output_names": [f"y{i}" for i in range(count)],
    }
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            module, inputs, path, dynamo=True, external_data=False, verbose=False, **names
        )
