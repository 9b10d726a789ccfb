"""Monte Carlo tree search (UCT) over the choices of a schedule grammar.

A node is a start of a path. Every trial counts for all nodes on its path, so what the walk
measures seeds the tree. A proposal goes down by upper confidence bounds - the choices of most
effect come first - until it leaves the tree; the rest is drawn uniformly from all schedules that
begin so. (Kocsis and Szepesvari, "Bandit based Monte-Carlo planning", 2006.)
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from math import log, sqrt

from lumc.schedule.schedule import Schedule
from lumc.schedule.space import Grammar, Path

EXPLORE = 0.15  # weight of the uncertainty; derived: twice as fast is 0.17 more reward
UNKNOWN = 0.9  # of the mean of a node: what a child is worth that was never tried; a guess
TRIES = 200  # to find one schedule that is new; a guess


@dataclass
class Node:
    visits: int = 0
    total: float = 0.0
    best: float = 0.0

    def add(self, reward: float) -> None:
        self.visits += 1
        self.total += reward
        self.best = max(self.best, reward)

    @property
    def mean(self) -> float:
        return self.total / self.visits

    @property
    def value(self) -> float:
        """One good schedule below a node is worth as much as many fair ones."""
        return (self.mean + self.best) / 2


class Tree:
    """What is known of a space; rewards are relative to the time of the first schedule."""

    def __init__(self, grammar: Grammar, rng: random.Random) -> None:
        self.grammar, self.rng = grammar, rng
        self.nodes: dict[Path, Node] = {}
        self.first_us: float | None = None

    def observe(self, schedule: Schedule, us: float | None) -> None:
        """Learn the time of a schedule, or that it has none."""
        path = self.grammar.path(schedule)
        self.first_us = self.first_us or us
        if path:
            scale = self.first_us or 1.0
            self._add(path, scale / (scale + us) if us is not None else 0.0)

    def propose(self, seen: set[Path]) -> Schedule | None:
        """A schedule that was not seen before, or None when none was found."""
        for _ in range(TRIES):
            path = self._descend()
            if path not in seen:
                return self.grammar.build(path)
            self._add(path, self.nodes[path].mean if path in self.nodes else 0.0)
        return None

    def _add(self, path: Path, reward: float) -> None:
        for depth in range(len(path) + 1):
            self.nodes.setdefault(path[:depth], Node()).add(reward)

    def _descend(self) -> Path:
        path: Path = ()
        while path in self.nodes and len(path) < len(self.grammar.names):
            path = (*path, self._pick(path))
        return self.grammar.sample(self.rng, path)

    def _pick(self, path: Path) -> object:
        here, found = self.nodes[path], self.grammar.options(path)
        self.rng.shuffle(found)  # among equals

        def bound(value: object) -> float:
            node = self.nodes.get((*path, value))
            known = node.value if node else UNKNOWN * here.mean
            visits = node.visits if node else 1
            return known + EXPLORE * sqrt(log(here.visits + 1) / visits)

        return max(found, key=bound)
