"""Chat templates: rendered as transformers does, and bounded in time and memory whatever they try."""

import os
import resource
import threading

import pytest

from sonde.core import errors
from sonde.models import chat, templates, tiny

CHAT = [
    {"role": "system", "content": "Be short.\n"},
    {"role": "user", "content": "Is ü < ß? “yes”"},
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"function": {"name": "look", "arguments": {"at": "é", "n": 1}}}],
    },
    {"role": "tool", "content": "[1, 2]"},
    {"role": "assistant", "content": "No.", "reasoning": "Let me see."},
    {"role": "user", "content": " Why? "},
]
TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {"at": {}}}}}]
TEMPLATES = {
    "chatml": tiny.CHAT_TEMPLATE,
    "plain": chat.PLAIN_TEMPLATE,
    "special tokens": "{{ bos_token }}{% for m in messages %}[{{ m.role }}] {{ m['content'] | trim }}{{ eos_token }}{% endfor %}",
    "tools": "{% if tools %}{% for t in tools %}\n    {{ t | tojson(indent=2) }}\n{% endfor %}{% else %}none{% endif %}",
    "calls": "{%- for m in messages %}{% if m.tool_calls is defined %}{{ m.tool_calls[0].function | tojson }}{% endif %}{%- endfor %}",
    "reasoning": "{% for m in messages if m.reasoning_content %}{{ m.reasoning_content }}|{{ m.thinking }}{% endfor %}",
    "namespace": "{% set n = namespace(i=0) %}{% for m in messages %}{% set n.i = n.i + 1 %}{% endfor %}{{ n.i }}",
    "loop controls": "{% for m in messages %}{% if loop.index > 2 %}{% break %}{% endif %}{{ m.role }}{% endfor %}",
    "generation": "{% for m in messages %}{% set x = 1 %}{% generation %}{% set x = 2 %}{{ m.content }}{{ x }}{% endgeneration %}{{ x }}{% endfor %}",
    "header": "{{ 'go' if add_generation_prompt else 'stop' }}{{ documents is none }}{{ nothing is defined }}",
    "macro": "{% macro say(m) %}  {{ m.content.split('\\n')[0].upper() }}\n{% endmacro %}{% for m in messages[::-1] %}{{ say(m) }}{% endfor %}",
    "dictionary": "{{ dict(a=1).items() | list }}{{ messages[0].items() | list | length }}{{ '%s' | format('x') }}",
}
ENDLESS = {
    "one large text": "{{ 'x' * 10**10 }}",
    "nested loops": "{% for a in range(99999) %}{% for b in range(99999) %}{% for c in range(99999) %}{% endfor %}{% endfor %}{% endfor %}",
    "doubling": "{% set n = namespace(x='x') %}{% for i in range(60) %}{% set n.x = n.x ~ n.x %}{% endfor %}{{ n.x }}",
    "large number": "{{ 9 ** (9 ** 9) }}",
    "wide format": "{{ '%9999999999d' % 1 }}",
    "wide method": "{{ 'x'.ljust(9999999999) }}",
    "replacement": "{{ ('a' * 10000000).replace('a', 'a' * 10000) }}",
    "large list": "{{ [1] * 10**9 }}",
    "long text": "{{ 'x' * 2**25 }}",
    "lorem ipsum": "{{ lipsum(n=10000000) }}",
    "recursion": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "nesting": "{{ " + "(" * 50_000 + "1" + ")" * 50_000 + " }}",
}
BROKEN = {
    "no end": "{% for m in messages %}",
    "no such filter": "{{ 1 | nothing }}",
    "refused": "{{ raise_exception('roles must alternate') }}",
    "division": "{{ 1 / 0 }}",
    "Python inside": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "inside of a namespace": "{% set n = namespace(__class__=1) %}",
    "inside of a loop": "{{ cycler.__init__.__globals__.os.system('true') }}",
    "changes what it gets": "{{ messages.append(1) }}",
    "file": "{% include '/etc/passwd' %}",
}


@pytest.fixture
def tokenizer():
    return tiny.tokenizer()


def render(tokenizer, template, **options):
    return templates.render(tokenizer, CHAT, template, **{"tools": None, "header": True, **options})


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("options", [{}, {"tools": TOOLS, "header": False}], ids=["bare", "tools"])
def test_a_template_gives_the_same_text_as_in_transformers(name, options, tokenizer):
    theirs = tokenizer.apply_chat_template(
        CHAT,
        chat_template=TEMPLATES[name],
        tools=options.get("tools"),
        add_generation_prompt=options.get("header", True),
        tokenize=False,
    )
    assert render(tokenizer, TEMPLATES[name], **options) == theirs


def test_a_function_is_a_tool_as_in_transformers(tokenizer):
    def look(at: str) -> str:
        """Looks at something.

        Args:
            at: What.
        """
        return at

    theirs = tokenizer.apply_chat_template(CHAT, chat_template=TEMPLATES["tools"], tools=[look], tokenize=False)
    assert render(tokenizer, TEMPLATES["tools"], tools=[look]) == theirs


def test_one_of_many_templates_is_chosen_as_in_transformers(tokenizer):
    tokenizer.chat_template = {"default": "plain", "tool_use": "{{ tools | length }} tools"}
    assert "".join(piece.text for piece in chat.render(tokenizer, CHAT)) == "plain"
    assert "".join(piece.text for piece in chat.render(tokenizer, CHAT, tools=TOOLS)) == "1 tools"


SLOW = ("large number", "lorem ipsum")  # a second of processor time each


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] * (n in SLOW)) for n in ENDLESS])
def test_a_template_without_end_is_ended_and_the_next_one_renders(name, tokenizer, monkeypatch):
    monkeypatch.setattr(templates, "SECONDS", 1)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(errors.RequestError, match="template failed"):
        render(tokenizer, ENDLESS[name])
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000  # kilobytes
    assert render(tokenizer, "{{ messages | length }}") == "6"


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_template_is_an_error_of_the_request(name, tokenizer):
    with pytest.raises(errors.RequestError, match="template failed"):
        render(tokenizer, BROKEN[name])


def test_a_template_that_ends_the_process_by_itself_leaves_the_next_one_alone(tokenizer):
    templates._renderer.close()
    assert render(tokenizer, "x") == "x"
    os.kill(templates._renderer._process.pid, 9)
    templates._renderer._process.wait()
    assert render(tokenizer, "y") == "y"


def test_threads_get_their_own_texts(tokenizer):
    wrong = []

    def ask(number):
        wrong.extend(number for _ in range(30) if render(tokenizer, f"{{{{ {number} }}}}") != str(number))

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_what_is_no_data_is_shown_to_a_template_by_its_type_alone(tokenizer):
    messages = [{"role": "user", "content": "x", "image": object()}]
    assert templates.render(tokenizer, messages, "{{ messages[0].image }}", tools=None, header=True) == "<object>"


def test_a_tool_that_is_neither_schema_nor_function_is_refused(tokenizer):
    with pytest.raises(errors.RequestError, match="a tool must be"):
        render(tokenizer, "x", tools=["look"])


def test_a_chat_without_a_template_by_that_name_is_refused(tokenizer):
    tokenizer.chat_template = {"other": "x"}
    with pytest.raises(errors.RequestError, match="multiple chat templates"):
        chat.render(tokenizer, CHAT)
