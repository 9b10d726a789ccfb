"""A compiler for neural networks, from Python.

Write a model, compile it, run it:

```python
import lumc
import numpy as np

model = lumc.Model()
x = model.input("x", (16, 784))
w = model.constant(np.full((784, 10), 0.5, "f4") * np.arange(10, dtype="f4"), "w")
model.output("y", (x @ w).softmax(-1))

bundle = lumc.compile(model, estimate=True)
y = bundle(x=np.ones((16, 784), "f4"))
print(y.shape, y.sum(-1).round(3).min())
```

```text
(16, 10) 1.0
```

With an `output`, `compile` writes the bundle there; `load` opens it, here or on another machine:

```python
path = lumc.compile(model, "model.lb", estimate=True)
with lumc.load(path) as bundle:
    print(bundle)
```

```text
<lumc.Bundle on cpu: x f32[16, 784] -> y f32[16, 10]>
```

Every problem is a `lumc.Error` with the code, place and fix that the command line prints:

```python
try:
    lumc.compile("nosuch.lg")
except lumc.Error as e:
    print(e.code, int(e.exit), e.what)
```

```text
E0201 2 cannot read nosuch.lg: there is no such file
```

Scripts need no `if __name__ == "__main__":`, and notebooks work. What the command line says on
stderr goes to the logger `lumc`: `logging.basicConfig(level=logging.INFO)` shows it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lumc import train
    from lumc.errors import LumcError as Error
    from lumc.frontend import Model, Tensor, concat, nn, random, stack, where
    from lumc.grad import gradients
    from lumc.graph.tensor import Tensor as TensorSpec
    from lumc.python import Bundle, compile, load
    from lumc.runtime.opened import EntrySpec

__version__ = "0.1.0"
__all__ = [
    "Bundle",
    "EntrySpec",
    "Error",
    "Model",
    "Tensor",
    "TensorSpec",
    "compile",
    "concat",
    "gradients",
    "load",
    "nn",
    "random",
    "stack",
    "train",
    "where",
]

# What is imported when it is first asked for: a command line that only runs a bundle needs none of
# it. Public name: module, and its name there; "": the module itself.
_HOMES = {
    "compile": ("lumc.python", "compile"),
    "load": ("lumc.python", "load"),
    "Bundle": ("lumc.python", "Bundle"),
    "EntrySpec": ("lumc.runtime.opened", "EntrySpec"),
    "TensorSpec": ("lumc.graph.tensor", "Tensor"),
    "gradients": ("lumc.grad", "gradients"),
    "Error": ("lumc.errors", "LumcError"),
    "train": ("lumc.train", ""),
    **{
        n: ("lumc.frontend", n)
        for n in ("Model", "Tensor", "concat", "stack", "where", "nn", "random")
    },
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'lumc' has no attribute '{name}'")
    module, there = _HOMES[name]
    home = import_module(module)
    globals()[name] = found = getattr(home, there) if there else home
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
