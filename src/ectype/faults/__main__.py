"""`python -m ectype.faults OUT RUN`: one run of a fault matrix, as `ectype faults` starts it."""

import sys
from pathlib import Path

from ectype.errors import EXIT_BAD_INPUT, EXIT_STOPPED, EctypeError, Stopped
from ectype.faults.runs import main

if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]), sys.argv[2])
    except EctypeError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(EXIT_BAD_INPUT)
    except Stopped as stop:
        print(f"stopped: {stop}", file=sys.stderr)
        sys.exit(EXIT_STOPPED)
