"""Files into and out of a container, by a shell inside that does no more than the commands there could do themselves.

It runs as their user, so whatever an agent has arranged (links, pipes, programs of its own) can at worst give it what
it has already. Needs bash, tar and coreutils inside. Cost: one `docker exec`, some 60 ms, for any number of files.
"""

import io
import tarfile
from collections.abc import Mapping

from sonde.agents.sandbox import base
from sonde.core import errors

ENTER = r"""
folder=$1; shift
[[ -d $folder ]] || { echo "there is no folder $folder in the image" >&2; exit 3; }
[[ -r $folder && -w $folder && -x $folder ]] || chmod 755 -- "$folder"
cd -- "$folder" || exit 3
"""
"""Goes to the working folder, which a command may have locked; the first argument names it."""

_WALK = r"""
refuse() { printf '%s' "$1" >&2; exit 3; }
walk() {
  local rest=$1 at=.
  while [[ $rest == */* ]]; do
    at+=/${rest%%/*} rest=${rest#*/}
    [[ -n $2 && ! -e $at && ! -L $at ]] && { mkdir -- "$at" || exit 3; }
    [[ -e $at || -L $at ]] || refuse 'No such file or directory'
    [[ -d $at && ! -L $at ]] || refuse 'a part of it is no folder, or a symbolic link, and none is followed'
  done
}
"""
_GET = r"""
walk "$1" ''
[[ -L ./$1 ]] && refuse 'it is a symbolic link, and none is followed'
[[ -e ./$1 ]] || refuse 'No such file or directory'
[[ -f ./$1 ]] || refuse 'not a regular file'
size=$(stat -c %s -- "./$1") || exit 3
(( size <= $2 )) || refuse "$size bytes, at most $2 are allowed"
exec cat -- "./$1"
"""
_PUT = r"""
umask 022
draft=$(mktemp -d ./.sonde-XXXXXXXXXX) || exit 3
trap 'rm -rf -- "$draft"' EXIT
tar -xmf - --no-same-owner -C "$draft" || exit 3
mapfile -d '' paths <"$draft/paths"
for number in "${!paths[@]}"; do
  path=${paths[number]}
  walk "$path" make
  [[ -d ./$path && ! -L ./$path ]] && refuse "$path is a folder, not a regular file"
  if [[ -f ./$path && ! -L ./$path ]]; then
    chmod --reference="./$path" -- "$draft/$number" && chmod u+rw,a-st -- "$draft/$number" || exit 3
  fi
  mv -fT -- "$draft/$number" "./$path" || exit 3
done
"""


def get_words(folder: str, path: str, limit: int) -> list[str]:
    """The program and arguments that write one regular file to standard output.

    Raises:
        SandboxError: The path leaves the folder.
    """
    return ["bash", "-c", ENTER + _WALK + _GET, "sonde", folder, "/".join(base.parts_of(path)), str(limit)]


def put_words(folder: str) -> list[str]:
    """The program and arguments that write what `packed` gives on standard input."""
    return ["bash", "-c", ENTER + _WALK + _PUT, "sonde", folder]


def packed(files: Mapping[str, str | bytes]) -> bytes:
    """Files as an archive: a list of their paths, and their contents by number.

    Raises:
        SandboxError: A path leaves the working folder.
    """
    paths = ["/".join(base.parts_of(path)) for path in files]
    contents = [content.encode() if isinstance(content, str) else content for content in files.values()]
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode="w") as archive:
        listed = "".join(f"{path}\0" for path in paths).encode(errors="surrogateescape")
        for name, data in [("paths", listed), *zip(map(str, range(len(contents))), contents, strict=True)]:
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(data), 0o644
            archive.addfile(entry, io.BytesIO(data))
    return written.getvalue()


def refused(verb: str, what: str, said: str) -> errors.SandboxError:
    """The error for what could not be read or written, from what the shell inside complained of."""
    lines = said.splitlines() or ["it does not say why"]
    full = "No space left on device" in said or "Wrote only" in said
    reason = "the working folder is full" if full else lines[0]
    return errors.SandboxError(f"cannot {verb} {what[:200]!r} in the sandbox: {reason}")
