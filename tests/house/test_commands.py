"""Every command explains itself, is documented, and asking for help costs no torch."""

import pathlib
import re
import subprocess
import sys
from typing import Any

import pytest
import typer.main

from sonde._cli import main

ROOT = pathlib.Path(__file__).parents[2]


def commands(group: Any, prefix: str = "sonde") -> dict[str, Any]:
    """All visible commands and groups below a group, by what the user types."""
    found = {}
    for name, command in getattr(group, "commands", {}).items():
        if isinstance(command, main.Verb):
            command = command.load()
        if command.hidden:
            continue
        found[f"{prefix} {name}"] = command
        found |= commands(command, f"{prefix} {name}")
    return found


COMMANDS = commands(typer.main.get_command(main.app))


def test_the_installed_command_shows_its_help():
    command = pathlib.Path(sys.executable).with_name("sonde")
    done = subprocess.run([command, "--help"], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert "Usage" in done.stdout


def test_help_loads_no_torch_and_no_verb():
    code = """
import sys
from sonde._cli import main
try:
    main.app(["--help"])
except SystemExit as stop:
    assert not stop.code, stop.code
loaded = {"torch", "transformers", *(f"sonde._cli.{verb}" for verb in main.VERBS)} & set(sys.modules)
assert not loaded, loaded
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("verb", main.VERBS)
def test_the_list_of_verbs_shows_what_the_verb_says_of_itself(verb):
    assert COMMANDS[f"sonde {verb}"].help.split("\n\n")[0] == main.VERBS[verb]


def test_there_are_commands():
    assert "sonde study 20q" in COMMANDS


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_a_command_has_a_help_text(name):
    assert (COMMANDS[name].help or "").strip()


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_option_of_a_command_has_a_help_text(name):
    silent = [option.name for option in COMMANDS[name].params if not getattr(option, "help", None)]
    assert silent == []


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_a_command_is_mentioned_in_the_documentation(name):
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    assert any(re.search(rf"\b{name}\b", page.read_text(encoding="utf-8")) for page in pages)
