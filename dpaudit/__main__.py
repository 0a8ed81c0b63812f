"""`python -m dpaudit` is the command `dpaudit`."""

from dpaudit.engine.commands.supervisor import main

main()
