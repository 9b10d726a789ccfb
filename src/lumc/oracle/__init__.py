"""WHAT is right: the meaning of graphs and kernels in numpy, independent of the compiler."""
