"""The lab as an MCP server, driven by the real MCP client library: over standard streams and over HTTP."""

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

import pytest
from mcp.client.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client

from sonde.core import errors
from sonde.lab import serving, tools

SERVER = """
import pathlib, sys
from sonde.lab import budget, desk, experiments, log, loop, serving, tasks
from sonde.testing import layered
examples = tuple(tasks.Example(prompt, (answer,)) for prompt, answer in layered.answers(0).items())
task = tasks.Task("letters", "From a letter to its sign.", (), "", examples)
with layered.model((2, 5)) as model, log.Log.of(sys.argv[1]) as book:
    bench = experiments.Experiments(model, task)
    at = desk.Desk(bench, loop.begin(book, bench, most=6, planner="mcp", limits=budget.Limits(3)))
    if sys.argv[2] == "http":
        serving.serve_http(at, port=0, on_ready=lambda url: print(url, flush=True))
    else:
        serving.serve_stdio(at)
"""


async def drive(client):
    """What an assistant does: looks at the tools, calls some, makes a mistake, meets the budget."""
    listed = (await client.list_tools()).tools
    assert [tool.name for tool in listed] == list(tools.TOOLS)
    assert listed[0].input_schema["properties"]["corruption"]["description"]
    good = await client.call_tool("run_experiment", {"corruption": "skip:2"})
    assert not good.is_error
    assert good.structured_content["kept"] == 0.0
    assert json.loads(good.content[0].text)["outcome"] == "ok"
    wrong = await client.call_tool("run_experiment", {"corruption": "skip:99"})
    assert wrong.is_error
    assert "layers 0 to 7" in wrong.content[0].text
    for layer in (3, 4):
        await client.call_tool("run_experiment", {"corruption": f"skip:{layer}"})
    spent = await client.call_tool("run_experiment", {"corruption": "skip:6"})
    assert spent.is_error
    assert "3 of 3 experiments" in spent.content[0].text
    summary = await client.read_resource(serving.SUMMARY)
    assert "skip:2" in summary.contents[0].text


async def test_an_assistant_drives_the_lab_over_standard_streams(tmp_path):
    there = StdioServerParameters(
        command=sys.executable, args=["-c", SERVER, str(tmp_path), "stdio"], env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    async with Client(stdio_client(there)) as client:
        await drive(client)


@contextlib.contextmanager
def over_http(folder, **environment):
    command = [sys.executable, "-c", SERVER, str(folder), "http"]
    env = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env) as process:
        try:
            url = process.stdout.readline().strip()
            _listening(url)
            yield url
        finally:
            process.terminate()
            process.wait(30)


def _listening(url):
    host, port = url.split("/")[2].split(":")
    for _ in range(200):
        with contextlib.suppress(OSError), socket.create_connection((host, int(port)), timeout=1):
            return
        time.sleep(0.05)


def status_of(url, **headers):
    """The status that a bare request gets."""
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "ping"}).encode()
    fields = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
    request = urllib.request.Request(url, data=body, headers=fields | headers)
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code


async def test_an_assistant_drives_the_lab_over_http_on_this_machine_only(tmp_path):
    with over_http(tmp_path) as url:
        assert url.startswith("http://127.0.0.1:")
        async with Client(streamable_http_client(url)) as client:
            await drive(client)
        assert status_of(url, Origin="http://evil.example") == 403
        assert status_of(url, Host="evil.example") == 421


async def test_a_key_is_asked_for_if_there_is_one(tmp_path):
    with over_http(tmp_path, SONDE_LAB_KEY="secret") as url:
        assert status_of(url) == 401
        assert status_of(url, Authorization="Bearer wrong") == 401
        assert status_of(url, Authorization="Bearer secret") != 401


def test_a_port_that_is_taken_is_said_in_words(begun):
    with socket.socket() as taken:
        taken.bind((serving.HOST, 0))
        taken.listen()
        with pytest.raises(errors.ServerError, match="choose another --port"):
            serving.serve_http(begun(), port=taken.getsockname()[1])
