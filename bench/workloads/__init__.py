"""The workloads: fixed shapes, seeds and weights, each written once over ``ops``.

Weights are constants that a peer may prepack; activations are inputs (of the square matmuls both
operands are). ``flops`` counts a multiply-add twice, a cheap elementwise step once and an
exponential ten times; ``reads`` and ``writes`` are the bytes that no program can avoid moving.
"""

from workloads import kernels, networks, training
from workloads.base import WORKLOADS, Workload
from workloads.training import Training

__all__ = ["WORKLOADS", "Training", "Workload", "kernels", "networks", "training"]
