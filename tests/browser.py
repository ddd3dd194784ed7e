"""Drives Debian's chromium over its DevTools pipe; no package is needed."""

import base64
import json
import os
import shutil
import subprocess

CHROMIUM = shutil.which("chromium")
OFFLINE = {
  "offline": True, "latency": 0, "downloadThroughput": -1,
  "uploadThroughput": -1,
}  # fmt: skip


class Page:
  """A tab without a network, with all that its console says."""

  def __init__(self, profile):
    # Its pipe has file descriptors 3 (commands) and 4 (answers).
    script = 'exec "$@" 3<&0 4>&1 < /dev/null > /dev/null 2>&1'
    flags = (
      *("--headless=new", "--no-sandbox", "--disable-gpu"),
      *("--disable-dev-shm-usage", "--remote-debugging-pipe"),
      *("--hide-scrollbars", f"--user-data-dir={profile}", "about:blank"),
    )
    self._process = subprocess.Popen(
      ["sh", "-c", script, "sh", CHROMIUM, *flags],
      stdin=subprocess.PIPE,
      stdout=subprocess.PIPE,
      env={**os.environ, "HOME": str(profile)},
    )
    self._count, self._session = 0, None
    self._events = []
    targets = self.send("Target.getTargets")["targetInfos"]
    tab = next(t["targetId"] for t in targets if t["type"] == "page")
    attached = self.send("Target.attachToTarget", targetId=tab, flatten=True)
    self._session = attached["sessionId"]
    for domain in ("Page", "Runtime", "Log", "Network"):
      self.send(f"{domain}.enable")
    self.send("Network.emulateNetworkConditions", **OFFLINE)

  def __enter__(self):
    return self

  def __exit__(self, *unused):
    self._process.terminate()
    self._process.communicate()

  def send(self, method, **params):
    """Sends a command and returns its result."""
    self._count += 1
    message = {"id": self._count, "method": method, "params": params}
    if self._session:
      message["sessionId"] = self._session
    self._process.stdin.write(json.dumps(message).encode() + b"\0")
    self._process.stdin.flush()
    while True:
      found = self._read()
      if found.get("id") == self._count:
        assert "error" not in found, found
        return found["result"]
      self._events.append(found)

  def open(self, path, view=""):
    """Opens a page and waits until it is loaded."""
    self.send("Page.navigate", url="about:blank")
    self._events.clear()
    self.send("Page.navigate", url=path.as_uri() + view)
    self.wait("document.readyState === 'complete'")

  def wait(self, condition):
    """Waits until a condition holds, up to ten seconds."""
    code = (
      "new Promise((done) => { const end = Date.now() + 10000;"
      f" const ask = () => ({condition}) || Date.now() > end ?"
      f" done({condition}) : setTimeout(ask, 20); ask(); }})"
    )
    assert self.run(code), condition

  def run(self, code):
    """Returns the value of JavaScript."""
    found = self.send(
      "Runtime.evaluate", expression=code, returnByValue=True,
      awaitPromise=True, userGesture=True,
    )  # fmt: skip
    assert "exceptionDetails" not in found, found
    return found["result"].get("value")

  def click(self, selector):
    """Clicks in the middle of an element, as a mouse does."""
    x, y = self.run(
      f"(() => {{ const e = document.querySelector({json.dumps(selector)});"
      " e.scrollIntoView({block: 'center', behavior: 'instant'});"
      " const r = e.getBoundingClientRect();"
      " return [r.left + r.width / 2, r.top + r.height / 2]; })()"
    )
    for kind in ("mousePressed", "mouseReleased"):
      self.send(
        "Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left",
        clickCount=1,
      )  # fmt: skip

  def press(self, key, code):
    """Presses a key."""
    text = {"text": "\r"} if key == "Enter" else {}
    for kind in ("keyDown", "keyUp"):
      self.send(
        "Input.dispatchKeyEvent", type=kind, key=key, code=key,
        windowsVirtualKeyCode=code, **(text if kind == "keyDown" else {}),
      )  # fmt: skip

  def resize(self, width, height=900):
    """Gives the page another size; below 500 pixels it is a phone."""
    self.send(
      "Emulation.setDeviceMetricsOverride", width=width, height=height,
      deviceScaleFactor=1, mobile=width < 500,
    )  # fmt: skip

  def emulate(self, *, dark=False, media=""):
    """Prefers dark colours, or shows the page as it is printed."""
    scheme = {
      "name": "prefers-color-scheme", "value": "dark" if dark else "light"
    }  # fmt: skip
    self.send("Emulation.setEmulatedMedia", media=media, features=[scheme])

  def complaints(self):
    """Returns what console and log say of errors and warnings."""
    self.run("0")  # All that was said before is here now.
    said = []
    for event in self._events:
      method, params = event.get("method"), event.get("params", {})
      if method == "Runtime.exceptionThrown":
        said.append(params["exceptionDetails"])
      elif method == "Runtime.consoleAPICalled":
        said.append(params["args"])
      elif method == "Log.entryAdded":
        said.append(params["entry"])
    return said

  def requests(self):
    """Returns the addresses that were asked for."""
    return [
      e["params"]["request"]["url"]
      for e in self._events
      if e.get("method") == "Network.requestWillBeSent"
    ]

  def picture(self, *, whole=False):
    """Returns a screenshot, PNG."""
    found = self.send(
      "Page.captureScreenshot", format="png", captureBeyondViewport=whole
    )
    return base64.b64decode(found["data"])

  def pdf(self):
    """Returns the page as it is printed on A4."""
    found = self.send("Page.printToPDF", paperWidth=8.27, paperHeight=11.69)
    return base64.b64decode(found["data"])

  def _read(self):
    content = bytearray()
    while (byte := self._process.stdout.read(1)) != b"\0":
      if not byte:
        raise ConnectionError("chromium has gone")
      content += byte
    return json.loads(content)
