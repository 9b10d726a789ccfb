"""Programs of ATen operators, as torch.export and Dynamo write them.

``pt2`` reads them from an archive, ``lumc.torch`` makes them of graphs in memory. ``lower`` walks
over a program: every node becomes tensor operations by a row of the operator tables (``ops_*``).
"""
