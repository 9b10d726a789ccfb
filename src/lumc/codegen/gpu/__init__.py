"""Kernels for the threads of a block, as CUDA, HIP and Metal."""
