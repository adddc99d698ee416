"""`python -m sonde`: the command `sonde`, where its folder is not on the search path."""

from sonde._cli import main

main.app(prog_name="sonde")
