"""Sums of products over named axes."""

from __future__ import annotations

from collections.abc import Sequence

from lumc.frontend.api.tensor import Tensor


def einsum(equation: str, tensors: Sequence[Tensor]) -> Tensor:
    """Broadcast products over all letters, then sums over those that the result lacks. A letter
    that repeats within an operand reads its diagonal."""
    text = equation.replace(" ", "")
    left, arrow, right = text.partition("->")
    terms = left.split(",")
    if len(terms) != len(tensors):
        raise ValueError(f"einsum '{equation}' of {len(tensors)} operands")
    rank = max(x.ndim - len(t.replace("...", "")) for x, t in zip(tensors, terms, strict=True))
    spare = [chr(ord("0") + i) for i in range(rank)]  # the axes of the ellipsis
    labels = [_labels(t, x.ndim, spare) for t, x in zip(terms, tensors, strict=True)]
    used = [c for term in labels for c in term]
    if arrow:
        result = _labels(right, len(right.replace("...", "")) + rank * ("..." in right), spare)
    else:
        once = sorted(c for c in set(used) if used.count(c) == 1 and c not in spare)
        result = [*spare, *once]
    if wrong := [c for c in result if c not in used or result.count(c) > 1]:
        raise ValueError(f"einsum '{equation}': '{wrong[0]}' is of no operand, or twice in the end")
    order = [*result, *sorted({c for c in used if c not in result})]
    product = None
    for x, term in zip(tensors, labels, strict=True):
        part = _spread(x, term, order)
        product = part if product is None else product * part
    assert product is not None
    extra = range(len(result), len(order))
    return product.sum(tuple(extra)) if extra else product


def _labels(term: str, ndim: int, spare: Sequence[str]) -> list[str]:
    before, dots, after = term.partition("...")
    count = ndim - len(before) - len(after)
    if count < 0 or (count and not dots):
        raise ValueError(f"einsum term '{term}' of a tensor of rank {ndim}")
    return [*before, *spare[len(spare) - count :], *after]


def _spread(x: Tensor, term: list[str], order: Sequence[str]) -> Tensor:
    """The operand with one axis per letter of ``order``."""
    for letter in sorted(set(term)):
        while term.count(letter) > 1:  # a repeated letter reads the diagonal
            first = term.index(letter)
            second = term.index(letter, first + 1)
            rest = [i for i in range(x.ndim) if i not in (first, second)]
            x = x.permute(*rest, first, second).diagonal()
            term = [term[i] for i in rest] + [letter]
    present = [c for c in order if c in term]
    x = x.permute(*(term.index(c) for c in present)) if present else x
    missing = [i for i, c in enumerate(order) if c not in term]
    return x.unsqueeze(*missing) if missing else x
