"""Damaged and malicious .lg text: only LumcError may come out, and soon."""

import random
import time

import numpy as np
import pytest

from graph_reference import RandomGraph
from lumc.errors import LumcError
from lumc.graph import lexer
from lumc.graph.text import parse_graph, print_graph
from lumc.graph.verify import verify_graph

SEED = f"""lumc graph 1
dim s in 1..64 multiple 2
file "m.safetensors" size 1234 sha256 {"3fa9a6f1b2c3d4e5" * 4}
weight w f32[4, 3] "m.safetensors" "a.b"
state st f16[8, 4]
entry one
input x f32[s, 4]
t0 f32[s, n:3, k:4] = mul x[s, k], w[k, n]
t1 f32[s, n:3] = sum k:4 of t0[s, n, k]
t2 f32[s, n:5] = add t1[s, n - 1] if 0 <= n - 1 < 3, f32(2*(n // 2) + n % 3 - 1)
t3 bool[n:5] = lt i64(n), 3
t4 f32[s, n:5] = mul t3[n], t2[s, n]
t5 f16[i:8, j:4] = contiguous f16(-1.5e-3)
output y = t4
update st[i, j] = t5[i, j]
entry two
input z u8[]
t0 u8[] = add z[], 255
output y = t0
"""

HANGS = 60  # seconds of CPU: exponential work, not a slow machine


def survives(text: str) -> bool:
    """Parse; whether it was accepted. Raises for anything but a LumcError, or for a hang."""
    start = time.process_time()
    try:
        graph = parse_graph(text, "hostile.lg")
        verify_graph(graph)
        assert print_graph(parse_graph(print_graph(graph))) == print_graph(graph)
        return True
    except LumcError as e:
        assert e.what and str(e) and len(str(e)) < 5000
        return False
    finally:
        assert time.process_time() - start < HANGS


def test_the_seed_is_accepted():
    assert survives(SEED)


@pytest.mark.parametrize("seed", range(8))
def test_damaged_characters(seed):
    rng = random.Random(seed)
    accepted = 0
    for _ in range(60):
        text = list(SEED)
        for _ in range(rng.randint(1, 3)):
            at = rng.randrange(len(text))
            match rng.randrange(4):
                case 0:
                    text[at] = chr(ord(text[at]) ^ (1 << rng.randrange(7)))
                case 1:
                    del text[at]
                case 2:
                    text.insert(at, rng.choice('0[]()-*/%,:"=\n \0é\u2028\ud8009ik'))
                case 3:
                    text[at : at + 9] = text[at : at + 9] * rng.randint(2, 9)
        accepted += survives("".join(text))
    assert accepted < 60


def test_truncation():
    for end in range(0, len(SEED), 7):
        survives(SEED[:end])


@pytest.mark.parametrize("seed", range(4))
def test_shuffled_and_repeated_words(seed):
    rng = random.Random(seed)
    source = SEED if seed % 2 else print_graph(RandomGraph(np.random.default_rng(seed)).graph)
    for _ in range(60):
        lines = source.split("\n")
        at = rng.randrange(1, len(lines))
        words = lines[at].split(" ")
        match rng.randrange(4):
            case 0:
                rng.shuffle(words)
            case 1:
                words[rng.randrange(len(words))] = rng.choice(source.split())
            case 2:
                words.insert(0, rng.choice(source.split()))
            case 3:
                lines.insert(at, rng.choice(lines))
        lines[at] = " ".join(words)
        survives("\n".join(lines))


HEAD = "lumc graph 1\ninput x f32[4]\n"
TAIL = "\noutput y = t\n"
BIG = str(2**62)


def node(index="i", axes="i:4", op="contiguous", rest=""):
    return f"{HEAD}t f32[{axes}] = {op} x[{index}]{rest}{TAIL}"


REFUSED = {
    "deep parentheses": node("(" * 100_000 + "i" + ")" * 100_000),
    "deep minus": node("-" * 100_000 + "i"),
    "deep divisions": node("i" + " // 1" * 100_000),
    "long sum": node("i" + " + i" * 100_000),
    "nested products": node("*".join([BIG] * 100) + "*i"),
    "large coefficient of nothing": node(f"{BIG}*{BIG}*i", "i:1"),
    "huge number": node("9" * 1_000_000),
    "huge extent": node("0", "i:" + "9" * 18 + ", j:" + "9" * 18),
    "huge rank": node("0", ", ".join(f"a{i}:1" for i in range(5000))),
    "many operands": node(rest=", x[i]" * 20_000),
    "many bounds": node(rest=" if 0 <= i < 4" + " and 0 <= i < 4" * 20_000),
    "many indices": node(", ".join(["i"] * 20_000)),
    "many dims": "lumc graph 1\n" + "".join(f"dim d{i} in 1..2\n" for i in range(5000)),
    "long name": node() + "input " + "a" * 100_000 + " f32[]\n",
    "long string": f'lumc graph 1\nfile "{"a" * 100_000}" size 1 sha256 {"0" * 64}\n',
    "half a character": f'lumc graph 1\nfile "\\ud800" size 1 sha256 {"0" * 64}\n',
    "unpaired escape": f'lumc graph 1\nfile "\\ud800\\" size 1 sha256 {"0" * 64}\n',
    "long junk": "\0" * 1_000_000,
    "one long line": HEAD + "=" * 1_000_000,
    "only line ends": "\n" * 100_000,
    "only comments": "# lumc graph 1\n" * 50_000,
    "code": "lumc graph 1\n__import__('os').system('true')\n",
    "binary": bytes(range(256)).decode("latin1") * 100,
    "bound of no axis": node(rest=" if 0 <= q < 4"),
    "bound larger than the machine": node("i + 4", rest=f" if -{BIG}0 <= i < {BIG}0"),
    "negative size": f'lumc graph 1\nfile "a" size -1 sha256 {"0" * 64}\noutput y = x',
    "float out of place": node("0.5"),
    "infinite index": node("inf"),
    "a node that reads itself": f"{HEAD}t f32[i:4] = add t[i], x[i]{TAIL}",
    "output of nothing": f"{HEAD}output y = q\n",
    "entry after entry": "lumc graph 1\n" + "entry a\n" * 1000,
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name):
    assert not survives(REFUSED[name])


def test_messages_cannot_move_the_cursor():
    with pytest.raises(LumcError) as e:
        parse_graph("lumc graph 1\n\tinput \x1b[2Jx\x07 f32[3]")
    assert all(c.isprintable() or c == "\n" for c in str(e.value))


@pytest.mark.parametrize("digit", ["\u0663", "\u00b2", "\uff13"])
def test_only_ascii_digits(digit):
    assert not survives(node(axes=f"i:{digit}"))


def test_limits_of_the_whole_text(monkeypatch):
    monkeypatch.setattr(lexer, "MAX_CHARS", 100)
    assert not survives(SEED)
    monkeypatch.setattr(lexer, "MAX_CHARS", 1 << 20)
    monkeypatch.setattr(lexer, "MAX_LINES", 5)
    assert not survives(SEED)


def test_a_large_honest_graph_is_read_in_time():
    lines = ["lumc graph 1", "input x f32[4, 8]", "t0 f32[i:4, j:8] = sin x[i, j]"]
    lines += [f"t{i} f32[i:4, j:8] = add t{i - 1}[i, j], x[i, (j + 3) % 8]" for i in range(1, 3000)]
    assert survives("\n".join([*lines, "output y = t2999"]))


def test_deep_index_expressions_within_the_limit():
    assert survives(node("(" * 60 + "i" + ")" * 60))
    assert survives(node("-" * 100 + "i"))
    assert survives(node("i" + " // 1" * 100))
    chain = "".join(f" // 2 * 2 % {10**9 - n}" for n in range(20))
    survives(node("i" + chain))
