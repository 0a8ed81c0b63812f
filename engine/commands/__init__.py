"""The verbs of the command line that are a subject of their own."""
