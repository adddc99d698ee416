"""How does any assistant drive the lab? The same tools, served over the Model Context Protocol.

    serving.serve_stdio(at)                     # an assistant starts `sonde lab mcp` and talks to it
    serving.serve_http(at, port=8765)           # http://127.0.0.1:8765/mcp

The server belongs to one inquiry: its budget, its approval and its rules hold for whoever calls. Calls are done one after
another; refused and invalid ones come back as errors with the reason. The log so far is the resource `lab://summary`.

Over HTTP it listens on this machine only, and refuses requests that a web page could have made (by their Host and Origin
headers). With SONDE_LAB_KEY set, every request must also carry `Authorization: Bearer KEY`: do that on a machine that you
share. To reach it from another machine, forward the port over SSH. Costs nothing beside the calls.
"""

import hmac
import logging
import os
import threading
from collections.abc import Awaitable, Callable
from typing import Any

from sonde.core import errors
from sonde.lab import desk, schemas, summaries, tools

HOST, PATH = "127.0.0.1", "/mcp"
KEY = "SONDE_LAB_KEY"
LARGEST_BODY = 2**20
SUMMARY = "lab://summary"
SUMMARY_LENGTH = 20_000
INSTRUCTIONS = """A laboratory on one language model and one task. Corrupt the model with run_experiment and see what it
still can do; begin with a sweep, which skips every layer for the price of one experiment. Propose hypotheses, register predictions, test them on held-out examples with controls, and conclude: the
lab decides from the runs. The budget is hard. Read lab://summary for what was done so far."""
App = Callable[[Any, Any, Any], Awaitable[None]]


def server(at: desk.Desk) -> Any:
    """The MCP server of an inquiry.

    Raises:
        MissingExtraError: The package `mcp` is not installed.
    """
    lowlevel, types = _library()
    import anyio.to_thread

    turn = threading.Lock()

    def done(name: str, arguments: Any) -> Any:
        with turn:
            reply = at.call(name, arguments)
        wrong = reply.outcome in ("refused", "invalid")
        content = [types.TextContent(type="text", text=reply.text())]
        return types.CallToolResult(
            content=content, structured_content={"outcome": reply.outcome, **reply.result}, is_error=wrong
        )

    async def list_tools(_context: Any, _params: Any) -> Any:
        return types.ListToolsResult(
            tools=[
                types.Tool(name=tool.name, description=tool.about, input_schema=schemas.to_json(tool.arguments))
                for tool in tools.TOOLS.values()
            ]
        )

    async def call_tool(_context: Any, params: Any) -> Any:
        return await anyio.to_thread.run_sync(done, params.name, params.arguments or {})

    async def list_resources(_context: Any, _params: Any) -> Any:
        about = "What was found out so far, and what is left of the budget."
        return types.ListResourcesResult(
            resources=[types.Resource(uri=SUMMARY, name="summary", description=about, mime_type="text/plain")]
        )

    async def read_resource(_context: Any, params: Any) -> Any:
        if str(params.uri) != SUMMARY:
            raise ValueError(f"there is one resource, {SUMMARY}")
        text = summaries.of(at.inquiry, most=SUMMARY_LENGTH)
        return types.ReadResourceResult(
            contents=[types.TextResourceContents(uri=SUMMARY, mime_type="text/plain", text=text)]
        )

    return lowlevel.Server(
        "sonde-lab",
        instructions=INSTRUCTIONS,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
        on_list_resources=list_resources,
        on_read_resource=read_resource,
    )


def serve_stdio(at: desk.Desk) -> None:
    """Serves on standard input and output until the other side closes them."""
    import anyio

    made = server(at)

    async def run() -> None:
        from mcp.server import stdio

        async with stdio.stdio_server() as (reading, writing):
            await made.run(reading, writing, made.create_initialization_options())

    anyio.run(run)


def serve_http(at: desk.Desk, *, port: int = 8765, on_ready: Callable[[str], None] | None = None) -> None:
    """Serves on this machine until it is stopped; port 0 takes a free one.

    Args:
        at: The inquiry's desk.
        port: The port.
        on_ready: Told the address when it listens.

    Raises:
        ServerError: The port is taken.
    """
    import socket

    made = server(at)
    import uvicorn

    listening = socket.socket()
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((HOST, port))
    except OSError as error:
        listening.close()
        raise errors.ServerError(f"cannot listen on {HOST}:{port}: {error.strerror}; choose another --port") from error
    with listening:
        app = made.streamable_http_app(streamable_http_path=PATH, host=HOST, max_request_body_size=LARGEST_BODY)
        if on_ready is not None:
            on_ready(f"http://{HOST}:{listening.getsockname()[1]}{PATH}")
        config = uvicorn.Config(keyed(app, os.environ.get(KEY, "")), log_level="warning", lifespan="on")
        uvicorn.Server(config).run(sockets=[listening])


def keyed(app: App, key: str) -> App:
    """The application behind a key; without one, as it is."""
    if not key:
        return app
    wanted = f"Bearer {key}".encode()

    async def guarded(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            given = dict(scope["headers"]).get(b"authorization", b"")
            if not hmac.compare_digest(given, wanted):
                await send(
                    {"type": "http.response.start", "status": 401, "headers": [(b"www-authenticate", b"Bearer")]}
                )
                await send({"type": "http.response.body", "body": b"wrong or missing key"})
                return
        await app(scope, receive, send)

    return guarded


def check_installed() -> None:
    """Checks that the package is there, before anything is loaded.

    Raises:
        MissingExtraError: It is not.
    """
    _library()


def _library() -> tuple[Any, Any]:
    """The server's and the types' modules of the package mcp."""
    try:
        import mcp_types as types
        from mcp.server import lowlevel
    except ImportError as error:
        raise errors.MissingExtraError("mcp", extra="mcp", feature="the MCP server of the lab") from error
    logging.getLogger("mcp").setLevel(logging.WARNING)
    return lowlevel, types
