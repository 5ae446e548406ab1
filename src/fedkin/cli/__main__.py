"""`python -m fedkin.cli` is the `fedkin` command."""

from fedkin.cli import main

main()
