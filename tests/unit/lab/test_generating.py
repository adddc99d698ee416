"""Examples written by a model behind a real HTTP server on this machine, scripted."""

import asyncio
import contextlib
import json
import threading
from http import server as http_server

import pytest

from sonde.agents import openai_client
from sonde.core import errors
from sonde.lab import generating, tasks


@contextlib.contextmanager
def serving(*replies):
    """A server that says these one after another, the last one for ever; an integer is a status to fail with."""
    asked = []

    class Handler(http_server.BaseHTTPRequestHandler):
        def do_POST(self):
            asked.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            reply = replies[min(len(asked), len(replies)) - 1]
            message = {"role": "assistant", "content": reply if isinstance(reply, str) else ""}
            usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
            choice = {"index": 0, "message": message, "finish_reason": "stop"}
            body = json.dumps(
                {"id": "x", "object": "chat.completion", "model": "m", "choices": [choice], "usage": usage}
            )
            self.send_response(reply if isinstance(reply, int) else 200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, *args):
            pass

    listening = http_server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=listening.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.server_address[1]}/v1", asked
    finally:
        listening.shutdown()
        listening.server_close()
        thread.join()


def written(*pairs):
    return json.dumps([{"prompt": prompt, "answers": [answer]} for prompt, answer in pairs])


def generate(url, task=None, **options):
    client = openai_client.OpenAIClient("m", base_url=url, retries=1, backoff=0.001, max_output_tokens=500)
    task = task or generating.blank("opposites", "Gives the opposite.")
    return asyncio.run(generating.generate(client, task, **options))


def test_rounds_go_on_until_there_are_enough_examples():
    replies = (
        "Here you are:\n```json\n" + written(("hot ->", " cold"), ("up ->", " down")) + "\n```",
        written(("HOT  ->", " cold"), ("left ->", " right"), ("in ->", " out"), ("on ->", " off")),
    )
    kept = []
    with serving(*replies) as (url, asked):
        made = generate(url, wanted=4, keep=kept.append)
    assert [one.prompt for one in made.task.examples] == ["hot ->", "up ->", "left ->", "in ->"]
    assert (made.rounds, made.rejected) == (2, {"the same prompt again": 1})
    assert [len(task.examples) for task in kept] == [2, 4]
    assert "Gives the opposite." in asked[0]["messages"][1]["content"]
    assert '"up ->"' in asked[1]["messages"][1]["content"]
    assert [request["seed"] for request in asked] == [0, 1]


def test_what_does_not_pass_is_left_out_with_its_reason():
    mixed = json.dumps(
        ["x", {"prompt": "a ", "answers": [" b"]}, {"prompt": "c", "answers": []}, {"prompt": "d", "answers": [" e"]}]
    )
    with serving("no JSON here", mixed) as (url, _):
        made = generate(url, wanted=5, rounds=2)
    assert [one.prompt for one in made.task.examples] == ["d"]
    assert made.rejected["a reply that is no JSON list"] == 1
    assert sum(made.rejected.values()) == 4


def test_a_task_that_is_there_grows():
    task = tasks.of_json({"name": "opposites", "description": "Opposites.", "preamble": "yes -> no\n",
                          "examples": [{"prompt": "hot ->", "answers": [" cold"]}]}, "it")  # fmt: skip
    with serving(written(("hot ->", " cold"), ("up ->", " down"))) as (url, _):
        made = generate(url, task, wanted=2)
    assert [one.prompt for one in made.task.examples] == ["yes -> no\nhot ->", "yes -> no\nup ->"]
    assert made.task.preamble == "yes -> no\n"


def test_a_server_that_never_writes_anything_usable_is_an_error_that_says_so():
    with (
        serving("I cannot do that.") as (url, asked),
        pytest.raises(errors.ServerError, match=r"3 rounds.*no JSON list"),
    ):
        generate(url, wanted=5, rounds=3)
    assert len(asked) == 3


def test_a_server_that_dies_leaves_what_was_kept():
    kept = []
    with serving(written(("hot ->", " cold")), 500) as (url, _), pytest.raises(errors.ServerError):
        generate(url, wanted=5, keep=kept.append)
    assert len(kept[-1].examples) == 1


def test_a_task_needs_a_name_and_a_description():
    with pytest.raises(errors.RequestError, match="lower-case"):
        generating.blank("Two Words", "x")
    with pytest.raises(errors.RequestError, match="description"):
        generating.blank("words", "")
    with serving("[]") as (url, _), pytest.raises(errors.RequestError, match="at least one example"):
        generate(url, wanted=0)
