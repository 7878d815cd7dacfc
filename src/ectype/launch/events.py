"""What a supervisor tells: a log of JSON lines, and a webhook whose address nobody gets to see."""

import json
import os
import re
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ectype.artifacts import parse_json
from ectype.errors import EctypeError

WEBHOOK_LIMIT_SECONDS = 10.0
_TRIES = 3


@dataclass(frozen=True)
class Webhook:
    """Where news go, by reference: the address is read each time and never kept, shown or logged."""

    variable: str | None = None
    file: Path | None = None

    def check(self) -> None:
        """Refuse an address in the place of a reference, without repeating it.

        Raises:
            EctypeError: `variable` is no variable's name, or `file` is a web address.
        """
        no_name = self.variable is not None and not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", self.variable)
        if no_name or (self.file is not None and re.match(r"\w+:/", str(self.file))):
            raise EctypeError(
                "a webhook given by something else than a reference", "the name of a variable or file that holds it",
                "put the address into a variable or a file; it is never given on the command line",
            )  # fmt: skip

    def address(self) -> str:
        """The address.

        Raises:
            EctypeError: the variable is not set, the file can't be read, or what is there is no web address.
        """
        self.check()
        where = f"${self.variable}" if self.variable else str(self.file)
        try:
            found = os.environ[self.variable] if self.variable else Path(str(self.file)).read_text().strip()
        except (KeyError, OSError, UnicodeDecodeError):
            found = ""
        if not found.startswith(("https://", "http://")):
            raise EctypeError(
                f"the webhook's address in {where}", "an address that begins with https:// or http://",
                "put the address there; it is never given on the command line",
            )  # fmt: skip
        return found


def post(webhook: Webhook, news: dict[str, Any], wait: Callable[[float], None] = time.sleep) -> str:
    """Send `news` as JSON; gives "" or, without the address, why it could not be sent."""
    fault = ""
    for attempt in range(_TRIES):
        try:
            request = urllib.request.Request(
                webhook.address(), json.dumps(news).encode(), {"Content-Type": "application/json"}, method="POST"
            )
            with urllib.request.urlopen(request, timeout=WEBHOOK_LIMIT_SECONDS):
                return ""
        except urllib.error.HTTPError as error:
            fault = f"HTTP status {error.code}"
        except EctypeError as error:
            return error.found
        except Exception as error:  # whatever it is, the run goes on; its text may hold the address
            fault = type(error).__name__
        if attempt + 1 < _TRIES:
            wait(float(attempt + 1))
    return fault


def append_event(path: Path, event: str, **what: Any) -> None:
    """Add one line to the log; a full disk loses the line and no more."""
    row = {"at": datetime.now(UTC).isoformat(timespec="seconds"), "event": event, **what}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(row) + "\n")
    except OSError:
        return


def read_events(path: Path) -> list[dict[str, Any]]:
    """The log's events; a line that a crash tore, or that somebody else wrote, is left out."""
    rows = []
    for line in path.read_bytes().splitlines() if path.is_file() else ():
        try:
            row = parse_json(line)
            json.dumps(row, allow_nan=False)  # what this program never wrote, and no JSON of its own can hold
        except ValueError:
            continue
        if isinstance(row, dict) and isinstance(row.get("event"), str):
            rows.append(row)
    return rows
