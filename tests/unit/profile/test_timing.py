"""The timing protocol on a clock of its own: what it spends, and that noise does not decide."""

from __future__ import annotations

import random

from lumc.profile.timing import ROUNDS, Sample, finals, inner_runs, is_faster, measure


class Clock:
    """A candidate that takes ``us`` and is sometimes disturbed."""

    def __init__(self, us: float, noise: float = 0.0, seed: int = 0) -> None:
        self.us, self.noise, self.rng = us, noise, random.Random(seed)
        self.runs = self.samples = 0
        self.spent = 0.0

    def __call__(self, inner: int, n: int, slices: int = 1) -> list[float]:
        self.runs += inner * n
        self.samples += n
        self.spent += n * inner * self.us / slices
        return [self.us * (1 + self.noise * self.rng.expovariate(2)) for _ in range(n)]


def test_samples_last_a_tenth_of_a_millisecond() -> None:
    assert inner_runs(1.0) == 100
    assert inner_runs(1e6) == inner_runs(250.0) == 1
    assert inner_runs(0.0) == 100_000


def test_the_minimum_is_found_under_noise() -> None:
    for us in (0.05, 3.0, 90.0, 4000.0):
        found, inner = measure(Clock(us, noise=0.1), None)
        assert us <= found.us < 1.03 * us
        assert 0.8 < inner / inner_runs(found.us) <= 1
        assert found.noise > 0


def test_slow_candidates_cost_little() -> None:
    slow, close = Clock(200.0), Clock(105.0)
    measure(slow, 100.0)
    measure(close, 100.0)
    assert slow.samples <= 4 < close.samples


def test_long_kernels_do_not_run_for_ever() -> None:
    long = Clock(500_000.0)
    found, _ = measure(long, None)
    assert found.slices == 100 and found.us == long.us
    assert long.spent < 1.3 * long.us
    again = Clock(500_000.0)
    measure(again, 480_000.0)
    assert again.spent < 0.3 * again.us
    final = Clock(500_000.0)
    found, _ = measure(final, 480_000.0, whole=True)
    assert found.slices == 0 and 2 <= final.samples <= 6


class Shared:
    """A machine on which everything is slower for a while: up to twice, or just twice, as when
    two virtual processors are one for a while."""

    def __init__(self, seed: int, halved: bool = False) -> None:
        self.rng, self.pace, self.left = random.Random(seed), 1.0, 0
        self.halved = halved

    def clock(self, us: float) -> Sample:
        def sample(inner: int, n: int, slices: int = 1) -> list[float]:
            out = []
            for _ in range(n):
                if self.left == 0:
                    self.pace, self.left = 1 + self.rng.random(), self.rng.randrange(1, 200)
                    self.pace = round(self.pace) if self.halved else self.pace
                self.left -= 1
                out.append(us * self.pace * (1 + 0.02 * self.rng.random()))
            return out

        return sample


def test_a_yardstick_tells_how_slow_the_moment_is() -> None:
    alone, compared = [], []
    for seed in range(40):
        machine = Shared(seed)
        alone.append(measure(machine.clock(90.0), None)[0].us / 90)
        found, _ = measure(machine.clock(90.0), 80.0, beside=(machine.clock(120.0), 120.0))
        compared.append(found.us / found.beside * 120 / 90)
    assert max(alone) > 1.3
    assert 0.97 < min(compared) <= max(compared) < 1.03


def test_a_fast_moment_of_a_candidate_alone_is_no_record() -> None:
    """Whatever comes next would seem slow beside it, and be dropped."""
    for seed in range(2000):
        machine = Shared(seed, halved=True)
        found, _ = measure(machine.clock(90.0), 80.0, beside=(machine.clock(120.0), 120.0))
        assert found.us / found.beside * 120 / 90 > 0.9


def test_an_interruption_of_the_yardstick_is_no_record() -> None:
    """Of a candidate that is slow, and dropped after two samples."""

    def yardstick(inner: int, n: int) -> list[float]:
        return [5000.0, *[100.0] * (n - 1)]

    found, _ = measure(Clock(300.0), 100.0, beside=(yardstick, 100.0))
    assert found.samples == 2 and found.us / found.beside == 3


def test_a_slow_moment_is_not_a_slow_candidate() -> None:
    """It is sampled as patiently as on the machine at its best."""
    for pace in (1.0, 1.9):
        candidate = Clock(100.0 * pace)
        measure(candidate, 99.0, beside=(Clock(120.0 * pace), 120.0))
        assert candidate.samples > 10


def test_yardsticks_of_long_kernels_are_cut_too() -> None:
    yardstick = Clock(400_000.0)
    found, _ = measure(Clock(300_000.0), 350_000.0, beside=(yardstick, 400_000.0))
    assert found.beside == yardstick.us and yardstick.spent < 0.4 * yardstick.us


def test_finals_tell_two_percent_apart() -> None:
    clocks = [Clock(100.0, 0.3, 1), Clock(98.0, 0.3, 2), Clock(99.5, 0.3, 3)]
    times = finals(clocks, [1, 1, 1], [100.0, 98.0, 99.5], [100.0, 98.0, 99.5])
    assert is_faster(times[1].us, times[0].us)
    assert [c.samples for c in clocks] == [ROUNDS] * 3


def test_finals_on_a_machine_that_is_slow_for_a_while() -> None:
    for seed in range(20):
        machine = Shared(seed)
        true = [100.0, 97.0, 103.0]
        times = finals([machine.clock(us) for us in true], [1, 1, 1], true, true, wait_us=5e5)
        assert is_faster(times[1].us, times[0].us) and not is_faster(times[2].us, times[0].us)


def test_finals_end_when_the_user_wants_no_more() -> None:
    """They would wait for a calm moment, up to minutes of it."""
    machine, true = Shared(0), [100.0, 97.0]
    clocks, asked = [machine.clock(us) for us in true], list[int]()
    times = finals(clocks, [1, 1], true, true, 6e8, stopped=lambda: bool(asked.append(1) or True))
    assert len(asked) < ROUNDS and {t.samples for t in times} == {len(asked) - 1}


def test_a_neighbour_that_slows_one_schedule_more_does_not_make_it_worse() -> None:
    """As on a core that is shared: what keeps it busier loses more. It is better all the same."""
    for seed in range(100):
        machine, true = Shared(seed, halved=True), [100.0, 125.0]
        moment = machine.clock(1.0)

        def sparse(inner: int, n: int, moment: Sample = moment) -> list[float]:
            return [125.0 * us if us < 1.5 else 80.0 * us for us in moment(inner, n)]

        times = finals([machine.clock(100.0), sparse], [1, 1], true, true, wait_us=5e5)
        assert not is_faster(times[1].us, times[0].us)


def test_less_than_any_run_can_take_is_no_record() -> None:
    """A neighbour slows the yardstick all the time and the candidate at no time; then what was
    seen of it counts. A bound that is too high hides nothing."""
    slowed = Clock(120.0)

    def ratio(floor_us: float) -> float:
        found, _ = measure(Clock(98.0), 96.0, beside=(slowed, 100.0), floor_us=floor_us)
        return found.us / found.beside * 100

    assert round(ratio(0.0)) == round(ratio(80.0)) == 82
    assert ratio(90.0) == 98 and round(ratio(110.0)) == 82
    turns = [slowed, Clock(98.0)]
    times = finals(turns, [1, 1], [100.0, 98.0], [100.0, 98.0], floors_us=[90.0, 90.0])
    assert [t.us for t in times] == [120, 98]


def test_what_counts_as_faster() -> None:
    assert is_faster(98.5, 100.0) and not is_faster(99.5, 100.0)
    assert is_faster(1950.0, 2000.0) and not is_faster(1970.0, 2000.0)


def test_on_a_calm_machine_less_counts_as_faster() -> None:
    """By as much as fast samples differ; neighbours that are equal stay equal."""
    calm = [Clock(1000.0, 0.01, 1), Clock(994.0, 0.01, 2), Clock(999.0, 0.01, 3)]
    loud = [Clock(1000.0, 0.3, 1), Clock(994.0, 0.3, 2), Clock(999.0, 0.3, 3)]
    won = []
    for clocks in (calm, loud):
        times = finals(clocks, [1] * 3, [1000.0] * 3, [1000.0] * 3)
        noise = max(t.noise for t in times)
        won.append([is_faster(t.us, times[0].us, noise) for t in times[1:]])
    assert won == [[True, False], [False, False]]
    assert not is_faster(999.0, 1000.0, 0.0) and is_faster(970.0, 1000.0, 0.5)
