"""What does an agent want to run? Reading the one fenced block of a message, and telling the agent what came of it.

A message may say whatever it likes around exactly one block

    ```bash
    python -m unittest
    ```

whose text is run by bash. A block that says only `submit` ends the work. A fence may have more than three backticks,
for commands that hold a line of three; `sh` will do for `bash`; blocks in other languages are text like any other.
"""

import dataclasses
import re

from sonde.agents.sandbox import base
from sonde.core import errors

SUBMIT = "submit"
FORM = "Answer with exactly one command in a block that starts with ```bash and ends with ```."
_OPEN = re.compile(r"\s{0,3}(`{3,})[ \t]*(\w*)[ \t]*")
_SHELLS = ("bash", "sh")


@dataclasses.dataclass(frozen=True, slots=True)
class Command:
    """What a message asks for.

    Attributes:
        text: The command, empty if there is none to run.
        problem: Why there is none, in words for the agent.
    """

    text: str
    problem: str = ""

    @property
    def submits(self) -> bool:
        """Whether it ends the work."""
        return self.text.strip() == SUBMIT


def read(message: str) -> Command:
    """The command in a message, or what is wrong with the message. Never raises, takes linear time."""
    blocks, open_ended = _blocks(message)
    if open_ended:
        return Command("", f"The block is not closed, so nothing was run. {FORM}")
    if len(blocks) != 1:
        found = "no command" if not blocks else f"{len(blocks)} commands"
        return Command("", f"There is {found} in your message, so nothing was run. {FORM}")
    if not blocks[0].strip():
        return Command("", f"The block is empty, so nothing was run. {FORM}")
    try:
        base.check_command(blocks[0])
    except errors.SandboxError as error:
        return Command("", f"That cannot be run: {error}. {FORM}")
    return Command(blocks[0])


def fenced(command: str) -> str:
    """A command as a block that `read` gives back."""
    longest = max((len(ticks) for ticks in re.findall(r"`+", command)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}bash\n{command}\n{fence}"


def shown(result: base.Result) -> str:
    """What the agent sees of a result: how it ended, and the output."""
    if result.timed_out:
        ending = f"Stopped after {result.seconds:.0f} s: {result.note}"
    elif result.exit_code is None:
        ending = f"Stopped: {result.note}"
    else:
        ending = f"Exit code {result.exit_code}"
    cut = ", output cut" if result.truncated else ""
    return f"[{ending}{cut}]\n{result.output}".rstrip("\n")


def _blocks(message: str) -> tuple[list[str], bool]:
    """The shell blocks, and whether one has no end."""
    blocks: list[str] = []
    lines: list[str] | None = None
    fence, shell = "", False
    for line in message.split("\n"):
        if lines is None:
            opened = _OPEN.fullmatch(line)
            if opened:
                fence, shell, lines = opened[1], opened[2].lower() in _SHELLS, []
        elif line.strip().startswith(fence) and not line.strip().strip("`"):
            if shell:
                blocks.append("\n".join(lines))
            lines = None
        else:
            lines.append(line)
    return blocks, lines is not None and shell
