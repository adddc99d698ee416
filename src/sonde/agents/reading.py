"""Reading actions and observations as text: what an agent did, what it saw.

Plain rules on text, meant as labels for the steps of an episode ("was there an error on the screen?"). They look at
words, not at meaning; check them on your own data before you trust them.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

_COMMAND = re.compile(r"^\s*(?:```(?:bash|sh|shell)|\$ )", re.MULTILINE)
_EDIT = re.compile(r"\b(?:sed -i|apply_patch|git apply|tee |cat >)|(?<!>)>> ?[\w./~]|^(?:\+\+\+|---) ", re.MULTILINE)
_TEST = re.compile(r"\b(?:pytest|unittest|tox|npm test|go test|cargo test)\b")
_READ = re.compile(r"\b(?:cat|less|head|tail|grep|rg|find|ls)\b")
_ERROR = re.compile(
    r"\b(?:Traceback|(?:[A-Z]\w*)?(?:Error|Exception)\b|FAILED|error:|fatal:|No such file|command not found|panic:)"
)
_PATH = re.compile(r"(?<![\w/.])/?(?:[\w.-]+/)*[\w-]+\.(?:py|js|ts|go|rs|c|h|cpp|java|sh|md|toml|json|ya?ml|txt|cfg)\b")


def text_of(thing: Any) -> str:
    """The text of a response, of a request's last message, or of a string."""
    if isinstance(thing, str):
        return thing
    if hasattr(thing, "data"):
        return "".join(part.content for part in thing.data)
    if hasattr(thing, "messages"):
        messages = [message for message in thing.messages if isinstance(message, Mapping)]
        content = messages[-1].get("content") if messages else None
        if isinstance(content, Sequence) and not isinstance(content, str):
            return "".join(part if isinstance(part, str) else str(part.get("text", "")) for part in content)
        return str(content or "")
    return str(thing)


def classify_action(action: Any) -> str:
    """What an action looks like: `edit`, `test`, `read`, `command`, `question`, `message` or `empty`."""
    text = text_of(action)
    if not text.strip():
        return "empty"
    if _EDIT.search(text):
        return "edit"
    if _TEST.search(text):
        return "test"
    if _COMMAND.search(text):
        return "read" if _READ.search(text) else "command"
    return "question" if text.rstrip().endswith("?") else "message"


def check_for_errors(observation: Any) -> bool:
    """Whether an observation shows an error message."""
    return bool(_ERROR.search(text_of(observation)))


def extract_file_context(observation: Any) -> list[str]:
    """The file names an observation mentions, in order, each once."""
    return list(dict.fromkeys(_PATH.findall(text_of(observation))))


def is_success(thing: Any) -> bool:
    """Whether a task is marked as one that succeeds, or an episode or step earned a positive reward."""
    if hasattr(thing, "success"):
        return bool(thing.success)
    return (getattr(thing, "reward", None) or 0.0) > 0
