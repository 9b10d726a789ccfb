"""kill -9 at random moments, several compiles at once, full disks of every size: nothing is torn,
at most one trial is lost, and the next run clears what is left.

LUMC_KILLS=200 for a campaign, 20 otherwise; LUMC_SEED for other moments.
"""

import json
import os
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from commands import Lumc
from lumc.bundle import manifest
from lumc.disk.scratch import prefix

GRAPH = """lumc graph 1
input x f32[48, 96]
input w f32[96, 80]
t0 f32[m:48, n:80, k:96] = mul x[m, k], w[k, n]
t1 f32[m:48, n:80] = sum k:96 of t0[m, n, k]
t2 f32[m:48, n:80] = sin t1[m, n]
t3 f32[m:48] = sum n:80 of t2[m, n]
output y = t2
output z = t3
"""
KILLS, SEED = (int(os.environ.get(name, n)) for name, n in (("LUMC_KILLS", 20), ("LUMC_SEED", 5)))
RECORDS = Path("cache/lumc/records.jsonl")
pytestmark = [pytest.mark.deep, pytest.mark.timeout(60 + 30 * KILLS)]


@pytest.fixture
def folder(lumc: Lumc, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a graph, a cache and temporary files of its own."""
    Path("m.lg").write_text(GRAPH)
    Path("tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(lumc.folder / "tmp"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(lumc.folder / "cache"))
    for name in ("LUMC_CACHE", "LUMC_OBJECTS", "XDG_RUNTIME_DIR"):
        monkeypatch.delenv(name, raising=False)
    return lumc.folder


def start(*args: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "lumc", "compile", "m.lg", "-o", "m.lb", *args]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)


def litter() -> list[str]:
    """Temporaries of lumc, and of compilers, wherever they may lie."""
    places = (Path(), Path("tmp"), Path("cache/lumc"), Path("cache/lumc/objects"))
    own = [str(p) for place in places for p in place.glob(f"{prefix()}*")]
    return own + [str(p) for p in Path("tmp").iterdir() if str(p) not in own]


def check_bundle(bundle: Path) -> None:
    """Every file has the hash that the manifest gives, and no other file is there."""
    body = manifest.read(bundle)
    files = {p.relative_to(bundle).as_posix() for p in bundle.rglob("*") if p.is_file()}
    assert files == {manifest.NAME, *body["files"]}
    assert all(manifest.sha256(bundle / n) == h for n, h in body["files"].items())


def whole_lines(data: bytes) -> list[bytes]:
    """The records, of which the last may be torn, and no other."""
    *lines, rest = data.split(b"\n")
    for line in lines:
        assert not line or json.loads(line)["v"]
    return lines + [rest] * (rest.endswith(b"}"))


def test_kills(folder: Path, lumc: Lumc) -> None:
    """Of a compile that measures, at moments from its first to its last."""
    draw, killed, old, most = random.Random(SEED), 0, list[bytes](), 0
    for trials in ("4", "8"):  # the second one finds its objects
        begun = time.monotonic()
        assert start("--trials", trials, "--budget", "600s").wait(300) == 0
        takes = time.monotonic() - begun
    for i in range(KILLS):
        begun = time.monotonic()
        process = start("--trials", str(10 + 2 * i), "--budget", "600s", "--target-fraction", "1")
        try:
            process.wait(draw.uniform(0.1, takes))
            takes = min(takes, time.monotonic() - begun)  # less is going on beside it
        except subprocess.TimeoutExpired:
            killed += 1
        process.kill()
        process.communicate()
        if Path("m.lb").exists():
            check_bundle(Path("m.lb"))
        new = whole_lines(RECORDS.read_bytes())
        assert new[: len(old)] == old, "what is on record stays"
        old, most = new, max(most, len(litter()))
    last = start("--trials", "4", "--budget", "600s")
    _, said = last.communicate(timeout=300)
    assert last.returncode == 0, said
    until = time.monotonic() + 20
    while litter() and time.monotonic() < until:  # compilers of the last kill may end yet
        time.sleep(0.2)
    print(f"{killed} of {KILLS} kills hit a compile; at most {most} temporaries at once")
    assert killed > KILLS // 2 and most < 20
    assert litter() == []
    assert {p.name for p in folder.iterdir()} == {"m.lg", "m.lb", "tmp", "cache"}
    check_bundle(Path("m.lb"))
    lumc("cache", "verify")


def test_compiles_at_once_in_one_cache(folder: Path, lumc: Lumc) -> None:
    """Ten that measure, to one output and one cache."""
    runs = [start("--trials", "2", "--budget", "600s") for _ in range(10)]
    said = [r.communicate(timeout=300)[1] for r in runs]
    assert [r.returncode for r in runs] == [0] * 10, said
    check_bundle(Path("m.lb"))
    lumc("cache", "verify")
    start("--frozen").wait(60)
    first = (Path("m.lb") / manifest.NAME).read_bytes()
    start("--frozen").wait(60)
    assert (Path("m.lb") / manifest.NAME).read_bytes() == first and litter() == []


# ---- full disks

PLACES = {"output": "out", "temporary files": "tmp", "cache": "cache", "everything": "all"}
SIZES = (*(f"size={4 << i}k" for i in range(0, 11, 2)), "ro", "size=100m")  # a page to enough


def mounts() -> list[str]:
    """What starts a command with mounts of its own; nothing where that is not allowed."""
    own = ["unshare", "--mount", *([] if os.geteuid() == 0 else ["--map-root-user"])]
    try:
        mount = [*own, "mount", "-t", "tmpfs", "none", "/mnt"]
        return own if subprocess.run(mount, capture_output=True).returncode == 0 else []
    except OSError:
        return []


@pytest.mark.parametrize(
    ("place", "how"),
    [*((p, "estimated") for p in PLACES), ("cache", "measured"), ("everything", "measured")],
)
def test_disks_of_every_size(folder: Path, place: str, how: str) -> None:
    """On each, and on one that is read only, a compile ends with a bundle, or with an error that
    says why; records and objects are left out where they find no room."""
    own = mounts()
    if not own:
        pytest.skip("no file system can be mounted here")
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    command = [*own, sys.executable, __file__, str(folder), PLACES[place], how]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=900)
    print(done.stdout)
    assert done.returncode == 0, done.stderr


def fill(folder: Path, place: str, how: str) -> None:
    """In a mount of its own: one compile on a disk of each size at this place."""
    where = {"out": "out", "tmp": "tmp", "cache": "cache"}
    if place == "all":
        where = dict.fromkeys(where, "all") | {"tmp": "all/tmp"}
    disk, out = folder / place, folder / where["out"] / "m.lb"
    env = {**os.environ, "TMPDIR": str(folder / where["tmp"])}
    env |= {"XDG_CACHE_HOME": str(folder / where["cache"])}
    options = ["--estimate"] if how == "estimated" else ["--trials", "1", "--budget", "600s"]
    command = [sys.executable, "-m", "lumc", "compile", "m.lg", "-o", str(out), *options]
    for name in {*where.values(), place}:
        (folder / name).mkdir(exist_ok=True, parents=True)
    codes = []
    for size in SIZES:
        mount = ["mount", "-t", "tmpfs", "none", str(disk)]
        subprocess.run([*mount, "-o", size.replace("ro", "size=1m")], check=True)
        for name in where.values():
            (folder / name).mkdir(exist_ok=True)
        if size == "ro":
            subprocess.run([*mount, "-o", "remount,ro"], check=True)
        done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True)
        codes.append(done.returncode)
        last = (done.stderr.splitlines() or [""])[-1]
        assert done.returncode in (0, 1), done.stderr
        assert "internal error" not in done.stderr and "Traceback" not in done.stderr, done.stderr
        assert not [*folder.glob(f"*/{prefix()}*")]
        if done.returncode == 0:
            check_bundle(out)
        else:
            why = "nothing may be written" if size == "ro" else "No space left"
            assert not out.exists() and why in done.stderr, (size, done.stderr)
        print(f"{size}: exit code {done.returncode} {last}")
        subprocess.run(["umount", disk], check=True)
        shutil.rmtree(out, ignore_errors=True)
    assert codes[-1] == 0
    assert place != "cache" or set(codes) == {0}, "a cache is never needed"
    assert place == "cache" or codes[0] == 1


if __name__ == "__main__":
    fill(Path(sys.argv[1]), *sys.argv[2:])
