#!/usr/bin/env python3
"""Opens reports in a headless Chromium, on a screen of 1280 pixels and on one of 400.

    browser.py [--shots FOLDER] PAGE...    --shots keeps a picture of each page

A page is in order if it loads without an error or a message in the console, and asks for no other file or host. The verdict and the
picture have to be visible, with all of the picture's words inside it, and the page must not be wider than the screen.
The exit status is 1 if a page is not in order, and 77 if there is no Chromium here.
"""

import argparse
import base64
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

PROGRAMS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
WIDTHS = (1280, 400)
# A browser that does not answer in this time has failed.
LIMIT_S = 60
# Events of the browser that a page without scripts and links never causes.
TROUBLE = {"Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded", "Network.loadingFailed"}

# What the page shows; a list of what is wrong.
LOOK = """(() => {
    const wrong = [], size = (what, one) => {
        const box = one && one.getBoundingClientRect();
        if (!box || box.width < 1 || box.height < 1) wrong.push(what + " is not visible");
        return box;
    };
    const root = document.scrollingElement;
    if (root.scrollWidth > root.clientWidth) wrong.push(`the page is ${root.scrollWidth} pixels wide`);
    const verdict = document.querySelector("p strong"), title = document.querySelector("h1");
    size("the title", title);
    size("the verdict", verdict);
    const pictures = [...document.querySelectorAll("svg")];
    if (!pictures.length) wrong.push("there is no picture");
    for (const picture of pictures) {
        const around = size("a picture", picture);
        if (!picture.querySelector("circle")) wrong.push("a picture shows no ratio");
        for (const one of picture.querySelectorAll("text, line, circle")) {
            const box = one.getBoundingClientRect();
            const isInside = box.left >= around.left - 1 && box.right <= around.right + 1 && box.bottom <= around.bottom + 1;
            if (!isInside) wrong.push(`outside of the picture: ${one.textContent || one.tagName}`);
        }
        if (verdict && !picture.textContent.includes(verdict.textContent.trim().replace(/[.]$/, "").slice(0, 60)))
            wrong.push("the picture does not have the verdict");
    }
    for (const one of document.querySelectorAll("body *"))
        if (!one.closest(".wide") && one.getBoundingClientRect().right > root.clientWidth + 1)
            wrong.push(`wider than the screen: ${one.tagName} ${one.textContent.slice(0, 40)}`);
    return wrong;
})()"""


class Browser:
    """Chromium, driven over two pipes: messages are JSON objects with a zero byte after each."""

    def __init__(self, program: str, profile: str) -> None:
        commands, self.commands = os.pipe()
        self.events, events = os.pipe()
        # It reads from descriptor 3 and writes to 4. The sandbox needs rights that root in a container has not.
        start = f'exec "$0" "$@" 3<&{commands} 4>&{events}'
        options = ["--headless", "--remote-debugging-pipe", "--no-sandbox", "--disable-gpu", f"--user-data-dir={profile}"]
        self.process = subprocess.Popen(
            ["bash", "-c", start, program, *options], pass_fds=(commands, events), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        os.close(commands)
        os.close(events)
        self.number, self.rest = 0, b""
        self.heard: list[dict[str, Any]] = []

    def receive(self, end: float) -> dict[str, Any]:
        while b"\0" not in self.rest:
            if time.monotonic() > end or not (more := os.read(self.events, 1 << 16)):
                raise TimeoutError("the browser does not answer")
            self.rest += more
        text, self.rest = self.rest.split(b"\0", 1)
        message: dict[str, Any] = json.loads(text)
        return message

    def call(self, method: str, session: str | None = None, **parameters: Any) -> dict[str, Any]:
        """The answer; events that come before it are kept."""
        self.number += 1
        message: dict[str, Any] = {"id": self.number, "method": method, "params": parameters}
        if session:
            message["sessionId"] = session
        os.write(self.commands, json.dumps(message).encode() + b"\0")
        end = time.monotonic() + LIMIT_S
        while (answer := self.receive(end)).get("id") != self.number:
            self.heard.append(answer)
        if "error" in answer:
            raise ValueError(f"{method}: {answer['error']['message']}")
        result: dict[str, Any] = answer["result"]
        return result

    def until(self, method: str) -> None:
        end = time.monotonic() + LIMIT_S
        while all(event.get("method") != method for event in self.heard):
            self.heard.append(self.receive(end))

    def close(self) -> None:
        self.process.kill()
        self.process.wait()


def look(browser: Browser, page: Path, width: int, shot: Path | None) -> list[str]:
    """What is wrong with the page on a screen of so many pixels."""
    target = browser.call("Target.createTarget", url="about:blank")["targetId"]
    session = browser.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
    for domain in ("Page", "Runtime", "Log", "Network"):
        browser.call(f"{domain}.enable", session)
    browser.call("Emulation.setDeviceMetricsOverride", session, width=width, height=900, deviceScaleFactor=1, mobile=False)
    browser.heard.clear()
    address = page.resolve().as_uri()
    browser.call("Page.navigate", session, url=address)
    browser.until("Page.loadEventFired")
    found = browser.call("Runtime.evaluate", session, expression=LOOK, returnByValue=True)
    wrong: list[str] = found["result"].get("value", [str(found)])
    for event in browser.heard:
        if event.get("method") in TROUBLE:
            wrong.append(f"{event['method']}: {json.dumps(event['params'])[:200]}")
        if event.get("method") == "Network.requestWillBeSent" and (url := event["params"]["request"]["url"]) != address:
            wrong.append(f"it asks for {url}")
    if shot:
        picture = browser.call("Page.captureScreenshot", session, captureBeyondViewport=True)["data"]
        shot.write_bytes(base64.b64decode(picture))
    browser.call("Target.closeTarget", targetId=target)
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pages", nargs="+", type=Path, metavar="PAGE")
    parser.add_argument("--shots", type=Path, metavar="FOLDER")
    chosen = parser.parse_args()
    program = next(filter(None, map(shutil.which, PROGRAMS)), None)
    if not program:
        print(f"skipped: no browser ({', '.join(PROGRAMS)})")
        return 77
    if chosen.shots:
        chosen.shots.mkdir(parents=True, exist_ok=True)
    count = 0
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        browser = Browser(program, profile)
        try:
            for number, page in enumerate(chosen.pages):
                for width in WIDTHS:
                    shot = chosen.shots / f"{number}-{width}.png" if chosen.shots else None
                    for words in look(browser, page, width, shot):
                        print(f"{page}, {width} pixels: {words}")
                        count += 1
        finally:
            browser.close()
    print(f"{len(chosen.pages)} pages on screens of {WIDTHS[0]} and {WIDTHS[1]} pixels: {count} faults")
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main())
