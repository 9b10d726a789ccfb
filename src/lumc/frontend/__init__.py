"""How models arrive: the Tensor API, modules, and importers.

``plus``, ``minus`` and ``times`` compute with extents, which may be symbolic.
"""

from lumc.frontend import nn
from lumc.frontend.elementwise import where
from lumc.frontend.join import concat, stack
from lumc.frontend.model import Model
from lumc.frontend.tensor import Tensor
from lumc.frontend.view import minus, plus, times

__all__ = ["Model", "Tensor", "concat", "minus", "nn", "plus", "stack", "times", "where"]
