"""`python -m dpaudit` runs the command `dpaudit`."""

import os
import sys

import dpaudit

# `python -m` searches the working folder before installed packages, so any `yaml.py` in it would be imported.
if not sys.flags.safe_path and sys.path[0] == os.getcwd() != os.path.dirname(os.path.dirname(dpaudit.__file__)):
    del sys.path[0]

from dpaudit.engine.cli.supervisor import main

main()
