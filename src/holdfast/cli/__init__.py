"""The command line: thin over `Memory`, like every door.

On a terminal people get tables and progress; a pipe, or `--json`, gets JSON. The exit code is the error's.
"""
