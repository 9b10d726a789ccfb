"""Derivatives as graphs: from a result back to what it is made of, in the twelve primitives.

``gradients`` does it for tensors of a model, ``with_gradients`` for an entry of a graph. This is no
part of the compiler, which takes a gradient for what it is: more nodes.
"""

from lumc.grad.entries import with_gradients
from lumc.grad.reverse import gradients

__all__ = ["gradients", "with_gradients"]
