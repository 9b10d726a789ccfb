"""Conversations by the templates of files: as transformers renders them, and never more."""

from __future__ import annotations

import resource
import time
from typing import Any

import pytest

pytest.importorskip("jinja2")

from lumc.errors import Exit, LumcError
from lumc.tokenizer.chat import conversation
from lumc.tokenizer.tokenizer import Tokenizer, of_fields

NOTHING = ("scores", "merges", "first", "last", "stops", "suppressed", "not_first")
KNOWN: Tokenizer = of_fields(
    {
        "model": {"type": "BPE"},
        "tokens": ["<s>", "</s>"],
        "added": [],
        "special": {"begin": 0, "end": 1},
        "languages": {},
        "template": "",
        **dict.fromkeys(("normalizer", "pre_tokenizer", "decoder")),
        **{name: [] for name in NOTHING},
    },
    "",
)
SAID = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Grüße & <b>\n"},
    {"role": "assistant", "content": "Hi."},
    {"role": "user", "content": "'\"{{ 7 * 7 }}"},
]
TEMPLATES = {
    "chatml": "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] }}"
    "{{ '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}",
    "loops": """
{{- bos_token }}
{%- for m in messages if m.role != 'system' %}
    {%- if not loop.first %}{% break %}{% endif %}
    {{- '[INST] ' ~ m.content | trim ~ ' [/INST]' }}
{%- endfor %}{{ eos_token }}""",
    "json": "{{ messages | tojson }} {{ messages[0] | tojson(indent=2) }}",
    "spaces": "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}\n"
    "  {% if ns.n is divisibleby 2 %}\n  {{ ns.n }}{{ m.content }}\n  {% endif %}\n{% endfor %}",
    "today": "{{ strftime_now('%d %b %Y') }}",
    "generation": "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}"
    "{% endfor %}",
}


def text_of(template: str, **more: Any) -> str:
    return conversation(KNOWN, SAID, template=template, **more)


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("answer", [True, False])
def test_templates_give_what_transformers_gives(name: str, answer: bool) -> None:
    utils = pytest.importorskip("transformers.utils.chat_template_utils")
    (want,), _ = utils.render_jinja_template(
        [SAID],
        chat_template=TEMPLATES[name],
        add_generation_prompt=answer,
        bos_token="<s>",
        eos_token="</s>",
    )
    assert text_of(TEMPLATES[name], answer=answer) == want


def test_what_the_template_may_know() -> None:
    assert text_of("{{ enable_thinking }}", enable_thinking=False) == "False"
    assert text_of("{{ tools is none }}{{ bos_token }}") == "True<s>"
    with pytest.raises(LumcError, match="has no chat template") as e:
        conversation(KNOWN, SAID)
    assert (e.value.code, e.value.exit) == ("E0345", Exit.UNSUPPORTED)


HOSTILE = {
    "'a' * 10**10": "{{ 'a' * 10**10 }}",
    "a list": "{{ [1] * 10**9 }}",
    "width": "{{ '%010000000000d' % 1 }}",
    "format": "{{ '{:>9999999999}'.format('') }}",
    "ljust": "{{ ''.ljust(10**10) }}",
    "center": "{{ 'a' | center(10**10) }}",
    "indent": "{{ messages | tojson(indent=10**10) }}",
    "replace": "{{ ('x' * 100000).replace('', 'y' * 100000) }}",
    "output": "{% for i in range(99999) %}{{ 'x' * 99999 }}{% endfor %}",
    "a long text": "{{ ('x' * 1000).replace('', 'y' * 100000) }}",
    "powers": "{{ 10 ** 10000000000 }}",
    "squares": "{% set n = namespace(v=7) %}{% for i in range(99) %}"
    "{% set n.v = n.v * n.v %}{% endfor %}{{ n.v }}",
    "recursion": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "brackets": "{{ " + "(" * 5000 + ")" * 5000 + " }}",
    "a class": "{{ ''.__class__.__mro__ }}",
    "globals": "{{ cycler.__init__.__globals__ }}",
    "a file": "{% include '/etc/passwd' %}",
    "an import": "{% import 'os' as os %}",
    "a change": "{{ messages.append(3) }}",
    "an undefined": "{{ nothing.at.all }}",
    "a complaint": "{{ raise_exception('roles must alternate') }}",
    "syntax": "{% if %}",
    "types": "{{ 'a' ** 'b' }}",
    "range": "{{ range(10**30) | list }}",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_what_a_template_may_not_do(name: str) -> None:
    before = resource.getrlimit(resource.RLIMIT_AS)
    start, most = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(LumcError) as e:
        text_of(HOSTILE[name])
    assert (e.value.code, e.value.exit) == ("E0345", Exit.UNSUPPORTED)
    assert time.process_time() - start < 4
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - most < 400 << 10
    assert resource.getrlimit(resource.RLIMIT_AS) == before


def test_loops_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lumc.tokenizer.chat.SECONDS", 0.2)
    loops = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
    with pytest.raises(LumcError, match=r"more than 0\.2 s"):
        text_of(loops)


def test_what_is_said_is_no_template() -> None:
    assert "{{ 7 * 7 }}" in text_of(TEMPLATES["chatml"])
