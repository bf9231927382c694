"""Chromium, used as a person does: keys are pressed, windows have any size, colours are of both
schemes."""

from __future__ import annotations

import json
import os
import select
import shlex
import subprocess
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any

_FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars")
_CODES = {"Tab": 9, "Enter": 13, "Escape": 27, "End": 35, "Home": 36}
_CODES |= {"ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40}


class Browser:
    """One tab of a headless Chromium. ``complaints``: errors and warnings of its console."""

    def __init__(self, profile: Path) -> None:
        self.complaints: list[str] = []
        self._events: list[str] = []
        self._count, self._session, self._unread = 0, "", b""
        with ExitStack() as stack:  # the browser reads commands from 3, and answers on 4
            theirs, self._out = os.pipe()
            self._in, ours = os.pipe()
            stack.callback(os.close, theirs)
            stack.callback(os.close, ours)
            words = ["chromium", *_FLAGS, "--remote-debugging-pipe", f"--user-data-dir={profile}"]
            line = f"exec {shlex.join(words)} 3<&{theirs} 4>&{ours}"
            self._process = subprocess.Popen(
                ["bash", "-c", line],
                pass_fds=(theirs, ours),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)[
            "sessionId"
        ]
        for domain in ("Page", "Runtime", "Log"):
            self._call(f"{domain}.enable")

    def __enter__(self) -> Browser:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        os.close(self._out)  # it ends
        try:
            self._process.wait(20)
        finally:
            self._process.kill()
            os.close(self._in)

    def open(self, page: Path, width: int, height: int = 900, *, dark: bool = False) -> None:
        """Shows a file in a window of this size, in light or dark colours."""
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._call("Emulation.setEmulatedMedia", features=[scheme])
        self._call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )
        self.complaints.clear()
        self._events.clear()
        self._call("Page.navigate", url=page.as_uri())
        while "Page.loadEventFired" not in self._events:
            self._hear(self._read())

    def evaluate(self, code: str) -> Any:
        """Returns the value of an expression in the page."""
        done = self._call("Runtime.evaluate", expression=code, returnByValue=True)
        assert "exceptionDetails" not in done, done["exceptionDetails"]
        return done["result"].get("value")

    def press(self, key: str, *, shift: bool = False) -> None:
        """Presses a key and releases it."""
        code = _CODES.get(key, ord(key.upper()) if len(key) == 1 else 0)
        text = {"Enter": "\r"}.get(key, key if len(key) == 1 else "")
        common = {"key": key, "windowsVirtualKeyCode": code, "modifiers": 8 * shift}
        self._call("Input.dispatchKeyEvent", type="keyDown", text=text, **common)
        self._call("Input.dispatchKeyEvent", type="keyUp", **common)

    def _call(self, method: str, **params: Any) -> dict[str, Any]:
        self._count += 1
        message = {"id": self._count, "method": method, "params": params}
        message |= {"sessionId": self._session} if self._session else {}
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while (answer := self._read()).get("id") != self._count:
            self._hear(answer)
        assert "error" not in answer, (method, answer["error"])
        result: dict[str, Any] = answer["result"]
        return result

    def _hear(self, event: dict[str, Any]) -> None:
        method, told = event["method"], event["params"]
        self._events.append(method)
        if method == "Runtime.exceptionThrown":
            self.complaints.append(told["exceptionDetails"]["text"])
        elif method == "Log.entryAdded" and told["entry"]["level"] in ("error", "warning"):
            self.complaints.append(told["entry"]["text"])
        elif method == "Runtime.consoleAPICalled" and told["type"] in ("error", "warning"):
            self.complaints.append(str(told["args"]))

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._unread:
            ready, _, _ = select.select([self._in], [], [], 120)
            assert ready, "the browser does not answer"
            part = os.read(self._in, 1 << 20)
            assert part, "the browser ended"
            self._unread += part
        message, _, self._unread = self._unread.partition(b"\0")
        result: dict[str, Any] = json.loads(message)
        return result
