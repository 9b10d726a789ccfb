"""Where sound is cut."""

import numpy as np

from lumc.speech.transcript import parts


def test_sound_is_cut_where_it_is_quiet() -> None:
    loud = np.random.default_rng(1).standard_normal(100_000)
    assert parts(loud[:40_000], 40_000) == [(0, 40_000)]
    assert parts(loud[:0], 40_000) == [(0, 0)]
    loud[36_000:38_000] = 0
    (_, first), (start, second), *rest = parts(loud, 40_000)
    assert 36_500 < first < 37_500 and start == first
    assert first + 32_000 <= second <= first + 40_000
    ends = [e for _, e in parts(loud, 40_000)]
    assert rest[-1][1] == ends[-1] == 100_000
    assert all(b - a <= 40_000 for a, b in parts(loud, 40_000))
    quiet = np.zeros(90_000)
    assert parts(quiet, 40_000)[0][1] >= 32_000
