"""The examples of docs/formats.md are graphs, and its messages are what is said."""

import re
from pathlib import Path

import pytest

from lumc.errors import LumcError
from lumc.graph.ops import DType, Op
from lumc.graph.text import parse_graph, print_graph
from lumc.graph.verify import LITERALS, STATEMENTS, verify_graph

PAGE = (Path(__file__).parents[2] / "docs" / "formats.md").read_text()


@pytest.mark.parametrize("text", re.findall(r"```lg\n(.*?)```", PAGE, re.S))
def test_examples(text):
    graph = parse_graph(text)
    verify_graph(graph)
    assert print_graph(parse_graph(print_graph(graph))) == print_graph(graph)


def test_every_word_is_in_the_grammar():
    (grammar,) = re.findall(r"```ebnf\n(.*?)```", PAGE, re.S)
    for word in (*(op.value for op in Op), *LITERALS, *STATEMENTS):
        assert f'"{word}"' in grammar
    assert " ".join(d.value for d in DType) in grammar


def test_the_message():
    with pytest.raises(LumcError) as e:
        parse_graph("lumc graph 1\ninput x f32[3]\nt f32[i:4] = contiguous x[i]\n", "f.lg")
    assert str(e.value) in PAGE
