"""A real headless Chromium, driven through its debugging pipe: no other package is needed.

`Browser.find()` is None where there is no Chromium (Debian: `apt-get install chromium`).
"""

import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
WHY_NOT = "there is no Chromium on this machine; install the Debian package chromium"
# Seconds after which a silent browser is given up.
PATIENCE = 60


class Browser:
    """One page in a headless browser; `errors` is what its console complained of."""

    def __init__(self, width=1200, height=900, dark=False, phone=False):
        self.folder = tempfile.mkdtemp(prefix="fedkin-chromium-")
        to_browser, self._write = os.pipe()
        self._read, from_browser = os.pipe()
        flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
        flags += ["--remote-debugging-pipe", "--no-first-run", "--disable-extensions"]
        flags += ["--disable-dev-shm-usage", "--disable-background-networking", "--disable-sync"]
        flags += ["--disable-component-update", "--disable-quic"]
        flags += [f"--user-data-dir={self.folder}", "about:blank"]

        # The pipe is read from descriptor 3 and written to descriptor 4. A shell puts them there:
        # Python code between fork and exec is not safe beside threads.
        command = f'exec "$0" "$@" 3<&{to_browser} 4>&{from_browser}'
        self.process = subprocess.Popen(
            ["/bin/bash", "-c", command, self.find(), *flags],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=(to_browser, from_browser),
        )
        os.close(to_browser)
        os.close(from_browser)
        self._number, self._rest, self.errors, self._session = 0, b"", [], None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for area in ("Page", "Runtime", "Log"):
            self.call(f"{area}.enable")
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": phone}
        self.call("Emulation.setDeviceMetricsOverride", **size)
        self.scheme(dark)

    @staticmethod
    def find():
        return next(filter(None, map(shutil.which, NAMES)), None)

    def scheme(self, dark):
        feature = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[feature])

    def call(self, method, **parameters):
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        return self._until(lambda told: told.get("id") == self._number)["result"]

    def _until(self, wanted):
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            while b"\0" in self._rest:
                raw, self._rest = self._rest.split(b"\0", 1)
                told = json.loads(raw)
                if "error" in told:
                    raise RuntimeError(told["error"])
                self._note(told)
                if wanted(told):
                    return told
            if select.select([self._read], [], [], 1)[0]:
                self._rest += os.read(self._read, 1 << 20)
        raise TimeoutError("the browser does not answer")

    def _note(self, told):
        if told.get("method") == "Runtime.exceptionThrown":
            self.errors.append(told["params"]["exceptionDetails"]["exception"].get("description"))
        if told.get("method") == "Log.entryAdded" and told["params"]["entry"]["level"] == "error":
            self.errors.append(told["params"]["entry"]["text"])
        if told.get("method") == "Runtime.consoleAPICalled" and told["params"]["type"] == "error":
            self.errors.append(str(told["params"]["args"]))

    def open(self, path):
        self.call("Page.navigate", url=Path(path).resolve().as_uri())
        for _ in range(200):
            if self.js("document.documentElement?.dataset.ready") == "yes":
                return self
            time.sleep(0.05)
        raise TimeoutError(f"the page is not ready: {self.errors}")

    def js(self, expression):
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(answer["exceptionDetails"])
        return answer["result"].get("value")

    def hover(self, selector):
        place = self.js(
            f"(() => {{ const n = document.querySelector({selector!r}); "
            "n.scrollIntoView({block: 'center', behavior: 'instant'}); "
            "const b = n.getBoundingClientRect(); "
            "return [b.left + b.width / 2, b.top + b.height / 2]; })()"
        )
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=place[0], y=place[1])

    def screenshot(self, path, whole=True):
        clip = {}
        if whole:
            size = self.call("Page.getLayoutMetrics")["cssContentSize"]
            area = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
            clip = {"clip": area, "captureBeyondViewport": True}
        data = self.call("Page.captureScreenshot", format="png", **clip)["data"]
        Path(path).write_bytes(base64.b64decode(data))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(10)
        os.close(self._write)
        os.close(self._read)
        shutil.rmtree(self.folder, ignore_errors=True)
