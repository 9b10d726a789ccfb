"""What is known about a plan: its own figures, the search space it came from, the records.

The space is found beside the plan by its digest, the setting (device, compiler, threads) by the
records that hold the plan's own choices. Everything ends up in one JSON body, which ``explain``
prints and ``html`` draws.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from lumc.artifacts import files
from lumc.codegen.count import excesses
from lumc.codegen.gpu.limits import limits_us
from lumc.codegen.tile.lower import lower
from lumc.disk import artifact
from lumc.errors import Exit, LumcError
from lumc.kernel.bound import least_work
from lumc.lab import device
from lumc.profile.choose import estimate
from lumc.profile.price import program_us
from lumc.profile.records import NAME, Records, Setting, Trial, read_lines, text_of
from lumc.profile.settings import known_settings, words
from lumc.report import gains
from lumc.report.describe import launches
from lumc.report.gathered import Evidence
from lumc.report.programs import at, region_rows
from lumc.report.show import read
from lumc.report.words import difference, equations, schedule_words
from lumc.runtime import nvidia
from lumc.schedule.plan import KernelPlan, Plan

Body = dict[str, Any]
LOSERS = 5  # schedules that are told
SUFFIX = {"space": ".ls", "plan": ".lp", "kernels": ".lk"}


# ---- finding it


def gather(file: str, folder: Path) -> Evidence:
    """The evidence for an artifact of a plan; ``folder`` holds the records."""
    plan, digest, beside = find_plan(file)
    missing = []
    path = find(".ls", digest, beside)
    space = files.space_from_text(*artifact.read_text(str(path)), str(path))[0] if path else None
    if space is None:
        missing.append("no search space beside it: nothing is known about other programs and laws")
    if most := [f"{d.name}={d.values[-1]}" for d in plan.graph.dims.values()]:
        missing.append(f"runs choose the dims: what is said is of the greatest, {', '.join(most)}")
    buckets = [e.heading for e in plan.graph.entries if e.of]
    if buckets:
        missing.append(f"a run takes the first bucket that holds its dims: {'; '.join(buckets)}")
    measured = any(k.time_us is not None for k in plan.kernels.values())
    setting = setting_of(plan, folder / NAME) if measured else None
    if not measured:
        missing.append("nothing was measured: the plan was chosen by estimate")
    elif setting is None:
        missing.append("no records of this plan: nothing is known about losing candidates")
    elif elsewhere := timed_elsewhere(setting, folder / NAME, plan.target.machine):
        missing.append(elsewhere)
    records = Records(folder if setting else None, setting or Setting("", "", 0))
    name, said = Path(file).stem if file != "-" else "model", str(path) if path else ""
    return Evidence(name, plan, space, said, records, tuple(missing))


def find_plan(file: str) -> tuple[Plan, str, Path]:
    """The plan of an artifact, the digest of its space, and the folder where it lies.

    From kernels and bundles the chain of digests leads back to a plan beside them; of a search
    space it is the plan that the estimate chooses.
    """
    kind, value = read(file)
    beside = Path() if file == "-" else Path(file).parent
    if kind == "plan":
        return value, head(Path(file))["input"] if file != "-" else "", beside
    if kind == "space":
        return estimate(value), head(Path(file))["digest"] if file != "-" else "", beside
    path = None
    if kind == "bundle":
        from lumc.bundle import manifest
        from lumc.bundle.unpack import opened

        with opened(file) as unpacked:
            path = find(".lk", str(manifest.read(unpacked)["input"]), beside)
    elif kind == "kernels":
        path = Path(file)
    path = path and find(".lp", head(path)["input"], beside)
    if path is None:
        fix = "name the plan: lumc compile --save-temps DIR keeps it, DIR/MODEL.lp"
        raise LumcError("E0207", f"no plan beside {file}", fix=fix, exit=Exit.USAGE)
    return find_plan(str(path))


def head(path: Path) -> dict[str, str]:
    """The first lines of an artifact, its fields ``lumc``, ``input`` and ``digest``."""
    with path.open(errors="replace") as f:
        lines = [f.readline(1000).strip().strip("{},") for _ in range(4)]
    pairs = (line.partition(":") for line in lines)
    return {name.strip('"'): value.strip('"') for name, _, value in pairs}


def find(suffix: str, digest: str, folder: Path) -> Path | None:
    """The artifact with this digest, in the folder or in one of its folders."""
    for path in [*sorted(folder.glob(f"*{suffix}")), *sorted(folder.glob(f"*/*{suffix}"))]:
        if digest and path.is_file() and head(path).get("digest") == digest:
            return path
    return None


def setting_of(plan: Plan, path: Path) -> Setting | None:
    """Where the choices of the plan were made: the setting of most records that match them."""
    wanted = {(k.key, text_of(k.schedule), k.time_us) for k in plan.kernels.values()}
    found = Counter[str]()
    for line in read_lines(path):
        if line.get("kind") != "choice" or line.get("threads") != plan.target.threads:
            continue
        schedule = json.dumps(line.get("schedule"), sort_keys=True, separators=(",", ":"))
        if (line.get("kernel"), schedule, line.get("us")) in wanted:
            found[json.dumps([line[f.name] for f in fields(Setting)])] += 1
    return Setting(*json.loads(found.most_common(1)[0][0])) if found else None


def timed_elsewhere(setting: Setting, path: Path, machine: str) -> str:
    """That the records of a plan are not those of this machine; or nothing."""
    if setting.device == (device.fingerprint() if machine == "cpu" else gpu_here()):
        return ""
    said = next(k.said for k in known_settings(path) if k.setting == setting)
    return f"timed on another machine than this one: {words(said)} (device {setting.device})"


def gpu_here() -> str:
    """The fingerprint of the GPU of this machine; nothing without one."""
    try:
        return nvidia.fingerprint()
    except LumcError:
        return ""


# ---- telling it


def describe(e: Evidence, only: str = "") -> Body:
    """Everything that the reports show, as plain JSON; ``only`` is the key of a kernel."""
    used = launches(e.plan.instances, e.plan)
    label, again = labels(e.plan), repeats(e.plan)
    rows = [kernel_row(e, k, used.get(key, 0), again.get(key)) for key, k in e.plan.kernels.items()]
    rows.sort(key=lambda r: (-r["gain_us"], -r["total_us"]))
    total = sum(r["total_us"] for r in rows)
    for r in rows:
        r["name"] = label[r["key"]]
        r["share"] = r["total_us"] / total if total else 0.0
    return {
        "name": e.name,
        "target": e.plan.target.name,
        "arch": e.plan.target.arch,
        "threads": e.plan.target.threads,
        "setting": e.setting.fields() if e.setting else None,
        "machine": machine(e),
        "measured": bool(total) and all(r["time_us"] is not None for r in rows),
        "estimates": sum(r["time_us"] is None for r in rows),
        "launches": sum(used.values()),
        "count": len(rows),
        "total_us": total,
        "bound_us": sum(r["bound_us"] * r["launches"] for r in rows),
        "gain_us": sum(r["gain_us"] for r in rows),
        "missing": list(e.missing),
        "kernels": [r for r in rows if only in ("", r["key"])],
        "regions": region_rows(e, only),
    }


def repeats(plan: Plan) -> dict[str, Body]:
    """Of kernels for a CPU: how many times the operations and the loads of the graph the regions
    do in which they run, where that is most."""
    out = dict[str, Body]()
    for x in excesses(plan) if plan.target.machine == "cpu" else ():
        done, needed = x.done, x.needed
        row = {
            "flops": done.flops / max(needed.flops, 1.0),
            "loads": done.loads / max(needed.loads, 1.0),
        }
        for step in plan.regions[x.instance.region].steps:
            worst = out.get(step.kernel, row)
            out[step.kernel] = max(worst, row, key=lambda r: max(r.values()))
    return out


def labels(plan: Plan) -> dict[str, str]:
    """The name of every kernel; where several are called the same, with a part of the key."""
    count = Counter(k.kernel.name for k in plan.kernels.values())
    return {
        key: k.kernel.name if count[k.kernel.name] == 1 else f"{k.kernel.name}.{key[:4]}"
        for key, k in plan.kernels.items()
    }


def machine(e: Evidence) -> Body:
    """The limits that the rooflines were drawn with, of all threads."""
    target = e.plan.target
    known = e.records.speeds
    return {
        "gflops": (known.gflops if known else target.gflops) * target.threads,
        "bandwidth": known.memory * target.threads if known else target.bandwidth,
        "measured": known is not None,
    }


def kernel_row(e: Evidence, k: KernelPlan, count: int, again: Body | None) -> Body:
    work, us = least_work(k.kernel, e.plan.target.ends_early), k.time_us
    known = list(e.records.trials.get(at(e, k), {}).values())
    program = lower(k.kernel, k.schedule, e.plan.target)
    limit = limited_by(work.flops, work.nbytes, k.bound_us, machine(e))
    estimated = program_us(program, threads=k.schedule.threads)
    spent = estimated if us is None else us
    gained = gains.gain(program, spent, k.bound_us, limit, count)
    return {
        "key": k.key,
        "name": k.kernel.name,
        "axes": {a: k.kernel.extent[a] for a in k.kernel.axes},
        "lengths": {a: t for a, t in k.kernel.lengths.texts.items() if a in k.kernel.axes},
        "values": written(e.plan, k.key),
        "term": equations(k.kernel),
        "schedule": k.schedule.to_json(),
        "schedule_words": schedule_words(k.kernel, k.schedule, e.plan.target.threads),
        "launches": count,
        "time_us": us,
        "estimated_us": estimated,
        "bound_us": k.bound_us,
        "limits_us": limits_us(program, k.schedule.threads),
        "fraction": k.bound_us / us if us else None,
        "total_us": count * spent,
        **gained,
        "causes": gains.causes(program, again) if gained["over"] >= gains.FAR else [],
        "repeats": again,
        "limited_by": limit,
        "flops": work.flops,
        "nbytes": work.nbytes,
        "stop": k.stop,
        "trials": len(known),
        "origin": origin(e, k, known),
        "failed": dict(sorted(Counter(t.reason for t in known if t.us is None).items())),
        "losers": losers(k, known),
        "curve": curve([t.us for t in known]),
    }


def origin(e: Evidence, k: KernelPlan, known: Iterable[Trial]) -> Body:
    """Where the schedule of a kernel comes from: an estimate, trials that are on record here, or a
    search of which no trial is. ``source``: where it was best before, if it was not found here."""
    if k.time_us is None:
        return {"kind": "estimated", "source": "", "trials": 0, "spent_s": 0.0}
    choice = e.records.choices.get(at(e, k))
    mine = next((t for t in known if t.schedule == k.schedule), None)
    return {
        "kind": "measured" if mine else "records",
        "source": mine.source if mine else "",
        "trials": choice.trials if choice else 0,
        "spent_s": choice.spent_s if choice else 0.0,
    }


def written(plan: Plan, key: str) -> list[str]:
    """The graph values, or local ones, that the launches of a kernel write."""
    out = []
    for i in plan.instances:
        for step in plan.regions[i.region].steps:
            if step.kernel == key:
                stored = step.args[-len(plan.kernels[key].kernel.roots) :]
                out += [i.names.get(name, f"{i.outputs[0]}.{name}") for name in stored]
    return out


def limited_by(flops: float, nbytes: float, bound_us: float, limits: Mapping[str, Any]) -> str:
    """What its roofline consists of."""
    if flops / (limits["gflops"] * 1e3) >= 0.99 * bound_us:
        return "arithmetic"
    speed = nbytes / (bound_us * 1e3) if bound_us else 0.0
    return "caches" if speed > 1.5 * limits["bandwidth"] else "memory"


def losers(k: KernelPlan, known: Iterable[Any]) -> list[Body]:
    """The best of the other schedules, and what they do differently."""
    slower = [t for t in known if t.us is not None and t.schedule != k.schedule]
    slower.sort(key=lambda t: (t.us, text_of(t.schedule)))
    us = k.time_us or 0.0
    return [
        {
            "us": t.us,
            "slower": t.us / us - 1 if us else None,
            "difference": difference(k.schedule, t.schedule),
            "schedule": t.schedule.to_json(),
        }
        for t in slower[:LOSERS]
    ]


def curve(times: Iterable[float | None]) -> list[list[float]]:
    """``[trial, best us so far]`` wherever it improves, and at the last trial."""
    out: list[list[float]] = []
    n = 0
    for n, us in enumerate(times, 1):
        if us is not None and (not out or us < out[-1][1]):
            out.append([n, us])
    if out and out[-1][0] != n:
        out.append([n, out[-1][1]])
    return out


# ---- carrying it over


def best_records(e: Evidence, path: Path) -> list[Body]:
    """The records that make the same plan on an equal machine: all but trials, of its kernels."""
    if e.setting is None:
        fix = "run 'lumc profile' without --estimate, and name its records with --cache"
        what = "no records of this plan"
        raise LumcError("E0208", what, where=str(path), fix=fix, exit=Exit.USAGE)
    mine, last = e.setting.fields(), {}
    for line in read_lines(path):
        known = line.get("kernel") in ("", *e.plan.kernels)
        if line.get("kind") != "trial" and known and mine.items() <= line.items():
            last[line["kind"], line["kernel"], line.get("cold")] = line
    return list(last.values())
