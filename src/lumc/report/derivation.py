"""Which laws led to a program: a set of rules from which it follows and none of which is idle.

A region is saturated again without one rule at a time; a rule is idle when the same term is
found without it. That takes as many saturations as rules fired, so only small regions that
were saturated are looked at; for the others it is only known what fired.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from lumc.kernel.key import canonical, kernel_key, structural_hashes
from lumc.kernel.normal import normalize
from lumc.kernel.target import Target
from lumc.kernel.term import Kernel
from lumc.limits import LEVELS
from lumc.schedule.plan import RegionPlan
from lumc.search.blocks import blocks_joined
from lumc.search.compact import compacts
from lumc.search.cuts import Splitting
from lumc.search.explore import find_regions
from lumc.search.partial import with_partial_sums
from lumc.search.polyphase import polyphases
from lumc.search.saturate import Limits, StopReason, rule_files, saturate
from lumc.search.space import Region, Space
from lumc.search.split import blocks_apart, laws_of, splits
from lumc.search.translate import Body
from lumc.search.turn import turns
from lumc.search.variants import extract, variants

LARGE = 200  # e-nodes of a region that is not saturated again


def original(space: Space) -> dict[str, Body]:
    """The body of every unique region of a graph before the search, by key."""
    wanted, out = {r.key for r in space.regions}, dict[str, Body]()
    for again in LEVELS:  # how much was to be done again is not on record
        found = [f for entry in space.graph.entries for f in find_regions(entry, again)]
        out |= {f.key: f.body for f in reversed(found)}
        if wanted <= out.keys():
            break
    return out


def variant_of(
    region: Region, plan: RegionPlan, target: Target
) -> tuple[int, list[str]] | tuple[None, list[str]]:
    """The number of the variant that a program computes, and the laws that split its kernels. Its
    cuts are the names of its values."""
    cuts = [int(b.name.removeprefix("v")) for b in plan.local if "_" not in b.name]
    for i, v in enumerate(region.variants):
        if not cuts or max(cuts) < len(v.cuts):
            parts = Splitting(region.frame, v.value, v.cuts).kernels(cuts)
            found = _laws_of_splits(parts, [s.kernel for s in plan.steps], target)
            if found is not None:
                return i, found
    return None, []


def _laws_of_splits(
    parts: Sequence[Kernel], wanted: Sequence[str], target: Target
) -> list[str] | None:
    """The laws by which the kernels are those that are wanted, some of them in two steps."""
    laws: dict[str, None] = {}
    for part in parts:
        forms = [([part], list[str]()), *((k, laws_of(part)) for k in splits(part, target))]
        forms += [(k, ["turn"]) for k in turns(part, target)]
        forms += [(k, ["compact"]) for k in compacts(part, target)]
        forms += [(k, ["split-block"]) for k in blocks_apart(part)]
        forms += [(k, ["join-block"]) for k in blocks_joined(part)]
        for form, found in (*forms, *((k, ["polyphase"]) for k in polyphases(part))):
            keys = [kernel_key(canonical(normalize(k))[0], target) for k in form]
            if keys == list(wanted[: len(keys)]):
                wanted = wanted[len(keys) :]
                laws.update(dict.fromkeys(found))
                break
        else:
            return None
    return None if wanted else list(laws)


def laws(region: Region, variant: int, body: Body) -> list[str] | None:
    """The rules that a variant needs, in the order of their files; None for a large region."""
    value = region.variants[variant].value
    others = (v.value for v in region.variants if v.value != value)
    nested = ["partial"] * any(with_partial_sums(v) == value for v in others)
    wanted = structural_hashes([value], region.frame.lengths.told(region.frame.extent))[value]
    fired = [rule for rule, n in region.stats.fired.items() if n]
    if _finds(body, wanted, fired):
        return nested
    if region.stats.nodes > LARGE or region.stats.stop is not StopReason.SATURATED:
        return None
    if not _finds(body, wanted, ()):
        return None
    idle: list[str] = []
    for rule in fired:
        if _finds(body, wanted, (*idle, rule)):
            idle.append(rule)
    return [rule for rule in fired if rule not in idle] + nested


def _finds(body: Body, wanted: str, without: Iterable[str]) -> bool:
    """Whether the search finds a term, but for its names, without some rules."""
    names = [f':name "{rule}"' for rule in without]
    rules = [
        "\n".join(line for line in text.splitlines() if not any(n in line for n in names))
        for text in rule_files().values()
    ]
    limits = Limits()
    live = body.lengths.texts
    graph, _ = saturate(body.value, body.extent, limits, rules, live, body.equal)
    free = {a: a for a in body.extent}
    for choice in variants(graph, limits.variants):
        term, bound = extract(graph, choice, free)
        sizes = {**body.extent, **{a: body.extent[b] for a, b in bound.items()}}
        extent = body.lengths.with_alike(bound).told(sizes)
        if any(
            structural_hashes([t], extent)[t] == wanted for t in (term, with_partial_sums(term))
        ):
            return True
    return False
