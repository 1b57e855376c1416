"""Chromium without a window, driven over the DevTools protocol on a pair of pipes: no port, no
extra package. Bounded in time, and only the process started here is ended."""

import base64
import json
import os
import select
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
PATIENCE = 30.0
"""Seconds that any answer may take."""

FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--disable-dev-shm-usage", "--hide-scrollbars", "--remote-debugging-pipe"),
)


class Browser:
    """One page. Events are kept in the order they came."""

    def __init__(self, write: int, read: int) -> None:
        self._write, self._read = write, read
        self._buffer = b""
        self._number = 0
        self._session: str | None = None
        self.events: list[dict[str, Any]] = []

    def attach(self) -> None:
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        answer = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = answer["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        found = self._until(lambda heard: heard.get("id") == self._number)
        if "error" in found:
            raise RuntimeError(f"{method}: {found['error']}")
        return found["result"]

    def open(self, file: Path, width: int, *, media: str = "light") -> None:
        """Show a file in a window of `width` CSS pixels; `media` is light, dark or print."""
        self.events.clear()
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        self.call("Emulation.setDeviceMetricsOverride", **size)
        scheme = "light" if media == "print" else media
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        kind = "print" if media == "print" else "screen"
        self.call("Emulation.setEmulatedMedia", media=kind, features=features)
        self.call("Page.navigate", url=file.as_uri())
        if not self.named("Page.loadEventFired"):
            self._until(lambda heard: heard.get("method") == "Page.loadEventFired")

    def value(self, expression: str) -> Any:
        found = self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        if "exceptionDetails" in found:
            raise RuntimeError(found["exceptionDetails"]["text"])
        return found["result"].get("value")

    def press(self, key: str) -> None:
        for kind in ("keyDown", "keyUp"):
            code = 9 if key == "Tab" else 13
            text = {"text": "\r"} if key == "Enter" and kind == "keyDown" else {}
            self.call(
                "Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=code, **text
            )

    def picture(self, file: Path) -> None:
        """The whole page, as PNG."""
        found = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        file.write_bytes(base64.b64decode(found["data"]))

    def named(self, method: str) -> list[dict[str, Any]]:
        return [event["params"] for event in self.events if event["method"] == method]

    def complaints(self) -> list[str]:
        """Errors and warnings of the console, among them what the page's policy refused."""
        thrown = [
            found["exceptionDetails"]["text"] for found in self.named("Runtime.exceptionThrown")
        ]
        logged = [found["entry"]["text"] for found in self.named("Log.entryAdded")]
        said = [str(found["args"]) for found in self.named("Runtime.consoleAPICalled")]
        return thrown + logged + said

    def requests(self) -> list[str]:
        """Addresses of everything that was asked for, the page itself apart."""
        found = [event["request"]["url"] for event in self.named("Network.requestWillBeSent")]
        return [url for url in found if not url.startswith("file://")]

    def _until(self, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        deadline = time.monotonic() + PATIENCE
        while True:
            heard = self._next(deadline)
            if "method" in heard:
                self.events.append(heard)
            if wanted(heard):
                return heard

    def _next(self, deadline: float) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._read], [], [], max(0, deadline - time.monotonic()))
            chunk = os.read(self._read, 1 << 20) if ready else b""
            if not chunk:
                raise TimeoutError("the browser does not answer")
            self._buffer += chunk
        message, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(message)


@contextmanager
def browser() -> Iterator[Browser]:
    """A running browser with one empty page."""
    assert CHROMIUM, "look at CHROMIUM before asking for a browser"
    child_reads, we_write = os.pipe()
    we_read, child_writes = os.pipe()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        command = " ".join([CHROMIUM, *FLAGS, f"--user-data-dir={profile}", "about:blank"])
        process = subprocess.Popen(
            ["/bin/bash", "-c", f"exec {command} 3<&{child_reads} 4>&{child_writes}"],
            pass_fds=(child_reads, child_writes),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.close(child_reads)
        os.close(child_writes)
        try:
            found = Browser(we_write, we_read)
            found.attach()
            yield found
        finally:
            os.close(we_write)
            os.close(we_read)
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
