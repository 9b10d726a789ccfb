"""`lumc explain` and `lumc report`: what they say, from which files, and that it can be reused."""

import json
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import browser
import lumc as api
from commands import Lumc
from lumc.artifacts import files
from lumc.disk import artifact
from lumc.report import gains
from lumc.report.evidence import head
from schemas import NAMES, check

GRAPH = """lumc graph 1
input x f32[16, 48]
input w f32[48, 32]
t0 f32[m:16, n:32, k:48] = mul x[m, k], w[k, n]
t1 f32[m:16, n:32] = sum k:48 of t0[m, n, k]
t2 f32[m:16, n:32] = exp2 t1[m, n]
t3 f32[m:16] = sum n:32 of t2[m, n]
t4 f32[m:16] = recip t3[m]
t5 f32[m:16, n:32] = mul t2[m, n], t4[m]
output y = t5
"""
CACHE = ("--cache", "cache")
TRIALS = ("--trials", "3", "--target-fraction", "1")
HOSTILE = "</title></script><script>alert(1)</script><img src=x onerror=alert(2)>\"'&"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with every artifact of a measured model, and its records."""
    folder = tmp_path_factory.mktemp("measured")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        lumc = Lumc(folder)
        Path("m.lg").write_text(GRAPH)
        lumc("search", "m.lg", "-o", "m.ls")
        lumc("profile", "m.ls", "-o", "m.lp", *CACHE, *TRIALS)
        lumc("codegen", "m.lp", "-o", "m.lk")
        lumc("link", "m.lk", "-o", "m.lb")
    return folder


@pytest.fixture
def measured(lumc: Lumc, made: Path) -> Lumc:
    shutil.copytree(made, lumc.folder, dirs_exist_ok=True)
    return lumc


OUTPUTS = {
    "show-graph": "show m.lg",
    "show-space": "show m.ls",
    "show-plan": "show m.lp",
    "show-kernels": "show m.lk",
    "show-bundle": "show m.lb",
    "show-plain": "show net",
    "shard-plan": "shard m.lg --plan 2xH100",
    "run": "run m.lb --input in.npz",
    "verify": "verify m.lb",
    "bench": "bench m.lb --seconds 0.01",
    "explain": "explain m.lp --cache cache",
    "explain-code": "explain E0413",
    "targets": "targets",
    "doctor": "doctor",
    "cache-list": "cache list --cache cache",
    "dry-run": "compile m.lg -o m.lb --cache cache --dry-run",
}


def test_every_output_is_as_its_schema_says(measured: Lumc) -> None:
    np.savez("in.npz", x=np.ones((16, 48), "f4"), w=np.ones((48, 32), "f4"))
    measured("link", "m.lk", "--emit", "c", "-o", "net")
    for name, call in OUTPUTS.items():
        check(name, json.loads(measured(*call.split(), "--json")))
    check("bench", json.loads(measured(*OUTPUTS["bench"].split(), "--threads", "1,2", "--json")))
    measured("profile", "m.ls", "--estimate", "-o", "e.lp")
    done = measured.raw("diff", "m.lp", "e.lp", "--json")
    check("diff", json.loads(done.stdout))
    for name, path in (("space", "m.ls"), ("plan", "m.lp"), ("kernels", "m.lk")):
        check(name, json.loads(Path(path).read_text()))
    check("manifest", json.loads(Path("m.lb/manifest.json").read_text()))
    lines = [json.loads(line) for line in Path("cache/records.jsonl").read_text().splitlines()]
    assert {"trial", "choice", "peak", "machine"} <= {line["kind"] for line in lines}
    for line in lines:
        check("record", line)
    said = measured.raw("--log-json", "profile", "m.ls", *CACHE, *TRIALS, "-o", "n.lp", "-v")
    for line in said.stderr.splitlines():
        check("log", json.loads(line))
    others = {"diff", "space", "plan", "kernels", "manifest", "record", "log"}
    of_texts = {"generate", "bench-llm", "transcribe"}  # in files of their own
    assert sorted({*OUTPUTS, *others, *of_texts}) == NAMES


def test_records_of_another_machine_are_named_and_can_be_chosen(measured: Lumc) -> None:
    """Newcomer's 12: CI on another machine learnt only that no record was there."""
    path = Path("cache/records.jsonl")
    (device,) = set(re.findall('"device":"([0-9a-f]+)"', path.read_text()))
    cores = f'"cores":{os.cpu_count()}'
    assert cores in path.read_text()
    other = path.read_text().replace(device, "other").replace(cores, '"cores":3')
    path.write_text(other)
    frozen = ("profile", "m.ls", "-o", "n.lp", "--cache", "cache", "--frozen")
    said = measured.fails(6, *frozen)
    assert "where: cache\n         it has " in said
    assert " of this model for device other, tools " in said
    assert f"threads 1: cores 3 (here {os.cpu_count()})" in said and "--device-records" in said
    assert ", 3 cores, " in measured("cache", "list", "--cache", "cache").splitlines()[-2]
    chosen = measured.raw(*frozen[:-1], "--device-records", "oth")
    assert chosen.exit_code == 0 and "times of another machine" in chosen.stderr
    assert Path("n.lp").read_bytes() == Path("m.lp").read_bytes()
    assert path.read_text() == other
    assert api.compile("m.lg", "n.lb", cache="cache", device_records="oth") == Path("n.lb")
    assert Path("n.lb/graph.lg").read_bytes() == Path("m.lb/graph.lg").read_bytes()
    said = measured("explain", "n.lp", "--cache", "cache")
    assert "note: timed on another machine than this one: " in said and "(device other)" in said
    measured("report", "n.lp", "--cache", "cache", "-o", "r.html")
    assert "timed on another machine than this one" in Path("r.html").read_text()
    dry = ("compile", "m.lg", "-o", "m.lb", "--cache", "cache", "--dry-run")
    assert "nothing would be measured" in measured(*dry, "--device-records", "oth")
    assert " would be missed: E0413 (--frozen)" in measured(*dry, "--frozen")
    assert "none of the records" in measured.fails(2, *frozen, "--device-records", "nobody")
    measured.fails(2, *frozen, "--device-records", "oth", "--estimate")


def test_a_dry_run_knows_what_was_searched(measured: Lumc) -> None:
    before = Path("cache/records.jsonl").read_bytes()
    call = ("compile", "m.lg", "-o", "m.lb", *CACHE, *TRIALS, "--dry-run")
    said = measured(*call)
    assert "1 kernels: 1 searched before" in said and "nothing would be measured" in said
    assert "would be replaced" in said and Path("cache/records.jsonl").read_bytes() == before


def test_explain_says_why(measured: Lumc) -> None:
    said = measured("explain", "m.lp", *CACHE)
    for word in ("time", "of its roofline", "share", "computes", "runs", "stopped: ", "found by"):
        assert word in said
    body = json.loads(measured("explain", "m.lp", *CACHE, "--json"))
    assert body["missing"] == [] and body["measured"]
    assert sum(k["share"] for k in body["kernels"]) == pytest.approx(1)
    assert body["total_us"] == pytest.approx(sum(k["total_us"] for k in body["kernels"]))
    for k in body["kernels"]:
        assert k["name"] in said and k["trials"] >= 1 and k["curve"] and k["values"]
        assert all(loser["schedule"] != k["schedule"] for loser in k["losers"])
        assert [us for _, us in k["curve"]] == sorted((us for _, us in k["curve"]), reverse=True)
    (region,) = body["regions"]
    chosen, *others = region["programs"]
    assert chosen["chosen"] and not any(p["chosen"] for p in others)
    assert set(chosen["laws"]) <= set(region["fired"])
    assert {s["key"] for s in chosen["kernels"]} == {k["key"] for k in body["kernels"]}


def test_what_is_done_again_is_said(measured: Lumc, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "repeats" not in measured("explain", "m.lp", *CACHE)
    for k in json.loads(measured("explain", "m.lp", *CACHE, "--json"))["kernels"]:
        assert 0 < k["repeats"]["loads"] < 1 < 1.5 > k["repeats"]["flops"] > 0.9
    monkeypatch.setattr(gains, "AGAIN", 0.0)
    assert re.search(
        r"repeats +its part of the graph: 1\.\dx its operations, 0\.\dx its loads",
        measured("explain", "m.lp", *CACHE),
    )


def test_kernels_that_could_gain_most_come_first(
    measured: Lumc, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gains, "FAR", 0.0)
    body = json.loads(measured("explain", "m.lp", *CACHE, "--json"))
    kernels = body["kernels"]
    assert body["gain_us"] == pytest.approx(sum(k["gain_us"] for k in kernels))
    assert [k["gain_us"] for k in kernels] == sorted((k["gain_us"] for k in kernels), reverse=True)
    for k in kernels:
        assert k["gain_us"] == max(0, k["time_us"] - k["bound_us"]) * k["launches"]
        assert k["over"] == k["time_us"] / k["bound_us"] and k["bound_by"] == "launch"
        assert all(c["cause"] and c["said"] for c in k["causes"])
    lines = measured("explain", "m.lp", *CACHE).splitlines()
    (start,) = (i for i, line in enumerate(lines) if line.startswith("to gain: "))
    assert lines[start + 1].split()[2:] == [
        f"{kernels[0]['over']:.2f}x",
        "launch",
        kernels[0]["name"],
    ]
    measured("report", "m.lp", *CACHE, "-o", "a.html")
    assert "Table of gains" in Path("a.html").read_text()
    monkeypatch.setattr(gains, "FAR", 1e9)
    assert "no kernel takes over" in measured("explain", "m.lp", *CACHE)


def test_estimated_times_have_gains_too(lumc: Lumc) -> None:
    """Ten columns leave lanes empty, which the price knows and the bound does not."""
    Path("m.lg").write_text(
        "lumc graph 1\ninput x f32[512, 128]\ninput w f32[128, 10]\n"
        "t f32[m:512, n:10, k:128] = mul x[m, k], w[k, n]\n"
        "y f32[m:512, n:10] = sum k:128 of t[m, n, k]\noutput y = y\n"
    )
    lumc("search", "m.lg", "-o", "m.ls", "--target", "cpu:x86-64-v4")
    lumc("profile", "--estimate", "m.ls", "-o", "m.lp")
    body = json.loads(lumc("explain", "m.lp", *CACHE, "--json"))
    assert body["total_us"] == sum(k["estimated_us"] * k["launches"] for k in body["kernels"])
    assert "lanes" in {c["cause"] for k in body["kernels"] for c in k["causes"]}
    assert "vectors that are not full" in lumc("explain", "m.lp", *CACHE)


def test_explain_finds_the_plan_behind_kernels_and_bundles(measured: Lumc) -> None:
    plan = json.loads(measured("explain", "m.lp", *CACHE, "--json"))
    for file in ("m.lk", "m.lb"):
        assert json.loads(measured("explain", file, *CACHE, "--json")) == plan
    Path("m.lp").unlink()
    assert "--save-temps" in measured.fails(2, "explain", "m.lb", *CACHE)
    measured.fails(2, "explain", "m.lg", *CACHE)


def test_the_resources_of_a_gpu_that_limit_a_kernel(lumc: Lumc) -> None:
    """For machines whose rates are known, the longest time first; a CPU has one roofline."""
    Path("m.lg").write_text(GRAPH)
    for target, known in (("cuda:sm_90", True), ("cuda:sm_100", False), ("cpu:generic", False)):
        lumc("search", "m.lg", "--target", target, "-o", "m.ls")
        lumc("profile", "--estimate", "m.ls", "-o", "m.lp")
        body = json.loads(lumc("explain", "m.lp", "--json"))
        check("explain", body)
        for k in body["kernels"]:
            times = list(k["limits_us"].values())
            assert bool(times) is known and times == sorted(times, reverse=True)
        said = [line for line in lumc("explain", "m.lp").splitlines() if "  limits     " in line]
        assert bool(said) is known
        assert all(re.search(r"limits     [a-z][\w ]+ [\d.e-]+ [mu]s", line) for line in said)


def test_a_search_space_is_explained_by_its_estimate(measured: Lumc) -> None:
    measured("profile", "--estimate", "m.ls", "-o", "e.lp")
    space, plan = (json.loads(measured("explain", f, *CACHE, "--json")) for f in ("m.ls", "e.lp"))
    assert {**space, "name": "e"} == plan and space["missing"]


NOTHING = """lumc graph 1
input x f32[4]
output y = x
"""
STATEFUL = """lumc graph 1
state s f32[3]
entry step
input x f32[3]
a f32[i:3] = add s[i], x[i]
output y = a
update s[i] = a[i]
entry look
b f32[i:3] = exp2 s[i]
output z = b
"""


@pytest.mark.parametrize("graph", [NOTHING, STATEFUL], ids=["no kernel", "two entries"])
def test_unusual_models_are_seen_too(lumc: Lumc, graph: str) -> None:
    Path("m.lg").write_text(graph)
    lumc("search", "m.lg", "-o", "m.ls")
    lumc("profile", "--estimate", "m.ls", "-o", "m.lp")
    assert "m for cpu:native" in lumc("explain", "m.lp", *CACHE)
    page = Reader(lumc("report", "m.lp", *CACHE, "-o", "-"))
    assert page.tags["section"] == 7
    assert lumc("show", "m.lg", "--svg", "-").startswith("<svg")


def test_one_kernel_by_name_or_key(measured: Lumc) -> None:
    body = json.loads(measured("explain", "m.lp", *CACHE, "--json"))
    first = body["kernels"][0]
    for name in (first["name"], first["key"], first["key"][:6]):
        one = json.loads(measured("explain", "m.lp", *CACHE, "--json", "--kernel", name))
        assert one["kernels"] == [first]
    assert first["name"] in measured.fails(2, "explain", "m.lp", *CACHE, "--kernel", "none")


def test_what_is_missing_is_said_in_a_line(measured: Lumc) -> None:
    assert "note: no records" in measured("explain", "m.lp", "--cache", "other")
    Path("m.ls").unlink()
    assert "note: no search space" in measured("explain", "m.lp", *CACHE)
    measured("search", "m.lg", "-o", "m.ls")
    measured("profile", "--estimate", "m.ls", "-o", "e.lp")
    said = measured("explain", "e.lp", *CACHE)
    assert "note: nothing was measured" in said and "estimated" in said
    assert "no records" in measured.fails(2, "explain", "e.lp", *CACHE, "--best", "-")


def test_the_best_configuration_makes_the_same_plan_elsewhere(measured: Lumc) -> None:
    """The very lines that `explain` prints, in a folder that has the search space only."""
    said = measured("explain", "m.lp", *CACHE).splitlines()
    lines = [line.split() for line in said if line.startswith("  lumc ")]
    assert [line[1:3] for line in lines] == [
        ["explain", "m.lp"],
        ["cache", "merge"],
        ["profile", "m.ls"],
    ]
    measured(*lines[0][1:], *CACHE)
    before = Path("m.lp").read_bytes()
    assert 0 < len(Path("m.best.jsonl").read_text().splitlines()) < 10
    Path("m.lp").unlink()
    shutil.rmtree("cache")
    for line in lines[1:]:
        measured(*line[1:])
    assert Path("m.lp").read_bytes() == before
    body = json.loads(measured("explain", "m.lp", "--cache", "kernels_cache", "--json"))
    assert body["setting"] and not any(k["losers"] for k in body["kernels"])


# ---- the page


class Reader(HTMLParser):
    """The elements of a page, and everything in it that names an address."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: dict[str, int] = {}
        self.ids: list[str] = []
        self.links: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] = self.tags.get(tag, 0) + 1
        for name, value in attrs:
            assert not name.startswith("on"), (tag, name)
            if name == "id":
                self.ids.append(value or "")
            if name in ("href", "src"):
                self.links.append(value or "")


def test_the_page_is_whole_and_the_same_every_time(measured: Lumc) -> None:
    measured("report", "m.lp", *CACHE, "-o", "a.html")
    text = Path("a.html").read_text()
    assert text == measured("report", "m.lb", *CACHE, "-o", "-").replace("m.lb", "m.lp")
    page = Reader(text)
    assert page.tags["script"] == 1 and page.tags["svg"] >= 3 and "img" not in page.tags
    assert len(set(page.ids)) == len(page.ids)
    inside = [link for link in page.links if link != "data:,"]
    assert inside and all(link[0] == "#" and link[1:] in page.ids for link in inside)
    assert "void k0_" in text and str(measured.folder) not in text


def test_names_cannot_become_markup(measured: Lumc) -> None:
    plan, _ = files.plan_from_text(*artifact.read_text("m.lp"), "m.lp")
    kernels = {key: replace(k, stop=HOSTILE) for key, k in plan.kernels.items()}
    name, made_from = "<img src=x>.lp", head(Path("m.lp"))["input"]
    named = {k: replace(p, kernel=replace(p.kernel, name=HOSTILE)) for k, p in kernels.items()}
    files.write(replace(plan, kernels=named), made_from, name)
    assert "malformed plan" in measured.fails(5, "report", name, *CACHE, "-o", "a.html")
    files.write(replace(plan, kernels=kernels), made_from, name)
    measured("report", name, *CACHE, "-o", "a.html")
    page = Reader(Path("a.html").read_text())
    assert page.tags["script"] == 1 and "img" not in page.tags
    assert HOSTILE not in Path("a.html").read_text()


def test_a_page_without_records_or_search_space(measured: Lumc) -> None:
    measured("profile", "--estimate", "m.ls", "-o", "e.lp")
    Path("m.ls").unlink()
    measured("report", "e.lp", *CACHE, "-o", "a.html")
    text = Path("a.html").read_text()
    assert "nothing was measured" in text and "no search space" in text


@pytest.fixture
def page(tmp_path: Path) -> Iterator[browser.Page]:
    if not browser.find():
        pytest.skip("no Chromium on this machine (apt-get install chromium)")
    with browser.browser(tmp_path) as page:
        yield page


def test_the_page_in_a_browser(measured: Lumc, page: browser.Page, tmp_path: Path) -> None:
    """No errors, nothing loaded, no sideways scrolling on a phone, all of it by keyboard."""
    measured("report", "m.lp", *CACHE, "-o", "a.html")
    for width, height, scheme in ((1280, 800, "light"), (1280, 800, "dark"), (390, 844, "light")):
        page.show(Path("a.html"), width, height, scheme)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert page.evaluate("getComputedStyle(document.body).color") == (
            "rgb(231, 234, 238)" if scheme == "dark" else "rgb(28, 32, 36)"
        )
    small: Any = page.evaluate(
        "[...document.querySelectorAll('h1,p,td,th,dd,summary,a')].filter(e =>"
        " e.checkVisibility() && parseFloat(getComputedStyle(e).fontSize) < 10).length"
    )
    assert small == 0
    key = page.evaluate("document.querySelector('details.kernel').id")
    page.evaluate(f"document.querySelector('tbody a[href=\"#{key}\"]').focus()")
    page.press("Enter", 13)
    opened = f"document.getElementById('{key}').open && document.activeElement.tagName"
    assert page.becomes(opened, "SUMMARY")
    page.screenshot(tmp_path / "page.png")
    assert (tmp_path / "page.png").stat().st_size > 10_000
    assert page.complaints == []
    loaded = [url for url in page.requests if not url.startswith("data:")]
    assert {url.partition("#")[0] for url in loaded} == {Path("a.html").resolve().as_uri()}
