"""How is a chat template rendered that nobody has vouched for?

A template is a program: `{{ 'x' * 10**9 }}` fills memory, three nested loops never end, and no sandbox of jinja2's bounds
either. So templates are rendered by one process beside this one, with bounded memory and processor time, which is ended and
started anew when a template exceeds them. The dialect is that of transformers' `apply_chat_template`.

Costs some 80 ms when the first chat is rendered, and about a fifth of a millisecond for each.
"""

import atexit
import inspect
import json
import os
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sonde.core import errors

MEMORY = 512 << 20
SECONDS = 5
MOST_CHARACTERS = 16 << 20
_REASONING = ("reasoning_content", "thinking", "reasoning")
_WORKER = Path(__file__).with_name("template_worker.py")


def render(
    tokenizer: Any,
    messages: Sequence[Mapping[str, Any]],
    template: str | None,
    *,
    tools: Sequence[Any] | None,
    header: bool,
) -> str:
    """A chat as text.

    Args:
        tokenizer: Names the special tokens, and has the template where none is given.
        messages: The chat.
        template: A template, or the name of one of the tokenizer's; None: the tokenizer's own.
        tools: What the model may call: JSON schemas, or functions.
        header: Whether the header of the answer follows.

    Raises:
        RequestError: The template cannot be rendered: it is broken, refuses this chat, or takes too long or too much memory.
    """
    schemas = [_schema(tool) for tool in tools] if tools else None
    try:
        chosen = tokenizer.get_chat_template(template, schemas)
        values = {
            **tokenizer.special_tokens_map,
            "messages": [_with_reasoning(message) for message in messages],
            "tools": schemas,
            "documents": None,
            "add_generation_prompt": header,
        }
        request = {"template": chosen, "values": values, "most": MOST_CHARACTERS, "seconds": SECONDS}
        line = json.dumps(request, default=_inert)
    except (TypeError, ValueError, RecursionError) as error:
        raise errors.RequestError(f"this chat cannot be rendered: {error}") from error
    found = _renderer.ask(line)
    if "text" not in found:
        raise errors.RequestError(f"the chat template failed: {found['error']}")
    return found["text"]


class Renderer:
    """The process that renders, started when first needed, and again when it has ended or this one was forked."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None
        self._owner = 0

    def ask(self, line: str) -> Mapping[str, Any]:
        """The answer to a request."""
        with self._lock:
            process = self._running()
            assert process.stdin is not None
            assert process.stdout is not None
            try:
                process.stdin.write(line + "\n")
                process.stdin.flush()
                answered = process.stdout.readline()
            except OSError:
                answered = ""
            except BaseException:  # interrupted: an answer that nobody waits for must not be the next one's
                self._end()
                raise
            found = json.loads(answered) if answered.endswith("\n") else {"error": self._ended()}
            if found.get("error", "").startswith("MemoryError"):
                self._end()
            return found

    def close(self) -> None:
        """Ends the process; the next request starts another."""
        with self._lock:
            self._end()

    def _running(self) -> subprocess.Popen[str]:
        if self._owner != os.getpid():  # a fork has the same pipe, and may not use it
            self._process = None
        if self._process is None or self._process.poll() is not None:
            self._end()
            command = [sys.executable, "-P", str(_WORKER), str(MEMORY)]
            pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
            self._process = subprocess.Popen(command, text=True, encoding="utf-8", start_new_session=True, **pipes)
            self._owner = os.getpid()
        return self._process

    def _ended(self) -> str:
        assert self._process is not None
        code = self._process.wait()
        self._end()
        return (
            f"it took more than {SECONDS} s of processor time or {MEMORY >> 20} MB of memory"
            if code < 0
            else f"the process that renders it ended ({code})"
        )

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None and self._owner == os.getpid():
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                try:
                    if pipe is not None:
                        pipe.close()
                except OSError:  # what was not yet written to it
                    continue


def _schema(tool: Any) -> Any:
    if inspect.isroutine(tool):
        from transformers import utils

        return utils.get_json_schema(tool)
    if not isinstance(tool, Mapping):
        raise errors.RequestError(f"a tool must be a JSON schema or a function, got {type(tool).__name__}")
    return tool


def _with_reasoning(message: Mapping[str, Any]) -> dict[str, Any]:
    """The message with its reasoning under each of the names that templates know it by."""
    reasoning = next((message[name] for name in _REASONING if message.get(name) is not None), None)
    if reasoning is None:
        return dict(message)
    return {"thinking": reasoning, **message, "reasoning_content": reasoning}


def _inert(value: Any) -> Any:
    """What a template sees of an object that is no data."""
    if isinstance(value, Mapping):
        return dict(value)
    return f"<{type(value).__name__}>"


_renderer = Renderer()
atexit.register(_renderer.close)
