"""Chat templates: the same text as transformers gives, and no way to hold the app up."""

from __future__ import annotations

from typing import Any

import pytest

from app.models.chat_template import ChatTemplate, ChatTemplateError

_SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}
_CHAT = [
    {"role": "system", "content": "Be kind."},
    {"role": "user", "content": "  Hello <b>&amp;</b>\n"},
    {"role": "assistant", "content": "<think>so</think>Hi"},
    {"role": "user", "content": "And now?"},
]
_WORKING = {
    "chatml": "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + "
    "'<|im_end|>' + '\\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}",
    "slices and loops": "{{ bos_token }}{%- if messages[0].role == 'system' -%}{%- set system = messages[0]['content'] "
    "-%}{%- set rest = messages[1:] -%}{%- endif -%}{%- for m in rest -%}{%- if (m.role == 'user') != (loop.index0 % 2 "
    "== 0) -%}{{ raise_exception('roles') }}{%- endif -%}{{ loop.length }}{{ loop.last }}{{ m.content | trim }}"
    "{{ '<e>' ~ loop.index ~ none }}{%- endfor -%}{{ system | upper }}",
    "namespace": "{% set ns = namespace(n=0, last='') %}{% for m in messages[::-1] %}{% set ns.n = ns.n + 1 %}"
    "{% if m.content is string and '</think>' in m.content %}{% set ns.last = m.content.split('</think>')[-1] %}"
    "{% endif %}{% if ns.n > 3 %}{% break %}{% endif %}{% endfor %}{{ ns.n }}{{ ns.last }}{{ messages | length }}",
    "tools and json": "{% if tools %}x{% endif %}{{ messages[1] | tojson }}{{ messages | tojson(indent=2) }}"
    "{{ {'a': [1, 2.5, none]} | tojson }}{{ '%s-%05d' | format('a', 7) }}{{ '{}!'.format('b') }}",
    "macro": "{% macro turn(m, end) %}<{{ m.role }}>{{ m.content }}{{ end }}{% endmacro %}{% for m in messages if "
    "m.role != 'system' %}{{ turn(m, eos_token) }}{% endfor %}{% generation %}g{% endgeneration %}",
    "filters": "{{ messages | map(attribute='role') | join(', ') }}{{ messages | selectattr('role', 'equalto', 'user') "
    "| list | length }}{{ undefined_name | default('d') }}{{ [3, 1] | sort | first }}{{ 'a,b'.split(',') | last }}"
    "{{ range(3) | list }}{{ messages[0].items() | list | length }}{{ dict(a=1) }}{{ '  x'.lstrip() }}",
}  # fmt: skip
_DOUBLE = "{% for i in range(90) %}{% set ns.x = (ns.x, ns.x) %}{% endfor %}"
_HOSTILE = {
    "a range": "{% for i in range(10**12) %}{% endfor %}",
    "loops": "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}",
    "a power": "{{ 10 ** (10 ** 10) }}",
    "a product": "{{ 'a' * 10 ** 11 }}",
    "doubling": "{% set ns = namespace(x='ab') %}{% for i in range(99) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
    "lists of lists": "{% set ns = namespace(x=(1,)) %}" + _DOUBLE + "{{ ns.x }}",
    "comparing": "{% set ns = namespace(x=(1,)) %}" + _DOUBLE + "{{ messages[0].get(ns.x) }}",
    "a width": "{{ 'a' | center(10 ** 11) }}",
    "a method's width": "{{ 'a'.ljust(10 ** 11) }}",
    "a format": "{{ '%100000000000d' % 1 }}",
    "a format's format": "{{ '{:{}}'.format(1, 10 ** 11) }}",
    "replacing": "{% set x = 'a' * 1000000 %}{{ x.replace('', x) }}",
    "joining": "{% set x = 'a' * 1000000 %}{{ range(100000) | map(attribute='q', default=x) | join }}",
    "macros": "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(60) }}",
    "endless recursion": "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "searching": "{% set x = 'a' * 2000000 %}{{ x.rfind('b' + 'a' * 1000000) }}",
    "output": "{% for i in range(100000) %}{{ 'a' * 100000 }}{% endfor %}",
    "a file": "{% include '/etc/passwd' %}",
    "insides": "{{ ''.__class__.__mro__ }}",
    "its size": "x" * 1_000_000,
    "depth": "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
}


def _theirs(template: str, chat: list[dict[str, str]]) -> Any:
    from transformers.utils.chat_template_utils import render_jinja_template

    given: dict[str, Any] = {"chat_template": template, "add_generation_prompt": True, **_SPECIAL}
    render: Any = render_jinja_template  # its declared type is not what it gives
    rendered, _ = render(conversations=[chat], **given)
    return rendered[0]


@pytest.mark.parametrize("name", _WORKING)
def test_gives_the_text_that_transformers_gives(name: str) -> None:
    assert ChatTemplate(_WORKING[name], _SPECIAL).render(_CHAT) == _theirs(_WORKING[name], _CHAT)


def test_a_long_conversation_is_no_misuse() -> None:
    chat = [{"role": ("user", "assistant")[i % 2], "content": "word " * 400} for i in range(1001)]
    counting = (
        "{% for m in messages %}{{ m.content | trim }}{% if loop.index == messages | length %}!{% endif %}{% endfor %}"
    )
    assert ChatTemplate(counting, {}).render(chat) == _theirs(counting, chat)


@pytest.mark.parametrize("name", _HOSTILE)
@pytest.mark.timeout(60)
def test_hostile_templates_are_stopped(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.models.chat_template._SECONDS", 0.2)
    with pytest.raises(ChatTemplateError):
        ChatTemplate(_HOSTILE[name], {}).render(_CHAT)


def test_a_template_may_refuse_a_conversation_and_take_the_next() -> None:
    template = ChatTemplate("{% if messages[0].role == 'system' %}{{ raise_exception('No system') }}{% endif %}ok", {})
    with pytest.raises(ChatTemplateError, match="No system"):
        template.render(_CHAT)
    assert template.render(_CHAT[1:]) == "ok"
