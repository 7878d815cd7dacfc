"""lm-evaluation-harness's own command with the model `ectype` in it: `python -m ectype.tasks run --model ectype ...`.

The harness finds model classes in a registry of its own that no installed package can add to from outside, so a module
has to register ours before its command begins.
"""

import importlib
import sys

from ectype.errors import EXIT_BAD_INPUT, EctypeError


def main() -> None:
    """What `python -m ectype.tasks` and the command `ectype-lm-eval` run."""
    try:
        from lm_eval.__main__ import cli_evaluate  # pyright: ignore[reportMissingImports] - extra `tasks`

        importlib.import_module("ectype.tasks.harness")
    except ImportError as error:
        raise SystemExit(f"error: {error}\n  to mend:  pip install 'ectype[tasks]'") from None
    try:
        cli_evaluate()
    except EctypeError as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(EXIT_BAD_INPUT) from None


if __name__ == "__main__":
    main()
