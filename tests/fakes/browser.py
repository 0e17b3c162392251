"""A headless Chromium for the tests of pages, with what it logs and requests."""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --disable-dev-shm-usage --hide-scrollbars"
)
AXE = Path(__file__).with_name("axe.min.js")


class Browser:
    """A window, and what happened in it."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver

    def open(self, address: str, width: int = 1280, height: int = 900, dark: bool = False) -> None:
        self.size(width, height, dark)
        self.driver.get(address)

    def size(self, width: int, height: int = 900, dark: bool = False) -> None:
        """Set the size of the page, which a window's frame would bound from below."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})

    def run(self, script: str, *arguments: Any) -> Any:
        return self.driver.execute_script(script, *arguments)

    def text(self, selector: str = "body") -> str:
        return str(self.run("return document.querySelector(arguments[0])?.innerText ?? ''", selector))

    def wait(self, condition: str, *arguments: Any, seconds: float = 30) -> Any:
        """Wait until the expression is true; returns its value."""
        from selenium.common.exceptions import TimeoutException
        from selenium.webdriver.support.ui import WebDriverWait

        try:
            wait = WebDriverWait(self.driver, seconds, poll_frequency=0.05)
            return wait.until(lambda _: self.run(f"return {condition}", *arguments))
        except TimeoutException:
            raise AssertionError(f"not in {seconds:g} s: {condition} {arguments}\n{self.text()[:3000]}") from None

    def see(self, *words: str, seconds: float = 30) -> None:
        for word in words:
            self.wait("document.body.innerText.includes(arguments[0])", word, seconds=seconds)

    def click(self, selector: str) -> None:
        self.wait("document.querySelector(arguments[0]) !== null", selector)
        self.run("document.querySelector(arguments[0]).click()", selector)

    def keys(self, *keys: str) -> None:
        from selenium.webdriver.common.action_chains import ActionChains

        ActionChains(self.driver).send_keys(*keys).perform()

    def go(self, fragment: str) -> None:
        self.run("location.hash = arguments[0]", fragment)

    def messages(self) -> list[str]:
        """Return what the console has got since the last call."""
        return [entry["message"] for entry in self.driver.get_log("browser")]

    def requests(self) -> list[str]:
        """Return the addresses that the page asked for since the last call, without the browser's own."""
        events = [json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")]
        sent = [each["params"] for each in events if each["method"] == "Network.requestWillBeSent"]
        return [each["request"]["url"] for each in sent if not each["documentURL"].startswith("chrome")]

    def serious(self) -> list[str]:
        """Return what axe-core finds that is serious or critical, a line each."""
        if not self.run("return typeof axe !== 'undefined'"):
            self.driver.execute_cdp_cmd("Runtime.evaluate", {"expression": AXE.read_text("utf-8")})
        done = "const end = arguments[0]; axe.run().then((found) => end(found.violations), (e) => end([String(e)]))"
        found = self.driver.execute_async_script(done)
        bad = [each for each in found if isinstance(each, str) or each["impact"] in ("serious", "critical")]
        return [each if isinstance(each, str) else f"{each['id']}: {each['nodes'][0]['html'][:200]}" for each in bad]

    def overflows(self) -> bool:
        """Return whether the page is wider than its window."""
        return bool(self.run("return document.documentElement.scrollWidth > innerWidth"))


@contextmanager
def browser(profile: Path) -> Iterator[Browser]:
    """A browser with a new profile; the test is skipped where there is none."""
    if CHROMIUM is None or DRIVER is None:
        pytest.skip("chromium and chromedriver are not installed")
    pytest.importorskip("selenium", reason="selenium is not installed; make test installs it")
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in (*FLAGS.split(), f"--user-data-dir={profile}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options, Service(DRIVER))
    driver.set_script_timeout(60)
    try:
        yield Browser(driver)
    finally:
        driver.quit()
