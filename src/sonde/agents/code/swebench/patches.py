"""An agent's work as a patch: what it changed in the repository since it found it, new and binary files included.

    start = await tree(sandbox)                # as the agent finds it
    patch = await made(sandbox, start)         # when it is done

The patch is taken against the tree as it was found and not against `base_commit`: images change files to build old
versions and commit that, and a patch that held it would not apply to a fresh container. Where they do not, both are the
same. What the agent commits, resets or stages makes no difference; ignored files are left out, as by `git diff`.

Git runs in the agent's own container with the agent's own repository: whatever it says is a patch like any other.
"""

import dataclasses
import re
import secrets

from sonde.agents.sandbox import base
from sonde.core import errors

LARGEST = 16 * 2**20
"""Bytes of a patch; a larger one is no repair."""

#: Settings that the agent may have changed are overruled, so that they do not change the form of the patch.
_GIT = (
    "git -c safe.directory='*' -c core.hooksPath=/dev/null -c core.fsmonitor=false -c core.quotePath=true "
    "-c core.pager=cat -c advice.addEmbeddedRepo=false -c diff.ignoreSubmodules=all -c core.fileMode=true"
)
_DIFF = (
    "diff --binary --full-index --no-color --no-ext-diff --no-textconv --no-renames --no-relative "
    "--src-prefix=a/ --dst-prefix=b/ --unified=3 --diff-algorithm=myers --ignore-submodules=all"
)
_SECONDS = 300.0


@dataclasses.dataclass(frozen=True, slots=True)
class Patch:
    """What an agent changed.

    Attributes:
        text: The patch, as `git apply` takes it; empty if nothing was changed.
        problem: Why there is none, if it could not be made.
        submodules: Changes inside of submodules or repositories within, which a patch cannot carry.
    """

    text: str
    problem: str = ""
    submodules: tuple[str, ...] = ()


async def tree(sandbox: base.Sandbox, *, since: str = "HEAD", index: str = "") -> str:
    """The name that git gives the files as they are now: those of a tree, and new ones that are not ignored.

    Args:
        sandbox: Its working folder is the repository.
        since: The tree.
        index: A file under `.git` that remembers what was read before and so makes the next call quick.

    Raises:
        SandboxError: The working folder is no repository, or git does not work there.
    """
    own = index or f"sonde-{secrets.token_hex(8)}.index"
    away = "true" if index else 'rm -f "$GIT_INDEX_FILE"'
    result = await _run(
        sandbox,
        f'export GIT_INDEX_FILE="$({_GIT} rev-parse --absolute-git-dir)/{own}" && '
        f'{{ [ -f "$GIT_INDEX_FILE" ] || {_GIT} read-tree {since}; }} && {{ {_GIT} add -A . >/dev/null 2>&1 || '
        f"{_GIT} add -A --ignore-errors . >/dev/null 2>&1; true; }} && "
        f"name=$({_GIT} write-tree) && {away} && printf 'tree %s\\n' \"$name\"",
    )
    found = re.search(r"^tree ([0-9a-f]{40,64})$", result.output, re.MULTILINE)
    if result.exit_code != 0 or not found:
        raise errors.SandboxError(f"cannot read the repository's state: {_reason(result)}")
    return found[1]


async def made(sandbox: base.Sandbox, start: str) -> Patch:
    """The patch from a tree to the files as they are now; says what is wrong if there is none to be had."""
    try:
        end = await tree(sandbox, since=start)
        if end == start:
            return Patch("")
        within = await _submodules(sandbox, start, end)
        data = await _difference(sandbox, start, end, text=True)
        try:
            return Patch(data.decode("utf-8"), submodules=within)
        except UnicodeDecodeError:  # then in git's form for binary files, which is plain ASCII
            return Patch((await _difference(sandbox, start, end, text=False)).decode("utf-8"), submodules=within)
    except (errors.SandboxError, UnicodeDecodeError) as error:
        return Patch("", f"no patch can be made of the work: {error}")


async def _difference(sandbox: base.Sandbox, start: str, end: str, *, text: bool) -> bytes:
    """The difference of two trees; of files with other text than UTF-8 as that of binary files if not `text`."""
    mark = f"sonde-{secrets.token_hex(8)}"
    attributes = "" if text else 'mkdir -p "$dir/info" && printf "* -diff\\n" > "$dir/info/attributes" && '
    result = await _run(
        sandbox,
        f'dir="$({_GIT} rev-parse --absolute-git-dir)" && {attributes}{_GIT} {_DIFF} {start} {end} > .git/{mark} && '
        f"size=$(stat -c %s .git/{mark}) && printf 'size %s\\n' \"$size\"",
    )
    found = re.search(r"^size (\d+)$", result.output, re.MULTILINE)
    if result.exit_code != 0 or not found:
        raise errors.SandboxError(_reason(result))
    if int(found[1]) > LARGEST:
        raise errors.SandboxError(f"it has {found[1]} bytes, at most {LARGEST} are taken")
    data = await sandbox.get(f".git/{mark}")
    await _run(sandbox, f"rm -f .git/{mark}")
    return data


async def _submodules(sandbox: base.Sandbox, start: str, end: str) -> tuple[str, ...]:
    result = await _run(sandbox, f"{_GIT} diff-tree -r --raw --abbrev=40 --ignore-submodules=none {start} {end}")
    return tuple(re.findall(r"^:(?:\d+ 160000|160000 \d+) .*\t(.+)$", result.output, re.MULTILINE))[:20]


async def _run(sandbox: base.Sandbox, command: str) -> base.Result:
    limits = getattr(sandbox, "limits", base.Limits())
    return await sandbox.run(command, limits=dataclasses.replace(limits, seconds=_SECONDS, output=100_000))


def _reason(result: base.Result) -> str:
    return (result.note or result.output.strip() or f"exit code {result.exit_code}")[-300:]
