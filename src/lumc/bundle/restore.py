"""The weights of a graph from its bundle: raw tensors, and packed ones turned back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import numpy as np

from lumc.bundle import manifest, ranks
from lumc.bundle.packing import Array, unpack
from lumc.codegen.tile.packing import packings_from
from lumc.disk.artifact import fields
from lumc.disk.weights import read_header, read_tensor
from lumc.graph.graph import Graph, Node

FILE = "weights.safetensors"


def graph_of(folder: Path) -> Graph:
    """The graph that a bundle was made from."""
    from lumc.graph.text import parse_graph

    return parse_graph((folder / "graph.lg").read_text(), where="graph.lg")


def bundle_weight(bundle: Path, node: Node) -> Array:
    """The values of a weight of ``graph.lg``, whole where ranks have parts; elements that no kernel
    reads are zero."""
    return _reader(bundle, str(manifest.read(bundle)["digest"]))(node)


@lru_cache(maxsize=4)
def _reader(bundle: Path, digest: str) -> Callable[[Node], Array]:
    return weight_reader(bundle)


def weight_reader(bundle: Path) -> Callable[[Node], Array]:
    """``bundle_weight`` for many nodes; the file is checked once. Raises E0501, exit 5."""
    body = manifest.read(bundle)
    manifest.check_file(bundle, FILE, body["files"].get(FILE, ""))
    stored = read_header(bundle / FILE)
    with fields("manifest", str(bundle)):
        packings = packings_from(body["packings"])

    graph = graph_of(bundle) if body.get("mesh") else None
    leaves = {n.name: n for n in (*graph.weights, *graph.states)} if graph else {}

    def read(node: Node) -> Array:
        node = leaves.get(node.name, node)
        if not node.parts:
            return read_part(node, "")
        return ranks.whole(lambda i: read_part(node, f"#{i}"), node.parts)

    def read_part(node: Node, number: str) -> Array:
        if node.name + number in stored:
            return read_tensor(replace(node, key=node.name + number), bundle / FILE)
        out = np.zeros([int(str(n)) for n in node.shape], node.dtype.numpy)
        for name, packing in packings.items():
            if packing.weight == node.name:
                key = name + number
                packed = Node(name, "weight", packing.dtype, ("d0",), (packing.size,), key=key)
                with fields(f"packing of '{node.name}'", str(bundle)):
                    unpack(read_tensor(packed, bundle / FILE), packing, node.dtype, out)
        return out

    return read
