"""The workloads: fixed shapes, seeds and weights, each written once over ``ops``.

Weights are constants that a peer may prepack; activations are inputs (of the square matmuls both
operands are). ``flops`` counts a multiply-add twice, a cheap elementwise step once and an
exponential ten times; ``reads`` and ``writes`` are the bytes that no program can avoid moving.
"""

from workloads import kernels, networks
from workloads.base import WORKLOADS, Workload

__all__ = ["WORKLOADS", "Workload", "kernels", "networks"]
