"""`python -m dpaudit` is the command `dpaudit`."""

import os
import sys

import dpaudit

# `python -m` puts the working folder before everything installed: a `yaml.py` in it, anybody's, would be imported.
if not sys.flags.safe_path and sys.path[0] == os.getcwd() != os.path.dirname(os.path.dirname(dpaudit.__file__)):
    del sys.path[0]

from dpaudit.engine.cli.supervisor import main

main()
