"""What a stranger hands over: folders, specs, caches and files made to run, read, send or overwrite something."""
