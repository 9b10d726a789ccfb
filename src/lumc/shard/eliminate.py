"""The least sum of tables, each over few of many variables: variables are eliminated one by one.

A variable goes into the sum of the tables that have it; the minimum over its values is a table over
its neighbours. The last one leaves the least sum, and going back gives the values that have it
(Bertele, Brioschi: Nonserial Dynamic Programming, 1972). It is exact; what it takes is
exponential in the neighbours of one variable, which are few in networks.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Table = npt.NDArray[np.float64]
MOST = 1 << 22  # elements of a table: 32 MB


class Least(NamedTuple):
    """The value of each variable, the sum of the tables there, and the variables that were given a
    value as tables would have become too large: without any the sum is the least."""

    values: list[int]
    total: float
    pinned: list[int]


def least(
    sizes: Sequence[int], tables: Sequence[tuple[tuple[int, ...], Table]], most: int = MOST
) -> Least:
    """The least sum. ``sizes`` are how many values the variables have; a table is over distinct
    variables, infinite where they do not go together. Where a table of more than ``most`` elements
    would be needed, the variable with most neighbours in it gets a value alone."""
    state = _Tables(sizes, tables)
    heap = [(state.need(v), v) for v in range(len(sizes))]
    heapq.heapify(heap)
    left, trail, total, pinned = set(range(len(sizes))), list[Any](), 0.0, list[int]()
    while left:
        need, v = heapq.heappop(heap)
        if v not in left or need != state.need(v):
            continue
        if need > most:
            v = max((v, *state.beside(v)), key=lambda u: (len(state.beside(u)), u))
            pinned.append(v)
            beside = state.beside(v)
            trail.append((v, (), np.array(state.pin(v))))
        else:
            beside, table = state.summed(v)
            best = table.min(-1)
            trail.append((v, tuple(beside), table.argmin(-1)))
            state.drop(v)
            if beside:
                state.add(tuple(beside), best)
            else:
                total += float(best)
        left.discard(v)
        for u in beside:
            heapq.heappush(heap, (state.need(u), u))
    values = [0] * len(sizes)
    for v, beside, choice in reversed(trail):
        values[v] = int(choice[tuple(values[u] for u in beside)])
    return Least(values, total + state.constant, pinned)


class _Tables:
    """The tables that are left, and which variables are in which."""

    def __init__(self, sizes: Sequence[int], tables: Sequence[tuple[tuple[int, ...], Table]]):
        self.sizes, self.constant = sizes, 0.0
        self.tables: dict[int, tuple[tuple[int, ...], Table]] = {}
        self.of: list[dict[int, None]] = [{} for _ in sizes]
        self.serial = 0
        for variables, table in tables:
            self.add(variables, table)

    def add(self, variables: tuple[int, ...], table: Table) -> None:
        if not variables:
            self.constant += float(table)
            return
        self.tables[self.serial] = variables, table
        for v in variables:
            self.of[v][self.serial] = None
        self.serial += 1

    def beside(self, v: int) -> list[int]:
        found = {u for t in self.of[v] for u in self.tables[t][0]}
        return sorted(found - {v})

    def need(self, v: int) -> int:
        """Elements of the sum of the tables of a variable."""
        return prod(self.sizes[u] for u in self.beside(v)) * self.sizes[v]

    def summed(self, v: int) -> tuple[list[int], Table]:
        """The sum of the tables of a variable, over its neighbours and then itself."""
        beside = self.beside(v)
        place = {u: i for i, u in enumerate((*beside, v))}
        total: Table = np.zeros([self.sizes[u] for u in place])
        for t in self.of[v]:
            variables, table = self.tables[t]
            order = sorted(range(len(variables)), key=lambda i: place[variables[i]])
            shape = [1] * len(place)
            for i in order:
                shape[place[variables[i]]] = self.sizes[variables[i]]
            total += table.transpose(order).reshape(shape)
        return beside, total

    def drop(self, v: int) -> None:
        for t in list(self.of[v]):
            for u in self.tables.pop(t)[0]:
                del self.of[u][t]

    def pin(self, v: int) -> int:
        """Give a variable the value for which the sum of the least elements of its tables is
        least."""
        bound = np.zeros(self.sizes[v])
        for variables, table in (self.tables[t] for t in self.of[v]):
            others = tuple(i for i, u in enumerate(variables) if u != v)
            bound += table.min(others)
        value = int(bound.argmin())
        for t in list(self.of[v]):
            variables, table = self.tables[t]
            for u in self.tables.pop(t)[0]:
                del self.of[u][t]
            at = variables.index(v)
            self.add((*variables[:at], *variables[at + 1 :]), np.asarray(table.take(value, at)))
        return value
