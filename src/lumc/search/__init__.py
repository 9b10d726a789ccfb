"""Which programs are equal: regions, terms, laws, saturation, variants and cut points."""

from lumc.search.explore import search

__all__ = ["search"]
