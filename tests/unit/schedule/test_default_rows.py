"""Defaults of maps and walks: what threads have of them."""

from dataclasses import replace

import pytest

from kernel_zoo import running, softmax, transpose, windows
from lumc.kernel.machines import resolve_target
from lumc.kernel.normal import normalize
from lumc.kernel.term import Kernel
from lumc.schedule.first import default_schedule
from lumc.schedule.legal import check_schedule
from shares import largest_share

TWO = replace(resolve_target("cpu:x86-64-v4"), threads=2)


@pytest.mark.parametrize("k", [windows(768, 7, 7, 7, 1, True), transpose(768, 49)])
def test_few_rows_are_dealt_along_the_lanes(k: Kernel) -> None:
    s = default_schedule(k, TWO)
    check_schedule(normalize(k), s, TWO)
    assert largest_share(k, s) < 0.52


def test_rows_of_which_there_are_many_stay_whole() -> None:
    k = windows(768, 56, 56, 3, 1, True)
    s = default_schedule(k, TWO)
    assert s.order[0] == "y" and "c" not in s.tile


@pytest.mark.parametrize("k", [softmax(7, 4096), running(3, 1024, 64, "up")])
def test_what_is_reduced_or_followed_is_not_dealt(k: Kernel) -> None:
    s = default_schedule(k, TWO)
    check_schedule(normalize(k), s, TWO)
    whole = {a for stage in normalize(k).stages for a in k.extent if a not in stage.free}
    assert not whole & {*s.order[: s.parallel]}
