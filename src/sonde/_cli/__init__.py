"""The `sonde` command: one thin file per verb, heavy imports only inside the commands that need them."""
