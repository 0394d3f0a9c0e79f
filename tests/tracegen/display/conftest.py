"""A page in a browser, and the helper of these tests importable by name."""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

collect_ignore = ["sample_pages.py"]
sys.path.insert(0, str(Path(__file__).parent))

WANTED = (
    "a report is tested in a browser where there are Debian's chromium and chromium-driver and "
    "Python's selenium, and no limit of virtual memory (ulimit -v)"
)


class Browser:
    """Chromium without a window, and what these tests ask of it.

    Parameters
    ----------
    driver
        Of selenium.
    folder
        Where pages are put.
    """

    def __init__(self, driver: Any, folder: Path) -> None:
        self.driver = driver
        self._folder = folder
        self._count = 0

    def put(self, written: str) -> str:
        """Write a page into a file; returns its address."""
        self._count += 1
        path = self._folder / f"{self._count}.html"
        path.write_text(written, encoding="utf-8")
        return path.as_uri()

    def open(self, address: str, *, wide: int = 1200, theme: str = "light") -> None:
        """Show a page anew, as wide as is said, to eyes that prefer a theme."""
        self.tell("Emulation.setDeviceMetricsOverride", width=wide, height=900, deviceScaleFactor=1, mobile=False)
        self.media(theme=theme)
        self.driver.get("about:blank")
        self.messages()
        self.driver.get(address)

    def unfold(self) -> None:
        """Open all that is folded, as one who clicks on each heading."""
        self.driver.execute_script("for (const one of document.querySelectorAll('details.section')) one.open = true")

    def media(self, kind: str = "screen", theme: str = "light") -> None:
        """Show it on a screen or on paper."""
        features = [{"name": "prefers-color-scheme", "value": theme}]
        self.tell("Emulation.setEmulatedMedia", media=kind, features=features)

    def tell(self, command: str, **values: Any) -> Any:
        """Send a command of Chromium's own protocol."""
        return self.driver.execute_cdp_cmd(command, values)

    def ask(self, script: str, *arguments: Any) -> Any:
        """Value of an expression of JavaScript."""
        return self.driver.execute_script(f"return ({script})", *arguments)

    def wait(self, script: str, seconds: float = 60) -> None:
        """Wait until an expression of JavaScript is true; fails where it does not get so."""
        from selenium.webdriver.support.ui import WebDriverWait

        WebDriverWait(self, seconds).until(lambda page: page.ask(script), script)

    def find(self, selector: str) -> Any:
        """First element that a selector finds."""
        return self.driver.find_element("css selector", selector)

    def all(self, selector: str) -> list[Any]:
        """All elements that a selector finds."""
        return self.driver.find_elements("css selector", selector)

    def messages(self) -> list[str]:
        """What the console said since it was asked last."""
        return [entry["message"] for entry in self.driver.get_log("browser")]

    def requests(self) -> list[str]:
        """Addresses that were asked for since it was asked last."""
        events = [json.loads(one["message"])["message"] for one in self.driver.get_log("performance")]
        return [event["params"]["request"]["url"] for event in events if event["method"] == "Network.requestWillBeSent"]

    def printed(self) -> int:
        """Print the page; returns how many sheets it takes."""
        paper = base64.b64decode(self.driver.print_page())
        assert paper.startswith(b"%PDF")
        return len(re.findall(rb"/Type\s*/Page\b", paper))


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    try:
        driver = _start()
    except Exception as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(f"{WANTED}: {str(error).splitlines()[0]}")
    yield Browser(driver, tmp_path_factory.mktemp("pages"))
    driver.quit()


def _start() -> Any:
    from selenium import webdriver

    program, service = shutil.which("chromium"), shutil.which("chromedriver")
    if program is None or service is None:
        raise FileNotFoundError("chromium" if program is None else "chromedriver")
    options = webdriver.ChromeOptions()
    options.binary_location = program
    # Within a container there is neither a sandbox of its own nor much shared memory.
    for one in ("headless=new", "no-sandbox", "disable-gpu", "disable-dev-shm-usage"):
        options.add_argument(f"--{one}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    return webdriver.Chrome(options=options, service=webdriver.ChromeService(service))
