"""Devices that plans are made for, by data sheets."""

from __future__ import annotations

from typing import NamedTuple

# Of the peak that a data sheet names, what large products reach; the one number here that was
# fitted: to the table of docs/mesh.md, "Beside published figures".
SHARE = 0.62
INSIDE, OUTSIDE = 8e-6, 20e-6  # seconds of a step of a collective, and of a message between nodes


class Device(NamedTuple):
    """One of the devices of a cluster, and how it is linked with the others. Links are what one
    device sends in a second, one way."""

    flops: float  # of products of 16 bits, without sparsity, in a second
    stream: float  # bytes of memory in a second
    memory: float  # bytes
    node: int  # devices that a fast link joins
    inside: float  # bytes in a second to devices of its node
    outside: float  # bytes in a second to other nodes
    source: str

    @property
    def products(self) -> float:
        """Operations of large products in a second."""
        return self.flops * SHARE


DEVICES = {
    "V100": Device(125e12, 0.9e12, 32e9, 8, 150e9, 6.25e9, "NVIDIA V100 SXM2 data sheet, DGX-1"),
    "A100": Device(312e12, 2.039e12, 80e9, 8, 300e9, 25e9, "NVIDIA A100 SXM 80GB data sheet, DGX"),
    "H100": Device(989e12, 3.35e12, 80e9, 8, 450e9, 50e9, "NVIDIA H100 SXM data sheet, DGX"),
    "H200": Device(989e12, 4.8e12, 141e9, 8, 450e9, 50e9, "NVIDIA H200 SXM data sheet, DGX"),
    "B200": Device(2250e12, 8e12, 180e9, 8, 900e9, 50e9, "NVIDIA DGX B200 data sheet"),
    "MI300X": Device(1307e12, 5.3e12, 192e9, 8, 448e9, 50e9, "AMD MI300X data sheet, 7 links"),
}
