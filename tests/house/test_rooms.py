"""Imports go down the rooms: the contract lists every room, in the order of the design."""

import pathlib
import tomllib

ROOT = pathlib.Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "sonde"
ORDER = [
    {"_cli"},
    {"lab"},
    {"studies"},
    {"bench"},
    {"circuits", "programs"},
    {"analysis"},
    {"testing"},
    {"agents"},
    {"experiments"},
    {"capture", "report"},
    {"models", "store"},
    {"core"},
]


def declared_layers() -> list[set[str]]:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]
    (contract,) = [contract for contract in settings["contracts"] if contract["type"] == "layers"]
    return [{room.strip(" ()") for room in layer.split("|")} for layer in contract["layers"]]


def present_rooms() -> set[str]:
    folders = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    modules = {path.stem for path in PACKAGE.glob("*.py")} - {"__init__", "__main__"}
    return folders | modules


def test_every_room_is_declared_in_the_import_contract():
    undeclared = present_rooms() - set().union(*declared_layers())
    assert undeclared == set(), "declare the room in [tool.importlinter] of pyproject.toml"


def test_the_contract_keeps_the_order_of_the_design():
    assert declared_layers() == ORDER


def test_every_folder_with_code_is_a_package():
    # The repositories that agents repair are data, and broken on purpose.
    code = [path for path in PACKAGE.rglob("*.py") if "repositories" not in path.parts]
    bare = {path.parent for path in code if not (path.parent / "__init__.py").exists()}
    assert bare == set()
