"""What plans say of memory: weights that are packed when they are loaded, by runners on CPUs, and
the tensor maps of kernels on GPUs."""

from __future__ import annotations

from lumc.bundle.planfile import MAX_BYTES
from lumc.bundle.reader_ranks import Words
from lumc.codegen.gpu.grid import TensorMap
from lumc.graph.verify import MAX_RANK


def read_packing(r: Words, weights: int, packed: int) -> None:
    """What is packed of so many bytes of weights, into so many. Raises ValueError."""
    start, nbytes = r.word(), r.word()
    element, to = r.below(9, "a packing has unknown elements"), r.word()
    base, width, lanes = (r.below(MAX_BYTES, "a packing is too large") for _ in range(3))
    rank = r.below(MAX_RANK + 2, "a rank is too large")
    size, last, dims = element, base, list[tuple[int, int]]()
    for i in range(rank):
        extent, stride = r.word(), r.word()
        dims.append((extent, stride))
        size *= extent
        if size > MAX_BYTES:
            raise ValueError("a packing is too large")
        if not extent:
            raise ValueError("a packing is empty")
        panel = width and i in (0, rank - 1)
        steps = max(1, (lanes if i else 1) if panel else extent)
        if (steps - 1) * stride > MAX_BYTES:
            raise ValueError("a packing is too large")
        last += (steps - 1) * stride
    if element not in (1, 2, 4, 8):
        raise ValueError("a packing has unknown elements")
    if width and (rank < 2 or not lanes or dims[-1][0] != width or _other(dims, lanes)):
        raise ValueError("a packing has other panels")
    if start % 64 or start + nbytes > weights or last >= nbytes // element:
        raise ValueError("a packing reads outside of its weight")
    if to % 64 or to + size > packed:
        raise ValueError("a packing lies outside of its place")


def _other(dims: list[tuple[int, int]], lanes: int) -> bool:
    (panels, far), (width, near) = dims[0], dims[-1]
    return panels != (lanes - 1) // width + 1 or far != near * width


def read_map(r: Words) -> TensorMap:
    """Raises ValueError for what no driver makes."""
    buffer, rank, *dims = (r.word() for _ in range(5))
    strides, box = (r.word(), r.word()), (r.word(), r.word())
    if rank not in (2, 3):
        raise ValueError("a tensor map has other axes")
    made = TensorMap(buffer, tuple(dims[:rank]), strides[: rank - 1], box)
    extents = all(0 < n < 1 << 31 for n in made.dims)
    apart = all(0 < n < 1 << 40 and n % 16 == 0 for n in made.strides)
    if not extents or not apart or box[0] != 64 or not 0 < box[1] <= 256:
        raise ValueError("no driver makes such a tensor map")
    return made
