"""A conversation with a corrupted model, and with the intact one."""

import pytest

from sonde.core import errors
from sonde.lab import corruptions, talking
from sonde.models import chat


def _prompt(model, *messages):
    turns = [{"role": role, "content": content} for role, content in messages]
    return chat.encode(model.tokenizer, chat.render(model.tokenizer, turns))


def test_both_models_answer_and_remember_what_they_said_themselves(llama):
    corruption = corruptions.parse("skip:1", 4)
    talk = talking.Talk(llama, corruption, max_new_tokens=5)
    first, second = talk.say("Hello"), talk.say("And now?")
    for said, again, specs in (
        (first.intact, second.intact, ()),
        (first.corrupted, second.corrupted, corruption.bound(llama)),
    ):
        assert said == llama.generate(_prompt(llama, ("user", "Hello")), max_new_tokens=5, interventions=specs).text
        whole = _prompt(llama, ("user", "Hello"), ("assistant", said), ("user", "And now?"))
        assert again == llama.generate(whole, max_new_tokens=5, interventions=specs).text
    assert first.intact != first.corrupted


def test_a_talk_is_the_same_every_time_and_can_begin_anew(llama):
    talk = talking.Talk(llama, corruptions.parse("reverse:0-3", 4), max_new_tokens=5)
    first = talk.say("Hello")
    talk.forget()
    assert talk.say("Hello") == first


def test_raw_text_is_continued_as_it_is(llama):
    talk = talking.Talk(llama, corruptions.parse("none", 4), raw=True, max_new_tokens=5)
    reply = talk.say("Once upon")
    assert reply.intact == reply.corrupted == llama.generate("Once upon", max_new_tokens=5).text


def test_a_conversation_that_does_not_fit_says_so_and_remembers_nothing_of_it(llama):
    talk = talking.Talk(llama, corruptions.parse("skip:1", 4), max_new_tokens=5)
    with pytest.raises(errors.ContextError, match="context of tiny-llama is 2048"):
        talk.say("a" * 3000)
    assert talk.say("Hello") == talking.Talk(llama, corruptions.parse("skip:1", 4), max_new_tokens=5).say("Hello")
