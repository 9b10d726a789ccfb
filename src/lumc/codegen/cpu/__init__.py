"""Kernels as C."""
