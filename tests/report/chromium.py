"""A headless Chromium that the tests talk to over a pipe, by its DevTools protocol; nothing but Chromium is needed."""

import base64
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--remote-debugging-pipe",
)  # fmt: skip
LIMIT_SECONDS = 60.0
_WATCHED = ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded")


@dataclass
class Page:
    """One tab."""

    to_browser: int
    from_browser: int
    session: str = ""
    number: int = 0
    pending: bytes = b""
    messages: list[str] = field(default_factory=list)
    """What the console, the log and uncaught exceptions said."""
    shown: tuple[Path, bool, int] | None = None
    requested: list[str] = field(default_factory=list)
    """Addresses that the page asked for."""

    def send(self, method: str, **params: Any) -> dict[str, Any]:
        """Call a method of the protocol and return its result; events that come before it are kept."""
        self.number += 1
        call: dict[str, Any] = {"id": self.number, "method": method, "params": params}
        if self.session:
            call["sessionId"] = self.session
        os.write(self.to_browser, json.dumps(call).encode() + b"\0")
        until = time.monotonic() + LIMIT_SECONDS
        while True:
            message = self._next(until)
            if message.get("id") == self.number:
                assert "error" not in message, message["error"]
                return message["result"]
            self._keep(message)

    def value(self, expression: str) -> Any:
        """The value of a JavaScript expression; a promise is awaited."""
        found = self.send("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def open(self, path: Path, *, dark: bool = False, width: int = 1280, again: bool = True) -> None:
        """Show a file and wait until its plots are drawn; without `again`, one that is shown as it is wanted stays."""
        if (shown := (path, dark, width)) == self.shown and not again:
            return
        self.messages.clear()
        self.requested.clear()
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        self.scheme(dark)
        self.shown = shown
        self.send("Page.navigate", url=path.as_uri())
        until = time.monotonic() + LIMIT_SECONDS
        while not self.value("document.documentElement?.dataset.drawn ?? ''"):
            assert time.monotonic() < until, f"no plot was drawn: {self.messages}"
            time.sleep(0.05)

    def scheme(self, dark: bool) -> None:
        """Prefer light or dark."""
        self.shown = None
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.send("Emulation.setEmulatedMedia", features=[scheme])

    def press(self, key: str, text: str = "") -> None:
        """Press and release a key; `text` is what it types."""
        codes = {"Tab": 9, "Enter": 13, " ": 32}
        common: dict[str, Any] = {"key": key, "windowsVirtualKeyCode": codes.get(key, 0)}
        self.send("Input.dispatchKeyEvent", type="keyDown", text=text, **common)
        self.send("Input.dispatchKeyEvent", type="keyUp", **common)

    def pdf(self) -> bytes:
        """The page as it prints."""
        return base64.b64decode(self.send("Page.printToPDF", printBackground=True)["data"])

    def _next(self, until: float) -> dict[str, Any]:
        while b"\0" not in self.pending:
            ready, _, _ = select.select([self.from_browser], [], [], max(0.0, until - time.monotonic()))
            assert ready, "Chromium does not answer"
            self.pending += os.read(self.from_browser, 1 << 20)
        message, _, self.pending = self.pending.partition(b"\0")
        return json.loads(message)

    def _keep(self, message: dict[str, Any]) -> None:
        method = message.get("method", "")
        if method in _WATCHED:
            self.messages.append(json.dumps(message["params"])[:2000])
        if method == "Network.requestWillBeSent":
            self.requested.append(message["params"]["request"]["url"][:200])


def find_chromium() -> str | None:
    """Path of a Chromium; None without one."""
    return next((path for path in map(shutil.which, NAMES) if path), None)


@contextmanager
def chromium_page(executable: str, profile: Path) -> Iterator[Page]:
    """A tab of a Chromium of its own, which ends with the block."""
    browser_reads, we_write = os.pipe()
    we_read, browser_writes = os.pipe()
    # The protocol's pipes are the descriptors 3 and 4; a shell puts them there without touching this process's own.
    command = f'exec "$0" "$@" 3<&{browser_reads} 4>&{browser_writes}'
    arguments = ["bash", "-c", command, executable, *FLAGS, f"--user-data-dir={profile}"]
    process = subprocess.Popen(
        arguments, pass_fds=(browser_reads, browser_writes), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    os.close(browser_reads)
    os.close(browser_writes)
    try:
        page = Page(we_write, we_read)
        target = page.send("Target.createTarget", url="about:blank")["targetId"]
        page.session = page.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Runtime", "Log", "Page", "Network"):
            page.send(f"{domain}.enable")
        yield page
    finally:
        process.kill()
        process.wait()
        os.close(we_write)
        os.close(we_read)
