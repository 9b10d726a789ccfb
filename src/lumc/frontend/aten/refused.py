"""Why some operators have no row: their results have shapes, types or values no graph can hold."""

from __future__ import annotations

_DATA_DEPENDENT = "its result has a data-dependent shape"
_RANDOM = "its result is random"
_RANDOM_FIX = "make the random values an input of the model"
_COMPLEX = "it computes complex numbers"

SIMPLER = "save program.run_decompositions(), which writes it with simpler operators"
REASONS: dict[str, tuple[str, str]] = {
    "nonzero": (_DATA_DEPENDENT, "use a mask: torch.where"),
    "masked_select": (_DATA_DEPENDENT, "use a mask: torch.where"),
    "unique": (_DATA_DEPENDENT, "do it after the model"),
    "_unique2": (_DATA_DEPENDENT, "do it after the model"),
    "_local_scalar_dense": (
        "it takes a number out of a tensor",
        "leave it a tensor, without item()",
    ),
    "item": ("it takes a number out of a tensor", "leave it a tensor, without item()"),
    "rand": (_RANDOM, _RANDOM_FIX),
    "randn": (_RANDOM, _RANDOM_FIX),
    "rand_like": (_RANDOM, _RANDOM_FIX),
    "randn_like": (_RANDOM, _RANDOM_FIX),
    "randint": (_RANDOM, _RANDOM_FIX),
    "randperm": (_RANDOM, _RANDOM_FIX),
    "bernoulli": (_RANDOM, _RANDOM_FIX),
    "multinomial": (_RANDOM, _RANDOM_FIX),
    "sym_storage_offset": ("tensors have no places in memory", "write the model without it"),
    "_fft_r2c": (_COMPLEX, "multiply with matrices of cosines and sines"),
    "_fft_c2r": (_COMPLEX, "multiply with matrices of cosines and sines"),
}
BROKEN = "where shapes do not fit, the program is broken: export it again"
UNKNOWN = ("there is no row for it", SIMPLER)
