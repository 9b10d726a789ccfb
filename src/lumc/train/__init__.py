"""What trains a model: optimizers, as updates of states, and what is done to gradients before.

Losses are methods of tensors, gradients come from ``lumc.gradients``. All of it is part of the
model, of the same twelve primitives, so a whole step is one program.
"""

from lumc.train.clipping import clip_norm, clip_value, norm
from lumc.train.optimizers import adam, adamw, lion, sgd
from lumc.train.scaling import scaled_gradients
from lumc.train.sums import Sums

__all__ = [
    "Sums",
    "adam",
    "adamw",
    "clip_norm",
    "clip_value",
    "lion",
    "norm",
    "scaled_gradients",
    "sgd",
]
