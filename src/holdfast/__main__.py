"""`python -m holdfast` is the `holdfast` command."""

from holdfast.cli.main import main

main()
