"""Records of other machines: what differs is named, and one of them can be chosen."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernels import native
from lumc.errors import LumcError
from lumc.profile.phases import profile
from lumc.profile.records import NAME, Choice, Records, Setting, compact, read_lines
from lumc.profile.settings import choose, known_settings, mismatch, words
from lumc.schedule.moves import structures
from lumc.schedule.space import Grammar
from measuring import SETTING, FakeBench, fake, kernel_of, product

HERE = {
    **{"cpu": "Ryzen", "cores": 2, "compiler": "gcc 12.2.0", "features": "avx2 fma avx512f"},
    **{"lumc": "0.1.0", "egglog": "13.2.0", "cache_bytes": 1 << 20},
}
CHOICE = Choice(structures(Grammar(kernel_of(product).kernel, native()))[0], 9.0, "bound", 3, 60, 0)


def write(folder: Path, setting: Setting, said: dict[str, object], *kernels: str) -> None:
    records = Records(folder, setting, said)
    for kernel in kernels:
        records.choose(kernel, False, CHOICE)
    records.close()


def told(folder: Path, *kernels: str) -> str:
    return mismatch(Records(folder, SETTING, HERE), kernels)


def test_a_machine_is_on_record_once_and_again_when_it_says_something_else(tmp_path: Path) -> None:
    for said in (HERE, HERE, {**HERE, "egglog": "14.0.0"}):
        write(tmp_path, SETTING, said, "k")
    lines = list(read_lines(tmp_path / NAME))
    assert [n["kind"] for n in lines].count("machine") == 2
    (machine,) = [n for n in compact(lines) if n["kind"] == "machine"]
    assert machine["egglog"] == "14.0.0"
    (known,) = known_settings(tmp_path / NAME)
    assert known.kernels == {"k"} and words(known.said) == "Ryzen, 2 cores, gcc 12.2.0"


@pytest.mark.parametrize(
    ("setting", "said", "expected"),
    [
        (Setting("a", "gcc", 1), {"cores": 4}, "cores 4 (here 2)"),
        (Setting("a", "gcc", 1), {"cpu": "Xeon", "cores": 4}, "CPU Xeon (here Ryzen), cores 4"),
        (Setting("here", "b", 1), {"compiler": "clang 14"}, "compiler clang 14 (here gcc 12.2.0)"),
        (Setting("here", "b", 1), {"features": "avx2 amx"}, "instructions amx (here avx512f fma)"),
        (Setting("here", "b", 1), {}, "flags of the compiler"),
        (Setting("here", "gcc", 4), {}, "threads 4 (here 1)"),
    ],
)
def test_a_mismatch_names_what_differs(
    tmp_path: Path, setting: Setting, said: dict[str, object], expected: str
) -> None:
    write(tmp_path, setting, {**HERE, **said}, "k", "m", "other")
    s = setting
    head = f"2 kernels of this model for device {s.device}, tools {s.tools}, threads {s.threads}: "
    assert head + expected in told(tmp_path, "k", "m")
    assert str(tmp_path) in told(tmp_path, "k", "m")


def test_records_that_do_not_say_their_machine(tmp_path: Path) -> None:
    write(tmp_path, Setting("there", "gcc", 1), {}, "k")
    assert "device there (here here)" in told(tmp_path, "k")


def test_records_of_other_kernels_say_who_made_them(tmp_path: Path) -> None:
    assert told(tmp_path, "k") == str(tmp_path)
    write(tmp_path, Setting("there", "gcc", 1), {**HERE, "egglog": "14.0.0"}, "n")
    said = "none of this model, target and dtype for any machine"
    assert f"{said}; they were made by egglog 14.0.0 (here 13.2.0)" in told(tmp_path, "k")


def test_a_frozen_search_says_it(tmp_path: Path) -> None:
    profile(fake(product, tmp_path, FakeBench(), trials=3))
    text = (tmp_path / NAME).read_text().replace('"device":"here"', '"device":"there"')
    (tmp_path / NAME).write_text(text)
    with pytest.raises(LumcError) as e:
        profile(fake(product, tmp_path, FakeBench(), frozen=True))
    assert e.value.code == "E0413" and "for device there, tools gcc, threads 1" in e.value.where


def test_a_machine_is_chosen_by_the_beginning_of_its_name(tmp_path: Path) -> None:
    for device, tools in (("abc", "gcc12"), ("abc", "gcc13"), ("xyz", "gcc12")):
        write(tmp_path, Setting(device, tools, 1), HERE, "k")
    write(tmp_path, Setting("xyz", "gcc12", 2), HERE, "k")
    assert choose(tmp_path, "x", 1).setting == Setting("xyz", "gcc12", 1)
    assert choose(tmp_path, "abc/gcc13", 1).name == "abc/gcc13"
    for wanted, threads, said in (
        ("abc", 1, "several of the records for 1 threads"),
        ("abc", 2, "none of the records for 2 threads"),
        ("/", 1, "several"),
    ):
        with pytest.raises(LumcError, match=said) as e:
            choose(tmp_path, wanted, threads)
        assert "abc/gcc12, abc/gcc13" in e.value.fix and int(e.value.exit) == 2


def test_records_of_a_stranger_say_nothing_that_is_believed(tmp_path: Path) -> None:
    write(tmp_path, Setting("a", "b", 1), {"cpu": "\x1b[2J", "cores": [1], "lumc": {}}, "k")
    with (tmp_path / NAME).open("a") as f:
        f.write('{"v":2,"kind":"choice","device":3,"tools":[],"threads":true}\n')
    (known,) = known_settings(tmp_path / NAME)
    assert words(known.said) == "\\x1b[2J"
