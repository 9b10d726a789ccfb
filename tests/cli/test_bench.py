"""`lumc bench`: figures, several numbers of threads, and whether a bundle got slower."""

import json
from pathlib import Path

import numpy as np
import pytest

from commands import Lumc
from lumc.command.bench import figures


@pytest.fixture
def bundle(square: Path) -> Path:
    return square / "m.lb"


def test_the_interval_holds_the_median_in_95_of_100_cases() -> None:
    """Of samples whose median is known: a skewed distribution, of mean 1 and median log 2."""
    rng, held = np.random.default_rng(7), 0
    for _ in range(2000):
        f = figures(list(rng.exponential(1.0, 200)))
        held += f["median_low_us"] <= np.log(2) <= f["median_high_us"]
    assert 0.94 < held / 2000 < 0.98


def test_figures_are_those_of_numpy() -> None:
    times = list(np.random.default_rng(3).permutation(1001).astype(float))
    f = figures(times)
    wanted = np.quantile(times, [0, 0.5, 0.9, 0.99])
    assert [f["min_us"], f["median_us"], f["p90_us"], f["p99_us"]] == list(wanted)
    assert figures([5.0]) == dict.fromkeys(
        ("min_us", "median_us", "median_low_us", "median_high_us", "p90_us", "p99_us"), 5.0
    ) | {"iterations": 1}


def test_a_bundle_alone(lumc: Lumc, bundle: Path) -> None:
    said = lumc("bench", bundle, "--seconds", "0.01")
    assert said.startswith("entry main · device cpu · threads 1 · min ")
    assert said.endswith(" samples\n") and said.count("\n") == 1


def test_bundles_are_compared_with_what_they_were(lumc: Lumc, bundle: Path) -> None:
    call = ("bench", bundle, "--seconds", "0.05", "--threads", "1,2")
    Path("old.json").write_text(lumc(*call, "--json"))
    old = json.loads(Path("old.json").read_text())
    assert [row["threads"] for row in old] == [1, 2]
    assert "times the old minimum" in lumc(*call, "--compare", "old.json", "--fail-above", "1000")
    said = lumc.fails(3, *call, "--compare", "old.json", "--fail-above", "0.001")
    assert "E0614 slower than in old.json" in said and "at 2 threads" in said
    new = json.loads(lumc("bench", bundle, "--seconds", "0.05", "--json", "--compare", "old.json"))
    assert new["ratio"] == new["min_us"] / old[0]["min_us"]


def test_what_cannot_be_compared_is_refused(lumc: Lumc, bundle: Path) -> None:
    call = ("bench", bundle, "--seconds", "0.01")
    assert "E0203" in lumc.fails(2, *call, "--fail-above", "1.05")
    assert "E0201" in lumc.fails(2, *call, "--compare", "nosuch.json")
    for text in ("", "[1]", "{}", '{"min_us": 0, "entry": "", "device": "", "threads": 1}', "[]x"):
        Path("old.json").write_text(text)
        assert "E0501" in lumc.fails(5, *call, "--compare", "old.json")
    row = {"entry": "main", "device": "cpu", "threads": 8, "min_us": 1.0}
    Path("old.json").write_text(json.dumps(row))
    assert "no figures of entry main, device cpu, threads 1" in lumc.fails(
        2, *call, "--compare", "old.json"
    )
    for threads in ("0", "1,", "x", "1,2000"):
        assert "Invalid value" in lumc.fails(2, *call, "--threads", threads)
