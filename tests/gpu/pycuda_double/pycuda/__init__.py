"""As much of pycuda as lumc uses, by ctypes on libcuda: for machines where it cannot be built."""
