"""Schedules as JSON, and the targets they are for."""

import json
import random

import pytest

from drawing import random_schedule
from kernel_zoo import FAMILIES
from lumc.errors import LumcError
from lumc.kernel.machines import CPUS, resolve_target, unasked
from lumc.schedule.schedule import Schedule, Stage


def test_random_schedules_round_trip() -> None:
    target = resolve_target("cpu:x86-64-v4")
    for i, (family, shapes) in enumerate(FAMILIES.items()):
        schedule = random_schedule(family(*shapes[0]), target, random.Random(i))
        text = json.dumps(schedule.to_json(), sort_keys=True)
        assert Schedule.from_json(json.loads(text)) == schedule


def test_defaults_are_left_out() -> None:
    schedule = Schedule(("m",), 1, {"m": 8}, (Stage("dot", "m", "n"),))
    assert schedule.to_json()["stages"] == [{"form": "dot", "rows_axis": "m", "lane_axis": "n"}]


GOOD = {"order": ["m"], "parallel": 0, "tile": {"m": 4}, "stages": [{"mr": 2}]}


@pytest.mark.parametrize(
    "change",
    [
        {"order": "m"},
        {"parallel": "1"},
        {"parallel": True},
        {"tile": {"m": 0}},
        {"tile": {"m": 1.5}},
        {"tile": [1]},
        {"stages": {}},
        {"keep": 1},
        {"unknown": 1},
        {"stages": [{"form": "magic"}]},
        {"stages": [{"stage_a": "never"}]},
        {"stages": [{"lanes": "all"}]},
        {"stages": [{"mr": 0}]},
        {"stages": [{"nv": True}]},
        {"stages": [{"rows_axis": 3}]},
        {"stages": [{"surprise": 1}]},
        {"stages": [3]},
    ],
)
def test_malformed_schedules_are_refused(change: dict) -> None:
    assert Schedule.from_json(GOOD).tile == {"m": 4}
    with pytest.raises((ValueError, TypeError, AttributeError)):
        Schedule.from_json({**GOOD, **change})


V4 = "flags : fma avx2 f16c bmi1 bmi2 movbe abm avx512f avx512bw avx512cd avx512dq avx512vl sse4_2"
V3 = "flags : fma avx2 f16c bmi1 bmi2 movbe abm sse4_2 ssse3 popcnt cx16 lahf_lm"
V2 = "flags : sse4_2 ssse3 popcnt cx16 lahf_lm"


@pytest.mark.parametrize(
    ("cpuinfo", "arch"),
    [
        (V4, "x86-64-v4"),
        (V3, "x86-64-v3"),
        (V2, "x86-64-v2"),
        ("Features : fp asimd", "aarch64"),
        ("", "generic"),
    ],
)
def test_native_is_a_level(cpuinfo: str, arch: str) -> None:
    target = resolve_target("cpu:native", f"processor : 0\n{cpuinfo}\n")
    assert (target.name, target.arch, target.flags) == ("cpu:native", arch, CPUS[arch].flags)


@pytest.mark.parametrize(
    ("vendor", "family", "fmas"),
    [("AuthenticAMD", 25, 1), ("AuthenticAMD", 26, 2), ("GenuineIntel", 6, 2)],
)
def test_vectors_that_a_core_multiplies_in_a_cycle(vendor: str, family: int, fmas: int) -> None:
    text = f"vendor_id\t: {vendor}\ncpu family\t: {family}\n{V4}\n"
    assert resolve_target("cpu:native", text).fmas == fmas
    assert resolve_target("cpu:native", text.replace(V4, V3)).fmas == 1
    assert resolve_target("cpu:native", V4).fmas == 1  # of nobody's


@pytest.mark.parametrize(
    ("cpuinfo", "name", "features"),
    [
        (f"{V4} avx512_vnni", "cpu:native", ("vnni",)),
        (f"{V3} avx_vnni", "cpu:native", ("vnni",)),
        (f"{V4} avx_vnni", "cpu:native", ()),  # of 32 bytes, where kernels would want 64
        (f"{V2} avx_vnni", "cpu:native", ()),
        (V4, "cpu:native", ()),
        (f"{V4} avx512_vnni", "cpu:native+vnni", ()),
        (f"{V4} avx512_vnni", "cpu:x86-64-v4", ()),
    ],
)
def test_features_that_were_not_asked_for(cpuinfo: str, name: str, features: tuple) -> None:
    assert unasked(resolve_target(name, cpuinfo), cpuinfo) == features


def test_unknown_targets_are_listed() -> None:
    with pytest.raises(LumcError) as e:
        resolve_target("cpu:z80")
    assert e.value.code == "E0401" and "cpu:x86-64-v3" in e.value.fix
