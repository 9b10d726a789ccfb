"""``lumc doctor`` on a Mac, as the fake Metal shows it."""

import json
from pathlib import Path

import numpy as np
import pytest

import fake_metal
import msl
from gpu import address_spaces
from gpu.msl_lint import lint
from lumc.codegen.gpu.grid import Grid
from lumc.report import mac, machine
from lumc.runtime import objc


@pytest.fixture(autouse=True)
def fake(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in fake_metal.environment().items():
        monkeypatch.setenv(name, value)


def compiled(text: str) -> str:
    """A text that the fake finds compiled."""
    msl.build(text, fake_metal.kept())
    return text


def test_a_good_gpu() -> None:
    compiled(mac.text())
    found = mac.checks(fake_metal.library())
    assert [(what, ok) for what, ok, _ in found] == [
        (what, True) for what in ("metal", "metal memory", *(f"metal {t}" for t in mac.TESTS))
    ]
    assert "family Apple9" in found[0][2]


WRONG = {
    "functions": ("precise::log2(x)", "precise::log2(x) * 1.00001f", "log2(", "expected"),
    "16-bit floats": ("> 0x7f800000u ? u >> 16", "> 0x7f000000u ? u >> 16", "to bf16(", "0x7f"),
    "matrices": (
        "left.thread_elements()[0]",
        "left.thread_elements()[1]",
        "thread_elements",
        "lane",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_gpu_that_differs(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    old, new, *said = WRONG[name]
    changed = mac.text().replace(old, new)
    assert changed != mac.text()
    compiled(changed)
    monkeypatch.setattr(mac, "text", lambda: changed)
    gpu = objc.metal(fake_metal.library())
    (difference, *_) = mac.TESTS[name](gpu)
    assert all(part in str(difference) for part in said), difference


def test_no_gpu(tmp_path: Path) -> None:
    assert mac.checks(str(tmp_path / "none")) == [
        ("metal", False, "no Metal on this machine: it is for Macs")
    ]


def test_the_text_of_the_self_test_passes_the_checks() -> None:
    assert lint(mac.text(), "apple7", 256) == []
    if address_spaces.clang():
        assert address_spaces.check(mac.text()) == []


def test_one_kernel_by_itself() -> None:
    text = compiled(
        fake_metal.HEADER
        + "kernel void k_twice(device float *x [[buffer(0)]], uint i [[thread_position_in_grid]])"
        + " { x[i] = x[i] * 2.0f; }\n"
    )
    x = np.arange(64, dtype=np.float32)
    seconds = objc.launch(objc.metal(fake_metal.library()), text, "k_twice", Grid(2, 32), [x], 3)
    np.testing.assert_array_equal(x, np.arange(64) * 8)
    assert seconds > 0


def test_doctor_on_a_mac_writes_a_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("OBJC", "METAL", "GRAPHICS"):
        monkeypatch.setattr(objc, name, fake_metal.library())
    monkeypatch.setattr(machine.platform, "system", lambda: "Darwin")
    compiled(mac.text())
    machine.doctor(machine.NOTHING, False, str(tmp_path / "report.json"))
    rows = json.loads((tmp_path / "report.json").read_text())
    assert {"what": "metal lanes", "ok": True, "said": "as expected"} in rows
    said = capsys.readouterr().out
    assert "ok   metal functions" in said and said.count("\n") == len(rows)
