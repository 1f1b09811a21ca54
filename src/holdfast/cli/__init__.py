"""The command line over `Memory`.

Terminals get tables and progress bars; pipes, and `--json`, get JSON. The exit code is that of the error.
"""
