"""A real browser for tests: Debian's Chromium, driven through Playwright."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import Browser, Page, sync_playwright

CHROMIUM = shutil.which("chromium")
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


@contextmanager
def chromium(*flags: str) -> Iterator[Browser]:
    """A browser with a profile of its own, which ends with the context."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM,
            args=[*FLAGS, *flags],
            env={k: v for k, v in os.environ.items() if "proxy" not in k.lower()},
        )
        try:
            yield browser
        finally:
            browser.close()


class Complaints(list[str]):
    """What a page complained of: errors of its scripts, and what its own policy kept it from."""

    def __init__(self, page: Page) -> None:
        super().__init__()
        page.on("pageerror", lambda error: self.append(str(error)))
        page.on("console", lambda said: self.append(said.text) if "Content Security Policy" in said.text else None)
