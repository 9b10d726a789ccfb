"""Kernels for the threads of a block, as CUDA and Metal."""
