"""Chromium without a window, driven over the DevTools protocol through a pair of pipes.

The distribution's `chromium` is enough: no driver, no download, no port. Messages are JSON, each ended by a
zero byte (`--remote-debugging-pipe`: the browser reads descriptor 3 and writes descriptor 4).
"""

import base64
import itertools
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
SECONDS = 60.0


def found():
    """The browser's program, None where there is none."""
    return next(filter(None, map(shutil.which, NAMES)), None)


class Browser:
    """One page at a time; `said` holds what the console was told, `asked` what the page asked for."""

    def __init__(self, program, profile):
        there, back = os.pipe(), os.pipe()
        flags = [
            "--headless=new", "--remote-debugging-pipe", "--no-sandbox", "--disable-gpu", "--no-first-run",
            "--disable-dev-shm-usage", "--disable-background-networking", "--disable-component-update",
            "--host-resolver-rules=MAP * ~NOTFOUND", f"--user-data-dir={profile}", "about:blank",
        ]  # fmt: skip
        joined = f'exec "$0" "$@" 3<&{there[0]} 4>&{back[1]}'
        self.process = subprocess.Popen(
            ["bash", "-c", joined, program, *flags],
            pass_fds=(there[0], back[1]),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(there[0]), os.close(back[1])
        self.write, self.read = there[1], back[0]
        self.numbers, self.buffer, self.session = itertools.count(1), b"", None
        self.said, self.asked, self.loaded = [], [], False
        (target,) = [t for t in self.call("Target.getTargets")["targetInfos"] if t["type"] == "page"]
        attached = self.call("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        self.session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def close(self):
        self.process.kill()
        self.process.wait()
        os.close(self.write), os.close(self.read)

    def call(self, method, **parameters):
        number = next(self.numbers)
        message = {"id": number, "method": method, "params": parameters}
        if self.session is not None:
            message["sessionId"] = self.session
        os.write(self.write, json.dumps(message).encode() + b"\0")
        while (answer := self._next()).get("id") != number:
            pass
        assert "error" not in answer, answer
        return answer["result"]

    def _next(self):
        until = time.monotonic() + SECONDS
        while b"\0" not in self.buffer:
            ready, _, _ = select.select([self.read], [], [], max(0.0, until - time.monotonic()))
            more = os.read(self.read, 1 << 20) if ready else b""
            assert more, "the browser says nothing more"
            self.buffer += more
        whole, _, self.buffer = self.buffer.partition(b"\0")
        message = json.loads(whole)
        method, about = message.get("method"), message.get("params", {})
        if method in ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded"):
            self.said.append(about)
        if method == "Network.requestWillBeSent":
            self.asked.append(about["request"]["url"])
        self.loaded |= method == "Page.loadEventFired"
        return message

    def open(self, path, *, width=1440, height=900, dark=False, media="screen"):
        """Load a file as on a screen of this size, or on paper."""
        self.said, self.asked, self.loaded = [], [], False
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.call("Emulation.setDeviceMetricsOverride", **size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", media=media, features=[scheme])
        self.call("Page.navigate", url=Path(path).resolve().as_uri())
        while not self.loaded:
            self._next()

    def evaluate(self, script):
        """What a script of the tests gives, in the page; the page itself may run none."""
        found = self.call("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def screenshot(self, path):
        shot = self.call("Page.captureScreenshot", captureBeyondViewport=True)
        Path(path).write_bytes(base64.b64decode(shot["data"]))

    def pdf(self):
        options = {"printBackground": False, "paperWidth": 8.27, "paperHeight": 11.69}
        return base64.b64decode(self.call("Page.printToPDF", **options)["data"])
