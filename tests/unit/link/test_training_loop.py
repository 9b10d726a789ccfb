"""``lumc-run --steps``: batches by rows and by steps, losses, and what kill -9 leaves; the runner
has the sanitizers of addresses and of undefined behaviour."""

from __future__ import annotations

import os
import random
import re
import runpy
import signal
import subprocess
import tempfile
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import lumc as package
from commands import Lumc
from compiling import ASAN, ROOT, RUNNER, compile_c
from lumc.link import runners
from training import parameters, reference, step

SIZES, BATCH, ROWS, STEPS = [6, 16, 4], 8, 50, 40
RNG = np.random.default_rng(3)
X = RNG.standard_normal((ROWS, SIZES[0])).astype("f4")
Y = (X @ RNG.standard_normal((SIZES[0], SIZES[-1]))).argmax(-1)
LR = (1e-2 * np.minimum(1, np.arange(1, STEPS + 1) / 10)).astype("f4")


def said() -> dict[str, Any]:
    """What docs/bundle.md says of the order of rows, as Python."""
    page = (ROOT / "docs" / "bundle.md").read_text()
    (block,) = (b for b in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "def mix" in b)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "order.py").write_text(block)
        return runpy.run_path(f"{folder}/order.py")


shuffled = said()["shuffled"]


def batches(seed: int | None, steps: int) -> Iterator[list[int]]:
    each = ROWS // BATCH
    for s in range(steps):
        epoch, k = divmod(s, each)
        order = list(range(ROWS)) if seed is None else shuffled(ROWS, seed, epoch)
        yield order[k * BATCH : (k + 1) * BATCH]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("loop")
    step(SIZES, BATCH, parameters(SIZES)).save(folder / "m.lg")
    Lumc(folder)("compile", "--estimate", folder / "m.lg", "-o", folder / "m.lb")
    for name, array in (("x", X), ("y", Y), ("lr", LR)):
        np.save(folder / f"{name}.npy", array)
    np.savez(folder / "data.npz", x=X, y=Y, lr=LR, other=X)
    save_file({"x": X, "y": Y, "lr": LR, "other": X}, folder / "data.safetensors")
    compile_c((RUNNER / "main.c").read_text(), folder / "lumc-run", runners.LIBRARY, ASAN)
    return folder


@pytest.fixture
def here(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for p in made.iterdir():
        (tmp_path / p.name).symlink_to(p)
    return tmp_path


def call(*words: object) -> list[str]:
    return ["./lumc-run", "m.lb", "--steps", str(STEPS), *map(str, words)]


def run(*words: object, code: int = 0) -> str:
    done = subprocess.run(call(*words), capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == code, done.stderr
    return done.stderr


ALL = ("--feed", "x=x.npy", "--feed", "y=y.npy", "--feed", "lr=lr.npy")


def losses(path: str = "l.csv") -> list[float]:
    lines = Path(path).read_text().splitlines()
    assert lines[0] == "step,loss"
    rows = [line.split(",") for line in lines[1:]]
    assert [int(r[0]) for r in rows] == list(range(1, len(rows) + 1))
    return [float(r[1]) for r in rows]


@pytest.mark.parametrize("seed", [None, 0, 7, (1 << 64) - 1])
def test_it_does_what_a_loop_in_python_does(here: Path, seed: int | None) -> None:
    how = () if seed is None else ("--seed", seed)
    run(*ALL, *how, "--losses", "l.csv", "--save", "o.safetensors", "-o", "y.npz")
    with package.load("m.lb") as bundle:
        want = [
            bundle.run({"x": X[b], "y": Y[b], "lr": LR[s]})["loss"]
            for s, b in enumerate(batches(seed, STEPS))
        ]
        state = bundle.state()
    assert losses() == [float(f"{x:.9g}") for x in want]
    saved = load_file("o.safetensors")
    assert all(np.array_equal(saved[k], v) for k, v in state.items())
    assert np.load("y.npz")["loss"] == want[-1] < want[0]


def test_it_learns_what_torch_learns(here: Path) -> None:
    pytest.importorskip("torch")
    run(*ALL, "--seed", 5, "--losses", "l.csv", "--save", "o.safetensors")
    given = [(X[b], Y[b], LR[s]) for s, b in enumerate(batches(5, STEPS))]
    want, params = reference(SIZES, parameters(SIZES), given)
    np.testing.assert_allclose(losses(), want, rtol=2e-5)
    saved = load_file("o.safetensors")
    assert all(np.abs(saved[k] - v).max() < 1e-4 for k, v in params.items())


def test_files_of_each_kind_feed_the_same(here: Path) -> None:
    run(*ALL, "--save", "a.safetensors")
    run("--feed", "data.npz", "--save", "b.safetensors")
    run("--feed", "data.safetensors", "--save", "c.safetensors")
    np.save("order.npy", np.array(list(batches(None, STEPS)), "i4"))
    run(*ALL, "--order", "order.npy", "--save", "d.safetensors")
    a, b, c, d = (Path(f"{n}.safetensors").read_bytes() for n in "abcd")
    assert a == b == c and a != d  # the notes of d say that its rows are listed
    assert a[-100:] == d[-100:]
    np.save("order.npy", np.array(list(batches(9, STEPS))).reshape(-1))
    run(*ALL, "--order", "order.npy", "--losses", "l.csv", "--save", "e.safetensors")
    listed = losses()
    run(*ALL, "--seed", 9, "--losses", "l.csv", "--save", "f.safetensors")
    assert listed == losses()


def test_an_input_that_is_the_same_in_every_step(here: Path) -> None:
    np.save("one.npy", np.float32(0.01))
    np.save("many.npy", np.full(STEPS, 0.01, "f4"))
    run(*ALL[:4], "--input", "lr=one.npy", "--save", "a.safetensors")
    run(*ALL[:4], "--feed", "lr=many.npy", "--save", "b.safetensors")
    assert Path("a.safetensors").read_bytes() == Path("b.safetensors").read_bytes()


def finished(tag: str, *how: object) -> bytes:
    run(*ALL, *how, "--losses", f"{tag}.csv", "--save", f"{tag}.safetensors")
    return Path(f"{tag}.safetensors").read_bytes() + Path(f"{tag}.csv").read_bytes()


def test_a_loop_in_two_parts_is_one_loop(here: Path) -> None:
    want = finished("a", "--seed", 1)
    first = [*call(*ALL, "--seed", 1, "--losses", "b.csv", "--save", "b.safetensors")]
    first[3] = "17"
    subprocess.run(first, check=True, capture_output=True)
    assert len(losses("b.csv")) == 17
    again = ("--seed", 1, "--state", "b.safetensors")
    assert finished("b", *again) == want
    assert finished("b", *again) == want  # nothing is left to do
    said = run(*ALL, *again, "-o", "y.npz", code=2)
    assert "all 40 steps are done: there are no outputs" in said


def test_kill_9_and_going_on_leave_equal_bytes(here: Path) -> None:
    """Killed at any moment, again and again: the state, the losses, and nothing else."""
    np.save("one.npy", LR[-1])
    loop = call(*ALL[:4], "--input", "lr=one.npy", "--seed", 2, "--every", 20)
    loop[3], rng, kills = "2000", random.Random(4), 0

    def words(tag: str) -> list[str]:
        files = ["--losses", f"{tag}.csv", "--save", f"{tag}.safetensors"]
        begun = Path(f"{tag}.safetensors").exists()
        return [*loop, *files, *(["--state", f"{tag}.safetensors"] if begun else [])]

    started = time.monotonic()
    subprocess.run(words("a"), check=True, capture_output=True)
    takes = time.monotonic() - started
    for tag in ("b", "c"):
        for _ in range(8):
            with subprocess.Popen(words(tag), stderr=subprocess.DEVNULL) as process:
                time.sleep(rng.uniform(0.02, 0.35) * takes)
                process.kill()
                kills += process.wait() == -signal.SIGKILL
        subprocess.run(words(tag), check=True, capture_output=True)
        for end in ("safetensors", "csv"):
            assert Path(f"{tag}.{end}").read_bytes() == Path(f"a.{end}").read_bytes()
    assert kills > 3, kills


@pytest.mark.parametrize("sig", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_saves_what_was_done(here: Path, sig: signal.Signals) -> None:
    want, words = finished("a", "--seed", 2), ("--seed", 2, "--losses", "b.csv")
    long = [*call(*ALL[:4], "--input", "lr=one.npy", *words, "--save", "s.safetensors")]
    long[3] = "1000000"
    np.save("one.npy", LR[0])
    with subprocess.Popen(long, stderr=subprocess.DEVNULL) as process:
        while not Path("b.csv").exists():
            time.sleep(0.01)
        time.sleep(0.3)
        process.send_signal(sig)
        assert process.wait(timeout=20) == -sig
    n = len(losses("b.csv"))
    assert n > 1 and Path("s.safetensors").exists() and want
    long[3] = str(n)
    subprocess.run([*long, "--state", "s.safetensors"], check=True, capture_output=True)
    assert len(losses("b.csv")) == n


@pytest.mark.parametrize("torn", ["12", "12,0.5", "zebra", "12,0.5\n999,1\n", ""])
def test_losses_behind_a_saved_step_are_cut(here: Path, torn: str) -> None:
    want = finished("a")
    first = call(*ALL, "--losses", "b.csv", "--save", "b.safetensors")
    first[3] = "11"
    subprocess.run(first, check=True, capture_output=True)
    with Path("b.csv").open("a") as f:
        f.write(torn)
    assert finished("b", "--state", "b.safetensors") == want


WRONG: dict[str, tuple[tuple[object, ...], str]] = {
    "nothing for an input": (ALL[:4], "input 'lr' is missing: --feed lr=rows.npy"),
    "an input twice": ((*ALL, "--feed", "x=x.npy"), "input 'x' is given twice"),
    "an unknown input": ((*ALL, "--feed", "z=x.npy"), "no input for --feed z=x.npy"),
    "an input without a name": (("--feed", "x.npy"), "no input for --feed x.npy"),
    "no file": ((*ALL[:4], "--feed", "lr=no.npy"), "cannot open no.npy"),
    "a folder": ((*ALL[:4], "--feed", "lr=m.lb"), "not a file of arrays"),
    "another dtype": ((*ALL[:4], "--feed", "lr=y.npy"), "y.npy cannot feed input 'lr'"),
    "another shape": ((*ALL[2:], "--feed", "x=wide.npy"), "wide.npy cannot feed input 'x'"),
    "too few steps": ((*ALL[:4], "--feed", "lr=few.npy"), "for 3 steps, not for 40"),
    "too few rows": ((*ALL[2:], "--feed", "x=short.npy"), "short.npy has 7 rows"),
    "other rows": ((*ALL[2:], "--feed", "x=more.npy"), "has 51 rows"),
    "no arrays": (("--feed", "none.npz"), "has no array that is called as an input is"),
    "compressed arrays": (("--feed", "packed.npz"), "is compressed"),
    "a name for a file of names": (("--feed", "x=data.npz"), "has its names"),
    "order and seed": ((*ALL, "--order", "x.npy", "--seed", 1), "give one"),
    "an order of floats": ((*ALL, "--order", "x.npy"), "are i64 or i32"),
    "a short order": ((*ALL, "--order", "y.npy"), "has 50 rows for 40 steps of 8"),
    "an order beyond": ((*ALL, "--order", "beyond.npy"), "50 is none of 50 rows"),
    "an order below": ((*ALL, "--order", "below.npy"), "-1 is none of 50 rows"),
    "a seed that is none": ((*ALL, "--seed", "x"), "--seed x is no number"),
    "every without save": ((*ALL, "--every", 3), "--every says how often to --save"),
    "repeat": ((*ALL, "--repeat", 3), "give --steps or --repeat"),
    "no such state": ((*ALL, "--state", "no.st"), "cannot open no.st"),
    "losses that are none": (
        (*ALL, "--state", "s.st", "--losses", "good.npy"),
        "is no file of these losses",
    ),
    "other batches": ((*ALL, "--state", "s.st", "--seed", 4), "was made with other batches"),
    "more steps than asked for": ((*ALL, "--state", "t.st"), "has 99 steps behind it"),
    "steps that are no number": ((*ALL, "--state", "u.st"), "has x steps behind it"),
}


@pytest.mark.parametrize("what", WRONG)
def test_wrong_calls_say_what_is_wrong(here: Path, what: str) -> None:
    words, said = WRONG[what]
    np.save("wide.npy", np.zeros((ROWS, 7), "f4"))
    np.save("few.npy", LR[:3])
    np.save("short.npy", X[:7])
    np.save("more.npy", np.concatenate([X, X[:1]]))
    np.save("good.npy", X)
    np.savez("none.npz", other=X)
    np.savez_compressed("packed.npz", x=X)
    for name, value in (("beyond", ROWS), ("below", -1)):
        order = np.zeros(STEPS * BATCH, "i8")
        order[-1] = value
        np.save(f"{name}.npy", order)
    if "state" in str(words):
        first = call(*ALL, "--save", "s.st")
        first[3] = "5"
        subprocess.run(first, check=True, capture_output=True)
        tensors = load_file("s.st")
        save_file(tensors, "t.st", metadata={"lumc.step": "99"})
        save_file(tensors, "u.st", metadata={"lumc.step": "x"})
    error = run(*words, code=2)
    assert said in error and error.startswith("lumc-run: ") and error.count("\n") == 1
    assert np.array_equal(np.load("good.npy"), X)  # what is something else is not cut


def test_what_cannot_be_written_ends_it(here: Path) -> None:
    assert "cannot write gone/l.csv" in run(*ALL, "--losses", "gone/l.csv", code=1)
    assert "cannot write gone/o" in run(*ALL, "--save", "gone/o", code=1)
    if Path("/dev/full").exists():
        assert "cannot write /dev/full" in run(*ALL, "--losses", "/dev/full", code=1)
    run(*ALL, "--losses", "/dev/null", "--save", "/dev/null")
    done = subprocess.run(
        call(*ALL, "--losses", "/dev/stdout"), capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("step,loss\n1,") and len(done.stdout.splitlines()) == STEPS + 1
    assert not [p for p in os.listdir() if p.startswith(".lumc")]


def test_options_of_a_loop_need_steps(here: Path) -> None:
    for words in (("--feed", "x=x.npy"), ("--seed", "1"), ("--losses", "l"), ("--every", "2")):
        done = subprocess.run(["./lumc-run", "m.lb", *words], capture_output=True, text=True)
        assert done.returncode == 2 and "go with --steps" in done.stderr


def test_a_progress_line_for_each_save(here: Path) -> None:
    lines = run(*ALL, "--save", "o.st", "--every", 10).splitlines()
    assert [line.split()[1] for line in lines] == ["10/40", "20/40", "30/40", "40/40"]
    assert all(" loss " in line and "ms a step" in line for line in lines)


def damaged(data: bytes, rng: random.Random) -> bytes:
    new = bytearray(data)
    for _ in range(rng.randint(1, 3)):
        at = rng.choice([rng.randrange(len(new)), len(new) - 1 - rng.randrange(300)])
        new[at] = rng.choice([0, 1, 127, 128, 255, rng.randrange(256)])
    return bytes(new[: rng.randrange(len(new))] if rng.random() < 0.2 else new)


@pytest.mark.parametrize("name", ["x.npz", "x.safetensors", "x.npy"])
def test_damaged_files_are_refused_or_read(here: Path, name: str, tmp_path: Path) -> None:
    """Never a crash, and never anything outside of the file."""
    rng, small = random.Random(6), {"x": X[:9, :], "y": Y[:9], "lr": LR}
    np.savez("good.npz", **small)
    save_file(small, "good.safetensors")
    np.save("good.npy", X[:9])
    np.save("y9.npy", Y[:9])
    data = Path(f"good.{name[2:]}").read_bytes()
    words: Any = ("--feed", f"bad.{name[2:]}")
    if name == "x.npy":
        words = ("--feed", "x=bad.npy", "--feed", "y=y9.npy", *ALL[4:])
    for _ in range(60):
        Path(f"bad.{name[2:]}").write_bytes(damaged(data, rng))
        done = subprocess.run(call(*words), capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode in (0, 2), done.stderr
    with zipfile.ZipFile("bad.npz", "w") as z:
        z.writestr("x.npy", b"")
    assert "not a .npy file" in run("--feed", "bad.npz", code=2)
