"""How models arrive: the Tensor API, modules, and importers.

``plus``, ``minus`` and ``times`` compute with extents, which may be symbolic.
"""

from lumc.frontend.api import nn, random
from lumc.frontend.api.elementwise import where
from lumc.frontend.api.join import concat, stack
from lumc.frontend.api.model import Model
from lumc.frontend.api.tensor import Tensor
from lumc.frontend.api.view import minus, plus, times

__all__ = ["Model", "Tensor", "concat", "minus", "nn", "plus", "random", "stack", "times", "where"]
