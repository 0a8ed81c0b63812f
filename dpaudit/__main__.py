"""`python -m dpaudit` is the command `dpaudit`."""

from dpaudit.engine.cli import main

main(prog_name="dpaudit")
