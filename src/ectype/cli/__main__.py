"""`python -m ectype.cli`."""

from ectype.cli.main import main

main()
