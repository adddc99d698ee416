"""Renders chat templates in a process of its own, which is bounded and has nothing to lose; `templates` starts it.

Run as a file, it imports nothing of Sonde: it starts in the time that jinja2 takes. It reads requests from standard input and
writes answers to standard output, one JSON object per line. Its memory is bounded, it may write no file, and each request
gives it some seconds of processor time, after which the system ends it.
"""

import datetime
import functools
import json
import math
import resource
import sys
import time
from typing import Any, NoReturn

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.sandbox


class Namespace(jinja2.utils.Namespace):
    """A template's namespace; names of Python's own are refused."""

    def __setitem__(self, name: str, value: Any) -> None:
        if name.startswith("_"):
            raise jinja2.exceptions.SecurityError(f"a namespace may not have an attribute {name!r}")
        super().__setitem__(name, value)


class Generation(jinja2.ext.Extension):
    """`{% generation %}`, which marks the model's own words: shown as it is."""

    tags = {"generation"}  # noqa: RUF012 (jinja2 reads it from the class)

    def parse(self, parser: Any) -> Any:
        """What is between the tags, with names of its own."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.Scope(body, lineno=line)


def namespace(*args: Any, **fields: Any) -> Namespace:
    """Makes a namespace."""
    made = Namespace()
    for name, value in dict(*args, **fields).items():
        made[name] = value
    return made


def to_json(value: Any, ensure_ascii: bool = False, **options: Any) -> str:
    """`tojson` without HTML escapes, as chat templates expect it."""
    return json.dumps(value, ensure_ascii=ensure_ascii, **options)


def raise_exception(message: str) -> NoReturn:
    """What a template calls to refuse a chat."""
    raise jinja2.TemplateError(message)


def now(form: str) -> str:
    """The local time."""
    return datetime.datetime.now().strftime(form)  # noqa: DTZ005 (templates show the user's clock)


@functools.lru_cache(maxsize=16)
def compiled(template: str) -> jinja2.Template:
    """A template, ready to render, in the dialect of chat templates."""
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = to_json
    environment.globals.update(raise_exception=raise_exception, strftime_now=now, namespace=namespace)
    return environment.from_string(template)


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """The text of a request, or what went wrong."""
    try:
        text = compiled(request["template"]).render(**request["values"])
    except MemoryError:
        return {"error": "MemoryError: it needs too much memory"}
    except Exception as error:
        return {"error": f"{type(error).__name__}: {str(error)[:500]}"}
    if len(text) > request["most"]:
        return {"error": f"its text has {len(text):,} characters, at most {request['most']:,} are taken"}
    return {"text": text}


def main() -> None:
    """Answers requests until there are no more."""
    memory = int(sys.argv[1])
    for kind, limit in (
        (resource.RLIMIT_AS, memory),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(kind, (limit, limit))
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    for line in sys.stdin:
        request = json.loads(line)
        limit = math.ceil(time.process_time()) + request["seconds"]
        resource.setrlimit(resource.RLIMIT_CPU, (limit, hard))
        print(json.dumps(answer(request)), flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
