"""Files as earlier versions wrote them, which later ones read: docs/formats.md promises it. Nobody
rewrites them: a new version adds a folder."""

import json
from pathlib import Path

import pytest

from commands import Lumc
from lumc.bundle import manifest
from lumc.bundle.reader import decode
from lumc.profile.records import NAME, Records
from lumc.profile.settings import known_settings
from schemas import check

FOLDERS = sorted(p for p in (Path(__file__).parent / "artifacts").iterdir() if p.is_dir())


@pytest.mark.parametrize("old", FOLDERS, ids=lambda p: p.name)
def test_old_artifacts_are_read(lumc: Lumc, old: Path) -> None:
    for name in ("model.lg", "model.ls", "model.lp"):
        assert lumc("show", old / name)
    lumc("codegen", old / "model.lp", "-o", "m.lk")
    assert json.loads(lumc("show", "m.lk", "--json"))["target"] == "cpu:x86-64-v3"
    lumc("profile", old / "model.ls", "--estimate", "-o", "m.lp")
    for name, file in (("space", "model.ls"), ("plan", "model.lp")):
        check(name, json.loads((old / file).read_text()))


@pytest.mark.parametrize("old", FOLDERS, ids=lambda p: p.name)
def test_old_records_are_read(old: Path) -> None:
    (known,) = known_settings(old / NAME)
    records = Records(old, known.setting)
    assert {key for key, _ in records.choices} == known.kernels and records.trials
    assert records.speeds and known.said["egglog"]
    for line in (old / NAME).read_text().splitlines():
        check("record", json.loads(line))


@pytest.mark.parametrize("old", FOLDERS, ids=lambda p: p.name)
def test_old_bundles_are_read(old: Path) -> None:
    body = manifest.read(old / "model.lb")
    check("manifest", body)
    for path in (old / "model.lb" / "plan").iterdir():
        plan = decode(path.read_bytes())
        assert [e.name for e in plan.entries] == [e["name"] for e in body["entries"]]
