"""What looks for faults finds those that are planted, agrees with the oracle, and goes on."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from fuzz import calls, campaign, graphs, native, plain, readers, texts
from lumc.graph.graph import Node
from lumc.graph.ops import DType
from lumc.graph.text import print_graph

QUICK = ("lg", "manifest", "plan", "zip", "safetensors", "gguf", "pt2", "records", "npy", "npz")


def cases(count: int, name: str) -> list[graphs.Case]:
    draws = ((i, texts.parts_of(f"{name} {i}", i)) for i in range(count))
    return [graphs.Case(texts.together([parts], graphs.NOWHERE), i) for i, parts in draws]


def test_two_evaluators_that_share_nothing_agree(tmp_path: Path) -> None:
    graphs.by_oracle(cases(120, "agree"), tmp_path)


def test_everything_is_drawn() -> None:
    """Each primitive and dtype, and each kind of leaf and index map."""
    parts = (texts.parts_of(f"drawn {i}") for i in range(500))
    text = texts.together([*parts], graphs.NOWHERE)
    words = ("exp2", "log2", "sin", "sqrt", "recip", "add", "mul", "mod", "lt", "sum", "max")
    kinds = ("special", "tiny", "huge", "wrap", "mask", "real", "pos", "whole", "index")
    for word in (*words, "contiguous", *plain.NUMPY, *kinds, "update", "output y2", " if ", "//"):
        assert word in text, word
    for part in ("[0, ", ":0", ":1,", " - i", "2*i", " % ", "weight", "state", "(nan)", "(inf)"):
        assert part in text, part


def judged(want: plain.Value, got: np.ndarray) -> bool:
    return not plain.wrong(got, want)


def value(text: str, **arrays: object) -> plain.Value:
    given = {k: np.asarray(v) for k, v in arrays.items()}
    whole = f"lumc graph 1\n{text}\noutput y = y\n"
    return plain.evaluate(whole, given.__getitem__, lambda x: x)["main"].values["y"]


def test_what_is_wrong_is_seen_and_what_is_rounded_is_not() -> None:
    x = np.random.default_rng(0).uniform(-2, 2, (50, 40)).astype("f4")
    total = value("input x f32[50, 40]\ny f32[i:50] = sum k:40 of x[i, k]", x=x)
    right = x.sum(1, dtype="f4")
    assert judged(total, right) and judged(total, x[:, ::-1].sum(1, dtype="f4"))
    for i in (0, 49):
        off = right.copy()
        off[i] += 1e-3
        assert not judged(total, off)
    assert not judged(total, right[:-1]) and not judged(total, np.full(50, np.nan, "f4"))


def test_the_law_of_nan_and_infinity() -> None:
    inf, nan = np.inf, np.nan
    text = "input a f32[]\ninput b f32[3]\nt f32[i:3] = mul a[], b[i]\ny f32[] = sum i:3 of t[i]"
    factored = value(text, a=inf, b=[1, -2, 3])
    for got, fine in ((nan, True), (inf, True), (0.0, False)):
        assert judged(factored, np.asarray(got)) == fine
    chosen = "input m bool[3]\ninput b f32[3]\ny f32[i:3] = mul m[i], b[i]"
    select = value(chosen, m=[True, False, True], b=[nan, inf, 1.0])
    assert judged(select, np.array([nan, 0, 1]))
    assert not judged(select, np.array([nan, nan, 1])) and not judged(select, np.array([0, 0, 1]))
    text = "t f32[i:3] = mul a[i - 1] if 0 <= i - 1 < 3, b[i]\ny f32[] = sum i:3 of t[i]"
    for b, may_miss in (([inf, 1, 1], True), ([1, inf, 1], False)):  # 0 times inf may be left out
        padded = value(f"input a f32[3]\ninput b f32[3]\n{text}", a=[1, 1, 1], b=b)
        assert judged(padded, np.asarray(2.0)) == may_miss
    most = value("input b f32[3]\ny f32[] = max i:3 of b[i]", b=[1.0, nan, inf])
    assert judged(most, np.asarray(nan)) and not judged(most, np.asarray(inf))


def test_integers_wrap_and_are_exact() -> None:
    x = np.array([2**31 - 1, -(2**31), 7], "i4")
    y = value("input x i32[3]\ny i32[i:3] = add x[i], 1", x=x)
    assert judged(y, np.array([-(2**31), -(2**31) + 1, 8], "i4"))
    assert not judged(y, np.array([-(2**31), -(2**31) + 1, 9], "i4"))


def test_values_of_leaves_follow_from_names() -> None:
    for dtype in DType:
        for kind in ("tiny", "huge", "special", "real") if dtype.is_float else ("wrap", "whole"):
            if dtype is DType.BOOL:
                continue
            node = Node(f"w_{kind}_3", "weight", dtype, ("d0",), (64,))
            a, b = (graphs.leaf_values(node, 5) for _ in "ab")
            assert a.dtype == dtype.numpy and a.tobytes() == b.tobytes()
            assert kind != "wrap" or dtype.is_float or len(set(a.tolist())) > 40


def test_files_with_faults(tmp_path: Path) -> None:
    """Few of each: refused in one error, or accepted; both happen."""
    for name, kind in readers.kinds(tmp_path, QUICK).items():
        seen = set[bool]()
        for i in range(120):
            data = kind.make(random.Random(f"few {name} {i}"))
            said, accepted = readers.problem(kind, data)
            assert not said, (name, i, said)
            seen.add(accepted)
        assert seen == {True} if name == "records" else {True, False}, name


def test_what_a_reader_must_not_do_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readers, "MEGABYTES", 64)

    def reader(what: bytes) -> object:
        if what == b"slow":
            while True:
                pass
        if what == b"large":
            return np.ones(int(readers.peak_mb() + 100) << 20, np.uint8).sum()
        return {}[what]

    kind = readers.Kind(lambda draw: b"", reader)
    for data, word in ((b"key", "KeyError"), (b"slow", "took more"), (b"large", "MB")):
        monkeypatch.setattr(readers, "SECONDS", 0.2 if data == b"slow" else 60.0)
        said, _ = readers.problem(kind, data)
        assert word in said, (data, said)


def test_a_campaign_goes_on_where_it_stopped(tmp_path: Path) -> None:
    state = campaign.State.read(tmp_path)
    state.add(1, "artifacts/lg", {"tries": 10, "accepted": 3})
    state.add(1, "artifacts/lg", {"tries": 5, "accepted": 1})
    state.add(2, "artifacts/lg", {"tries": 1, "findings": 1})
    again = campaign.State.read(tmp_path)
    assert again.of(1, "artifacts/lg")["tries"] == 15
    assert again.total("artifacts/lg") == {"tries": 16, "accepted": 4, "findings": 1}
    said = campaign.summary(again, ("artifacts/lg", "native/plan"))
    assert "| artifacts lg | 16 | 100,000 | 4 | 1 |" in said
    run = campaign.Campaign(again, 1, ("artifacts/lg", "native/plan"), 0.0, "")
    assert run.behind(set()) == "native/plan" and run.behind({"native/plan"}) == "artifacts/lg"
    assert campaign.units_of("native,artifacts/lp")[-1] == "artifacts/lp"


@pytest.mark.deep
def test_native_readers_and_a_planted_fault(tmp_path: Path) -> None:
    """A short run of each, and one that a sanitizer must end."""
    for target in native.TARGETS:
        done = native.fuzz(tmp_path / "native", target, 1, (2.0, 60.0))
        assert done["runs"] > 500 and done["corpus"] > 3, (target, done)
    (tmp_path / "plan.c").write_text((native.RUNNER / "plan.c").read_text())
    cursor = (native.RUNNER / "cursor.h").read_text()  # the one beside plan.c is found first
    worse = cursor.replace("c->end - c->at < 8", "c->end - c->at < 0")
    assert worse != cursor
    (tmp_path / "cursor.h").write_text(worse)
    objects = tmp_path / "native" / "plan.o"
    native.cc(f"-I{native.RUNNER}", "-c", str(tmp_path / "plan.c"), "-o", str(objects))
    files = [str(p) for p in (tmp_path / "native").glob("*.o")]
    out = tmp_path / "native" / "harness"
    native.cc(f"-I{native.RUNNER}", str(native.HARNESS), *files, "-o", str(out), "-pthread", "-ldl")
    assert native.fuzz(tmp_path / "native", "plan", 1, (5.0, 60.0)) == {"findings": 1}
    assert "overflow" in next((tmp_path / "found").glob("plan-*.txt")).read_text()


def test_a_batch_of_graphs_becomes_one(tmp_path: Path) -> None:
    """As entries, with a file of weights, that the real readers take."""
    few = [c for c in cases(12, "whole") if graphs.is_text(c)]
    graph = graphs.whole_graph(few, tmp_path)
    assert len(graph.entries) == len(few)
    from lumc.disk.weights import read_weight

    for weight in graph.weights:
        values = read_weight(weight, tmp_path)
        (case,) = (c for c in few if weight.name in {w.name for w in c.graph.weights})
        assert np.array_equal(values, case.leaf(weight), equal_nan=values.dtype.kind == "f")


TWICE = f"""lumc graph 1
{graphs.NOWHERE}
weight w bool[11, 17] "weights.safetensors" "w"
t bool[i:3] = mul w[i, 0], w[i, i + 13]
output y = t
"""


@pytest.mark.parametrize("way", graphs.WAYS)
def test_every_way_computes(way: str, tmp_path: Path) -> None:
    """One weight that is laid out twice: candidates were given one of the copies for both."""
    assert not graphs.problem(graphs.Case(TWICE, 400), way, tmp_path)


def test_help_names_every_option(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["fuzz", "--help"])
    with pytest.raises(SystemExit):
        campaign.main()
    said = capsys.readouterr().out
    assert all(f"--{o}" in said for o in ("seconds", "seed", "kind", "modes", "jobs", "summary"))
    with pytest.raises(SystemExit, match="no kind artifacts/nothing"):
        campaign.units_of("artifacts/nothing")


def test_kinds_whose_packages_are_missing_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(campaign, "find_spec", lambda name: name != "nnsmith")
    assert campaign.ready() == ["graphs", "onnx", "artifacts", "native"]
    with pytest.raises(SystemExit, match="pip install nnsmith torch"):
        campaign.units_of("onnx,nnsmith")
    monkeypatch.setattr(campaign, "find_spec", lambda name: name)
    assert campaign.units_of("nnsmith") == ("nnsmith/all",)


def test_calls_of_the_tensor_api_mean_what_numpy_means() -> None:
    for i in range(60):
        graph, meant = calls.graph(f"calls {i}", i)
        case = graphs.Case(print_graph(graph), i, meant)
        case.check_meaning()
        name = next(iter(meant))
        case.meant = {name: meant[name] + 0.01}
        if meant[name].size and case.want["main"].values[name].doubt.max() == plain.SURE:
            with pytest.raises(graphs.Wrong, match="means something else"):
                case.check_meaning()
