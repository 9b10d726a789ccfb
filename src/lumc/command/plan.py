"""From a search space to a plan: by the roofline estimate, or by measuring on a device that is
here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache, partial
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from lumc.errors import Exit, LumcError
from lumc.report.log import Log, interruptible
from lumc.report.words import us
from lumc.voice import VOICE

if TYPE_CHECKING:
    from lumc.kernel.target import Target
    from lumc.link.toolchain import Toolchain
    from lumc.profile.ledger import Ledger
    from lumc.profile.measure import Bench
    from lumc.profile.memory import Bounds
    from lumc.profile.session import Progress
    from lumc.report.trace import Trace
    from lumc.schedule.plan import Plan
    from lumc.search.space import Space


@dataclass(frozen=True)
class ProfileOptions:
    """The options of ``lumc profile``, which ``compile`` shares."""

    estimate: bool
    allow_estimate: bool  # where nothing could be measured
    budget: str
    trials: int
    fraction: float
    seed: int
    threads: int
    frozen: bool
    cc: str | None
    nvcc: str | None
    cache: Path  # the folder of records
    target_us: float = 0.0  # of the whole plan, at which the search ends; 0: nowhere
    device_records: str = ""  # of whose device, in place of those of this one; with ``frozen``
    memory: int = 0  # bytes of the arena and of scratch memory, at most; 0: any
    on: str = ""  # whose machines measure: ray, ray://HOST:PORT, ssh-hosts:FILE; none: this one


def parse_seconds(text: str) -> float:
    """``90``, ``60s``, ``5m`` or ``1h`` in seconds; E0203 for anything else."""
    number, unit = text.rstrip("smh"), text[len(text.rstrip("smh")) :]
    try:
        seconds = float(number) * {"": 1, "s": 1, "m": 60, "h": 3600}[unit]
        if not 0 <= seconds < inf:
            raise ValueError
        return seconds
    except (ValueError, KeyError):
        what = f"--budget {text}: expected a time"
        fix = "for example --budget 60s or --budget 5m"
        raise LumcError("E0203", what, fix=fix, exit=Exit.USAGE) from None


def make_plan(space: Space, options: ProfileOptions, log: Log) -> Plan:
    """The plan of least estimate, or of least time; says which features of this machine would
    make it a faster one."""
    plan = _plan(space, options, log)
    _say_unasked(plan, log)
    return plan


def _plan(space: Space, options: ProfileOptions, log: Log) -> Plan:
    from lumc.link.toolchain import find
    from lumc.profile.memory import FREE

    if options.estimate and options.cc:  # it is not used, but who names one means one that is there
        find(options.cc)
    untimed = "" if options.estimate else unmeasured(space.target, options)
    if untimed and options.frozen:
        what = f"nothing can be measured for {space.target.name} here: {untimed}"
        fix = "leave out --frozen, or name the records of a machine: --device-records ID"
        raise LumcError("E0706", what, fix=fix, exit=Exit.TOOLCHAIN)
    if untimed:
        log(0, f"profile: {space.target.name} is not timed ({untimed}): chosen by estimate")
    bounds = FREE
    if options.estimate or untimed or options.memory:
        space = replace(space, target=replace(space.target, threads=options.threads))
        plan, bounds = _estimated(space, options, log, final=bool(options.estimate or untimed))
        if options.estimate or untimed:
            return plan
    from lumc.report.progress import progress

    with interruptible(log) as stopped, progress(log, parse_seconds(options.budget)) as say:
        plan, measured = _tune(space, options, bounds, stopped, say, log)
    if not options.frozen:
        say_origin(plan, measured, options, stopped(), log)
    return plan


def _say_unasked(plan: Plan, log: Log) -> None:
    from lumc.kernel.machines import unasked
    from lumc.schedule.levels import multiplies_bytes

    if "vnni" not in unasked(plan.target):
        return
    products = (
        multiplies_bytes(k.kernel, stage, p.lane_axis)
        for k in plan.kernels.values()
        for stage, p in zip(k.kernel.stages, k.schedule.stages, strict=True)
        if p.lane_axis
    )
    if any(products):
        said = f"this processor multiplies bytes: --target {plan.target.name}+vnni is faster"
        log(0, f"{log.named('profile')}: {said}")


def _estimated(space: Space, options: ProfileOptions, log: Log, final: bool) -> tuple[Plan, Bounds]:
    """The plan of least estimate, and the bounds on programs and kernels that it needs to take no
    more memory than it may; ``final``: nothing is measured then. Raises E0419."""
    from lumc.profile.choose import estimate
    from lumc.profile.lowered import Kernels
    from lumc.profile.memory import FREE

    @cache
    def known(scratch: float) -> Kernels:
        return Kernels(space.target, scratch)

    def make(bounds: Bounds) -> Plan:
        return estimate(space, partial(log, 1), bounds.handed, known(bounds.scratch))

    return _fitting(make, options, log, 0 if final else 1) if options.memory else (make(FREE), FREE)


def _fitting(
    make: Callable[[Bounds], Plan], options: ProfileOptions, log: Log, level: int
) -> tuple[Plan, Bounds]:
    from lumc.profile.memory import fitting

    plan, needs, bounds = fitting(options.memory, make)
    log(level, f"{log.named('profile')}: {needs} of the {options.memory:,} of --memory")
    return plan, bounds


def say_origin(
    plan: Plan, measured: int | None, options: ProfileOptions, interrupted: bool, log: Log
) -> None:
    """Say what of a plan was not measured; ``measured`` are the trials, None if every kernel was
    searched before. Raises E0418 when nothing ever was, or KeyboardInterrupt when the user stopped
    that, unless the estimate is allowed."""
    name, count = log.named("profile"), len(plan.kernels)
    unknown = sum(k.time_us is None for k in plan.kernels.values())
    nothing = "nothing was measured " + ("so far" if interrupted else f"in {options.budget}")
    if 0 < unknown == count and not options.allow_estimate:
        if interrupted:
            log(0, f"{name}: {nothing}: no plan is written (--allow-estimate: an estimate)")
            raise KeyboardInterrupt
        fix = "a larger --budget; --allow-estimate takes an estimate instead, --estimate always"
        raise LumcError("E0418", nothing, fix=fix, exit=Exit.BUDGET)
    if 0 < unknown == count:
        log(0, f"{name}: {nothing}: the plan is an estimate")
    elif unknown:
        log(0, f"{name}: {unknown} of {count} kernels were never measured: they run as estimated")
    elif count and measured is None:
        log(0, f"{name}: all {count} kernels were searched before: nothing is measured")
    elif count and not measured:
        log(0, f"{name}: {nothing}: the plan is that of earlier searches")


def unmeasured(target: Target, options: ProfileOptions) -> str:
    """What keeps times of a target from being had here; records of another machine are times."""
    return "" if options.device_records else why_untimed(target, options.nvcc)


def why_untimed(target: Target, nvcc: str | None) -> str:
    """What keeps candidates for a target from being timed on this machine."""
    if target.kind == "cpu":
        from lumc.link.cross import why_not_here

        return why_not_here(target)
    if target.kind != "cuda":
        return "only CPUs and NVIDIA GPUs are timed"
    from lumc.link import cuda
    from lumc.runtime.nvidia import capability

    try:
        capability()
        cuda.find(nvcc)
    except LumcError as e:
        return e.what
    return ""


class Enough:
    """Whether a search may end: the user wants no more, or the plan takes no longer than it may."""

    def __init__(self, ledger: Ledger, target_us: float, stopped: Callable[[], bool]) -> None:
        self.ledger, self.target_us, self.stopped = ledger, target_us, stopped
        self.looked, self.reached = -1, False

    def __call__(self) -> bool:
        if self.target_us and self.looked != self.ledger.measured:  # it is asked all the time
            self.looked, self.reached = self.ledger.measured, 0 < self.time_us() <= self.target_us
        return self.reached or self.stopped()

    def time_us(self) -> float:
        """What the best plan takes, all launches together; 0 while a part is not measured."""
        costs = self.ledger.costs().values()
        return sum(costs) if all(costs) else 0.0

    def said(self) -> str:
        now, wanted = self.time_us(), us(self.target_us)
        over = "within" if 0 < now <= self.target_us else "not within"
        return f"{us(now) if now else 'not all is measured'}: {over} the {wanted} of --target-time"


def _tune(
    space: Space,
    options: ProfileOptions,
    bounds: Bounds,
    stopped: Callable[[], bool],
    say: Callable[[Progress], None],
    log: Log,
) -> tuple[Plan, int | None]:
    """The plan, and how many trials were made; None if every kernel was searched before."""
    from lumc.profile import phases
    from lumc.profile.session import Session
    from lumc.profile.settings import words

    ledger, bench = opened_ledger(space, options, partial(log, 1), log.trace, bounds)
    if options.device_records:
        records = ledger.records
        log(0, f"{log.named('profile')}: times of another machine, {words(records.said)}")
    try:
        settled = not ledger.missing(ledger.is_settled)
        enough = Enough(ledger, options.target_us, stopped)
        plan = phases.profile(Session(ledger, bench, enough, say))
        if options.memory:
            plan, _ = _fitting(ledger.plan_within, options, log, 0)
        if options.target_us:
            log(0, f"{log.named('profile')}: {enough.said()}")
        return plan, None if settled else ledger.measured
    finally:
        ledger.records.close()


def opened_ledger(
    space: Space,
    options: ProfileOptions,
    say: Callable[[str], None],
    trace: Trace | None = None,
    bounds: Bounds | None = None,
) -> tuple[Ledger, Callable[[], Bench]]:
    """What is known of the kernels on this machine, and what can time them. Close its records."""
    from lumc.link.toolchain import find
    from lumc.profile.ledger import Ledger, Options
    from lumc.profile.memory import FREE
    from lumc.profile.records import Records, Setting

    cpu = space.target.machine == "cpu"
    target = replace(space.target, threads=options.threads if cpu else 1)
    if options.device_records:
        device = _recorded(options)
    else:
        tools = find(options.cc)
        device = _cpu(target, tools, trace, options) if cpu else _gpu(target, tools, options)
    setting = Setting(device.fingerprint, device.tools, options.threads)
    records = Records(options.cache, setting, device.said)
    wanted = Options(
        budget_s=parse_seconds(options.budget),
        trials=options.trials,
        fraction=options.fraction,
        seed=options.seed,
        frozen=options.frozen,
        allow_estimate=options.allow_estimate,
        cache_bytes=int(device.said["cache_bytes"]),
        within=bounds or FREE,
    )
    try:
        return Ledger(replace(space, target=target), wanted, records, say), device.bench
    except BaseException:
        records.close()
        raise


class Device(NamedTuple):
    """What candidates are timed on."""

    bench: Callable[[], Bench]
    fingerprint: str  # of the machine
    tools: str  # of the compiler
    said: Mapping[str, Any]  # both, in words


def _recorded(options: ProfileOptions) -> Device:
    """Another device, of which there are records; nothing is timed on it."""
    from lumc.lab.device import CACHE_BYTES
    from lumc.profile.settings import choose

    found = choose(options.cache, options.device_records, options.threads)
    last = found.said.get("cache_bytes")
    said = {**found.said, "cache_bytes": last if type(last) is int else CACHE_BYTES}
    return Device(_untimed, found.setting.device, found.setting.tools, said)


def _untimed() -> Bench:
    raise LumcError("E0203", "--device-records: nothing is timed", exit=Exit.USAGE)


def _versions() -> dict[str, str]:
    """Of what kernels may depend on."""
    from lumc import __version__
    from lumc.report.machine import version_of

    return {"lumc": __version__, "egglog": version_of("egglog")}


def _cpu(target: Target, tools: Toolchain, trace: Trace | None, options: ProfileOptions) -> Device:
    from lumc.profile.cluster import Cluster, kind_here
    from lumc.profile.measure import Bench

    kind = kind_here(target, tools)
    bench: Callable[[], Bench] = partial(Bench, target, tools)
    if options.on:
        from lumc.profile.on_ray import RayPool
        from lumc.profile.on_ssh import NAMED, SshPool

        open_pool = SshPool if options.on.startswith(NAMED) else RayPool
        pool = partial(open_pool, options.on, target, options.cc, kind)
        bench = partial(Cluster, pool, target, tools)
    elif trace:
        from lumc.report.trace import TracedBench

        bench = partial(TracedBench, trace, target, tools)
    return Device(bench, kind.device, kind.tools, {**kind.said, **_versions()})


def _gpu(target: Target, tools: Toolchain, options: ProfileOptions) -> Device:
    from lumc.link import cuda
    from lumc.profile.cluster import kind_of_gpu
    from lumc.profile.measure_gpu import GpuBench

    compiler = cuda.find(options.nvcc)
    if options.on:
        VOICE.get().say(0, f"profile: {target.name} is timed on this machine alone")
    bench = partial(GpuBench, target, tools, compiler)
    kind = kind_of_gpu(compiler)
    return Device(bench, kind.device, kind.tools, {**kind.said, **_versions()})
