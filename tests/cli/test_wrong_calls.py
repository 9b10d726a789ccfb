"""Wrong calls of every command: each gives one message with a code, the right exit code and a way
out, and leaves no file."""

import os
import shlex
import shutil
import sys
import zipfile
from pathlib import Path

import click
import numpy as np
import pytest
from click.testing import CliRunner

from commands import SQUARE
from lumc.cli import commands, guided, misused
from lumc.errors import LumcError
from lumc.report.log import unexpected

LINES = 3  # of a message, at most: what happened, where, and what to do
FAR = "a" * 300  # a name that no file system takes


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, square: Path) -> Path:
    """A folder with every artifact of a tiny model, and the same ones damaged."""
    folder = tmp_path_factory.mktemp("made")
    shutil.copytree(square, folder, dirs_exist_ok=True)
    (folder / "bad").mkdir()
    for name in ("m.ls", "m.lp", "m.lk"):
        text = (folder / name).read_text()
        (folder / "bad" / f"cut{name[1:]}").write_text(text[: len(text) // 2])
        (folder / "bad" / f"changed{name[1:]}").write_text(text.replace("x", "z", 1))
        (folder / "bad" / f"new{name[1:]}").write_text(text.replace('"schema":1', '"schema":99'))
    (folder / "cut.lg").write_text(SQUARE[: len(SQUARE) // 2])
    large = SQUARE.replace("16", "n").replace("1\n", "1\ndim n in 1..9999999999\n")
    (folder / "large.lg").write_text(large)
    (folder / "one.lg").write_text(
        SQUARE.replace("16", "1").replace("1\n", "1\ninput z f32[1]\n", 1)
    )
    (folder / "dim.lg").write_text(SQUARE.replace("16", "n").replace("1\n", "1\ndim n in 1..64\n"))
    for name, what in (("code.lb", "kernels/cpu-native/kernels.so"), ("none.lb", "manifest.json")):
        shutil.copytree(folder / "m.lb", folder / name)
        damaged = folder / name / what
        damaged.write_bytes(damaged.read_bytes()[:-9] + b"damaged!!")
    bytes_ = {
        "empty": b"",
        "noise": bytes(range(256)) * 9,
        "cut.zip": b"PK\3\4 cut",
        "m.onnx": b"x",
        "m.pt": b"PK",
    }
    for name, data in bytes_.items():
        (folder / name).write_bytes(data)
    (folder / "alone").mkdir()
    shutil.copytree(folder / "m.lb", folder / "alone" / "m.lb")
    (folder / "hf").mkdir()
    (folder / "hf" / "config.json").write_text('{"model_type": "rwkv"}')
    (folder / "broken").mkdir()
    (folder / "broken" / "config.json").write_text("{")
    (folder / "folder").mkdir()
    (folder / "model.py").write_text("def none(): return 1\ndef fails(): return 1 / 0\n")
    (folder / "syntax.py").write_text("def (")
    (folder / "loop").symlink_to("loop")
    (folder / "dangling").symlink_to("nowhere")
    (folder / "huge.lg").write_text(SQUARE.replace("16", str(1 << 45)))
    (folder / "text.npy").write_text("text")
    (folder / "old.json").write_text("[]")
    np.save(folder / "x.npy", np.ones(16, "f4"))
    np.save(folder / "long.npy", np.ones(17, "f4"))
    np.save(folder / "f64.npy", np.ones(16, "f8"))
    np.savez(folder / "other.npz", other=np.ones(16, "f4"))
    with zipfile.ZipFile(folder / "other.zip", "w") as z:
        z.writestr("readme.txt", "no bundle")
    return folder


WRONG = """
2 E0211 nosuch
2 E0211 --nosuch show m.lg
2 E0211 bench
2 E0211 show m.lg m.ls
2 E0211 compile m.lg
2 E0211 compile m.lg -o
2 E0211 --max-seconds 0 search m.lg
2 E0211 --max-gb much search m.lg
2 E0205 import folder/../noise -o a.lg
2 E0201 import nosuch.onnx -o a.lg
2 E0201 import nosuch -o a.lg
2 E0201 import loop -o a.lg
1 E0202 import FAR -o a.lg
2 E0205 import folder -o a.lg
4 E0320 import hf -o a.lg
5 E0321 import broken -o a.lg
5 E0310 import m.onnx -o a.lg
2 E0330 import nosuch.py:f -o a.lg
2 E0330 import model.py:nosuch -o a.lg
4 E0331 import model.py:fails -o a.lg
4 E0332 import model.py:none -o a.lg
4 E0331 import syntax.py:f -o a.lg
5 E0502 import m.lg -o a.lg
2 E0203 import m.lg --dim s -o a.lg
2 E0211 import m.lg --dtype f8 -o a.lg
2 E0211 grad m.lg
2 E0211 grad m.lg --loss y
2 E0201 grad nosuch.lg --loss y --wrt x
5 E0502 grad m.ls --loss y --wrt x
5 E0301 grad cut.lg --loss y --wrt x
2 E0110 grad m.lg --loss y --wrt x --entry nosuch
2 E0111 grad m.lg --loss y --wrt x --dim n=4
2 E0212 grad m.lg --loss nosuch --wrt x
2 E0212 grad m.lg --loss y --wrt nosuch
2 E0212 grad m.lg --loss y --wrt 'z*'
2 E0212 grad m.lg --loss y --wrt ''
2 E0212 grad m.lg --loss y --wrt x --stop nosuch
4 E0130 grad m.lg --loss y --wrt x
4 E0132 grad one.lg --loss y --wrt z
4 E0132 grad one.lg --loss y --wrt '*' --stop t
4 E0132 grad one.lg --loss y --wrt x --stop t
1 E0202 grad one.lg --loss y --wrt x -o nosuch/a.lg
2 E0201 search nosuch.lg
2 E0201 search folder
2 E0201 search m.lg/m.lg
2 E0201 search loop
2 E0201 search FAR
5 E0301 search empty
5 E0501 search noise
5 E0301 search cut.lg
5 E0502 search m.ls
2 E0401 search m.lg --target cpu:z80
2 E0401 search m.lg --target nosuch
4 E0112 search large.lg
2 E0111 search dim.lg --dim k=4
2 E0111 search dim.lg --dim n=65
2 E0203 search dim.lg --dim n=x
2 E0203 search m.lg --dim 16
1 E0202 search m.lg -o nosuch/a.ls
1 E0202 search m.lg -o folder
1 E0202 search m.lg -o m.lg/a.ls
1 E0202 search m.lg -o FAR
1 E0202 search m.lg -o /proc/nosuch
5 E0501 search /dev/zero
2 E0201 search 模型.lg
2 E0211 profile m.ls --trials 1e9
2 E0203 profile m.ls --budget ∞
2 E0211 --max-gb nan search m.lg
2 E0401 compile m.lg --target cpu:aarch64+sve -o a.lb
2 E0401 compile m.lg --target 'cpu;ls' -o a.lb
2 E0401 compile m.lg --target cuda:sm_75 -o a.lb
2 E0401 compile m.lg --target '' -o a.lb
2 E0111 compile m.lg --dim m=99999999999999999999999999 -o a.lb
2 E0203 compile m.lg --dim m=-4 -o a.lb
2 E0203 compile m.lg --cache m.lg -o a.lb
2 E0211 compile m.lg --allow-path nosuch -o a.lb
2 E0211 compile m.lg --allow-path m.lg -o a.lb
2 E0703 compile m.lg --emit c -o m.lb
2 E0711 compile m.lg --emit static --target cpu,cpu:aarch64 -o a
1 E0202 compile m.lg --save-temps m.lg -o a.lb
1 E0202 compile m.lg -o /proc/a.lb --estimate
4 E0114 compile huge.lg --estimate -o a.lb
4 E0114 compile huge.lg --estimate --target cpu:generic -o a.lb
5 E0502 profile m.lg
5 E0502 profile m.lp
5 E0501 profile bad/cut.ls
5 E0501 profile bad/changed.ls
5 E0501 profile bad/new.ls
5 E0502 profile m.lb/manifest.json
2 E0203 profile m.ls --budget soon
2 E0203 profile m.ls --budget -5s
2 E0203 profile m.ls --budget 1e999
2 E0211 profile m.ls --trials -1
2 E0211 profile m.ls --threads 0
2 E0211 profile m.ls --target-fraction 2
2 E0211 profile m.ls --estimate --frozen
7 E0701 profile m.ls --estimate --cc nosuchcc
6 E0413 profile m.ls --frozen --cache folder
6 E0418 profile m.ls --budget 0 --cache folder
5 E0502 codegen m.ls
5 E0501 codegen bad/cut.lp
5 E0501 codegen bad/changed.lp
2 E0201 codegen nosuch.lp
5 E0502 link m.lp -o a.lb
5 E0501 link bad/cut.lk -o a.lb
2 E0201 link nosuch.lk -o a.lb
2 E0707 link m.lk m.lk -o a.lb
2 E0703 link m.lk -o folder/..
1 E0202 link m.lk -o nosuch/a.lb
2 E0211 link m.lk -o a --emit c --zip
2 E0211 link m.lk -o a --emit exe
2 E0211 link m.lk -o -
7 E0701 link m.lk -o a.lb --cc nosuchcc
7 E0701 link m.lk -o a.lb --cc "'"
2 E0201 compile nosuch.lg -o a.lb
5 E0502 compile m.ls -o a.lb
5 E0502 compile m.lb -o a.lb
2 E0205 compile folder -o a.lb
2 E0205 compile m.pt -o a.lb
2 E0205 compile model.py -o a.lb
2 E0703 compile m.lg --estimate -o m.lg
2 E0203 compile m.lg --target cpu,cpu -o a.lb
2 E0401 compile m.lg --target cpu, -o a.lb
2 E0711 compile m.lg --target cuda --emit c -o a
7 E0705 compile m.lg --target cpu,cuda --nvcc nosuchnvcc -o a.lb
2 E0211 compile m.lg --json -o a.lb
2 E0211 compile m.lg --estimate -o -
2 E0211 compile m.lg --estimate -o ''
2 E0211 import '' -o a.lg
2 E0201 run nosuch.lb
5 E0501 run folder
5 E0502 run m.lg
5 E0501 run noise
5 E0501 run m.lb/bin/lumc-run
5 E0501 run cut.zip
5 E0501 run other.zip
5 E0501 run code.lb --input x.npy
5 E0501 run none.lb --input x.npy
2 E0610 run m.lb
2 E0603 run m.lb --input nosuch.npy
2 E0603 run m.lb --input folder
5 E0603 run m.lb --input text.npy
5 E0603 run m.lb --input cut.zip
2 E0602 run m.lb --input z=x.npy
2 E0203 run m.lb --input =x.npy
2 E0203 run m.lb --input x=
2 E0602 run m.lb --input x.npy --state s.npz
2 E0211 run m.lb --input x.npy -o out.csv
2 E0211 run m.lb --input x.npy -o y=y.npy
2 E0211 run m.lb --input x.npy --threads 99999999999999999999
5 E0502 run m.lk --input x.npy
2 E0201 run /dev/null --input x.npy
2 E0602 run m.lb --input x.npy --input x=x.npy
2 E0602 run m.lb --input other.npz
2 E0610 run m.lb --input long.npy
2 E0610 run m.lb --input f64.npy
2 E0110 run m.lb --input x.npy --entry nosuch
2 E0211 run m.lb --input x.npy --device tpu
2 E0211 run ''
2 E0211 run m.lb --input ''
7 E0708 run m.lb --input x.npy --device cuda
2 E0211 run m.lb --input x.npy --threads 0
1 E0202 run m.lb --input x.npy -o nosuch/y.npy
1 E0202 run m.lb --input x.npy -o folder
1 E0202 run m.lb --input x.npy --trace nosuch/t.json
2 E0203 run m.lb --input x.npy --state -
2 E0605 verify m.lb --source x.npy
2 E0201 verify m.lb --source nosuch.lg
2 E0211 verify m.lb --tolerance -1
2 E0211 verify m.lb --seed x
2 E0211 verify m.lb --seed -1
5 E0502 verify m.lk
2 E0207 verify alone/m.lb --bisect
2 E0203 bench m.lb --fail-above 1.05
2 E0201 bench m.lb --compare nosuch.json --seconds 0.01
5 E0501 bench m.lb --compare noise --seconds 0.01
5 E0501 bench m.lb --compare m.lg --seconds 0.01
2 E0211 bench m.lb --fail-above -1 --compare old.json
2 E0211 bench m.lb --threads 1..4
2 E0211 bench m.lb --seconds 0
2 E0211 bench m.lb --threads 1,x
2 E0201 show nosuch
2 E0201 show dangling
2 E0211 show m.lg --json --svg a.svg
2 E0211 show m.lp --json --kernel map
5 E0501 show noise
2 E0209 show m.lp --kernel nosuch
2 E0209 show m.lg --kernel t
2 E0209 show m.lg --tile
1 E0202 show m.lg --svg nosuch/a.svg
2 E0110 show m.lg --svg a.svg --entry nosuch
2 E0203 diff m.lg m.ls
2 E0201 diff m.lg nosuch
2 E0211 diff m.lg
2 E0203 explain E9999
2 E0203 explain E312
2 E0201 explain nosuch.lp
2 E0207 explain m.lg
2 E0209 explain m.lp --kernel nosuch
2 E0208 explain m.lp --best a.jsonl --cache folder
2 E0207 explain alone/m.lb
2 E0211 report m.lp
1 E0202 report m.lp -o nosuch/report.html
2 E0210 reduce m.lg --check true
2 E0210 reduce m.lg --check nosuchcommand
2 E0201 reduce nosuch.lg --check false
5 E0502 reduce m.lp --check false
2 E0211 reduce m.lg
2 E0211 cache nosuch
2 E0201 cache merge nosuch --cache folder
5 E0505 cache merge m.lg --cache folder
2 E0203 cache list --cache m.lg
1 E0202 cache export -o nosuch/all.jsonl --cache folder
2 E0211 completion powershell
1 E0202 doctor --report nosuch/r.txt
"""


@pytest.mark.parametrize("call", WRONG.strip().splitlines())
def test_a_wrong_call_is_one_message_with_a_way_out(
    made: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    monkeypatch.chdir(made)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # Python's own, of the user's script
    before = sorted(os.listdir())
    exit, code, *args = shlex.split(call.replace("FAR", FAR))
    result = CliRunner().invoke(commands, args, standalone_mode=False)
    error = result.exception
    if isinstance(error, click.ClickException):
        error = misused(error)
    elif isinstance(error, OSError):
        error = unexpected(error, args)
    assert isinstance(error, LumcError), result
    said = str(guided(error))
    assert (int(error.exit), error.code) == (int(exit), code), said
    caret = 2 * (error.code == "E0301")  # a line of the graph, and where in it
    assert "\n  fix:   " in said and said.count("\n") < LINES + caret, said
    assert sorted(os.listdir()) == before
