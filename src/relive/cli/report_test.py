"""The page of a report loads nothing, and runs nothing from the file; tested in a browser if one is installed."""

import base64
import html.parser
import io
import json
import os
import pathlib
import select
import shutil
import subprocess
from typing import Any

from matplotlib import image
import numpy as np
import pytest

import relive
from relive.cli import contents
from relive.cli import report
from relive.cli import saved_examples_test as examples
from relive.persistence import inspect

_VOID = {"meta", "link", "img", "br", "hr"}
_SOURCE = "data:image/png;base64,"
_EVIL = "<script>document.title='owned'</script><img src=http://127.0.0.1:9/x onerror=alert(1)>\"'&"


class Page(html.parser.HTMLParser):
    """The elements of a page; fails if they are not closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in _VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data

    def of(self, tag: str) -> list[dict[str, str | None]]:
        """Return the attributes of all elements of a kind."""
        return [attributes for name, attributes in self.elements if name == tag]


def looked_at(path: pathlib.Path) -> tuple[dict[str, Any], Any]:
    examined = inspect.examine(str(path))
    return examined.summary(), examined.buffer


@pytest.fixture
def saved(tmp_path: pathlib.Path) -> pathlib.Path:
    examples.prioritized().save(tmp_path / "buffer")
    return tmp_path / "buffer"


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Any]:
    """The contents of a buffer with everything that a report can show."""
    path = tmp_path_factory.mktemp("report") / "buffer"
    examples.prioritized().save(path)
    return looked_at(path)


@pytest.fixture(scope="module")
def page(found: tuple[dict[str, Any], Any]) -> Page:
    return Page(report.page(*found))


def test_the_page_has_all_charts_frames_and_tables(page: Page) -> None:
    for title in (
        "Episode lengths",
        "Returns over time",
        "Rewards",
        "Priorities",
        "Times sampled",
        "Times sampled by age",
        "Priorities by age",
        "Sample frames",
        "Overview",
        "Distributions",
        "Statistics",
        "Settings",
        "Files",
    ):
        assert title in page.text
    images = page.of("img")
    assert len(images) == 7 + 6
    for attributes in images:
        source = attributes["src"] or ""
        assert attributes["alt"]
        assert image.imread(io.BytesIO(base64.b64decode(source.removeprefix(_SOURCE)))).size


def test_frames_are_the_pixels_of_the_observations(found: tuple[dict[str, Any], Any], page: Page) -> None:
    sources = [attributes["src"] or "" for attributes in page.of("img")][-6:]
    for source, (_, frame) in zip(sources, contents.images(found[1], 6), strict=True):
        pixels = image.imread(io.BytesIO(base64.b64decode(source.removeprefix(_SOURCE))))
        assert (np.rint(pixels[..., :3] * 255) == frame).all()


def test_nothing_comes_from_outside_and_no_script_may_run(page: Page) -> None:
    for _, attributes in page.elements:
        for name in ("src", "href", "srcset", "action", "data"):
            assert (attributes.get(name) or "data:").startswith("data:")
        assert not any(name.startswith("on") for name in attributes)
    assert page.of("script") == []
    (policy,) = [each["content"] or "" for each in page.of("meta") if "http-equiv" in each]
    assert policy.startswith("default-src 'none'; ")
    assert "script" not in policy


def forged(path: pathlib.Path) -> tuple[dict[str, Any], Any]:
    """Return the contents of a checkpoint with markup in every text."""
    settings: dict[str, Any] = {"capacity": 10, _EVIL: _EVIL, "limiter": {"kind": _EVIL, _EVIL: _EVIL}}
    settings["schema"] = [[_EVIL, _EVIL, [_EVIL]]]
    counters = {_EVIL: 3}
    generator = {"bit_generator": _EVIL}
    examples.forge(path, settings=settings, counters=counters, generator=generator, **{"class": _EVIL})
    return looked_at(path)


def test_markup_in_a_file_is_text(saved: pathlib.Path) -> None:
    found = forged(saved)
    assert (found[0]["class"], found[0]["faults"]) == (_EVIL, [])
    page = Page(report.page(*found))
    assert page.of("script") == []
    assert all((attributes["src"] or "").startswith(_SOURCE) for attributes in page.of("img"))
    assert page.text.count(_EVIL) > 6


def test_markup_in_names_of_observations_is_text(tmp_path: pathlib.Path) -> None:
    buffer = relive.EpisodeReplayBuffer[Any, Any](seed=0)
    episode_id = buffer.start_episode_nowait("agent")
    buffer.append_observation_action_reward_nowait(episode_id, {_EVIL: examples.frame(3)}, 0, 0.0)
    buffer.save(tmp_path / "buffer")
    found = looked_at(tmp_path / "buffer")
    page = Page(report.page(*found))
    assert f"observation 0, {_EVIL}" in page.text
    assert page.of("script") == []
    assert [sorted(attributes) for attributes in page.of("img")] == [["alt", "src"]] * 2


def test_a_broken_checkpoint_has_a_page_too(saved: pathlib.Path) -> None:
    examples.change_byte(saved / "rows.reward.npy", 300)
    page = Page(report.page(*looked_at(saved)))
    assert "broken in 1 place: see below" in page.text
    assert "rows.reward.npy was changed" in page.text
    assert page.of("img") == []


def test_a_journal_has_a_page_too(tmp_path: pathlib.Path) -> None:
    examples.journal(tmp_path / "journal")
    page = Page(report.page(*looked_at(tmp_path / "journal")))
    assert "RingReplayBuffer" in page.text
    assert "records" in page.text


# In a browser.


class Browser:
    """A headless Chromium, controlled over two pipes with its own protocol: a JSON object and a NUL each way."""

    def __init__(self, chromium: str, profile: pathlib.Path) -> None:
        to_read, self._to = os.pipe()
        self._from, to_write = os.pipe()
        options = (
            "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
            f"--disable-component-update --disable-sync --remote-debugging-pipe --user-data-dir={profile}"
        )
        script = f'exec "{chromium}" {options} about:blank 3<&{to_read} 4>&{to_write}'
        self._process = subprocess.Popen(
            ["bash", "-c", script],
            pass_fds=(to_read, to_write),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_read)
        os.close(to_write)
        self._session: dict[str, str] = {}
        self._number = 0
        self._raw = b""
        self.events: list[dict[str, Any]] = []

    def __enter__(self) -> "Browser":
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = {"sessionId": self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]}
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._to)
        os.close(self._from)

    def call(self, method: str, **parameters: Any) -> Any:
        """Return the browser's reply to a call; keep the events that arrive meanwhile."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters, **self._session}
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            message = self._next()
            if message.get("id") == self._number:
                assert "error" not in message, message
                return message["result"]
            self.events.append(message)

    def wait_for(self, method: str) -> None:
        while not any(event["method"] == method for event in self.events):
            self.events.append(self._next())

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._raw:
            assert select.select([self._from], [], [], 60)[0], "the browser says nothing"
            part = os.read(self._from, 1 << 16)
            assert part, "the browser has ended"
            self._raw += part
        raw, self._raw = self._raw.split(b"\0", 1)
        message: dict[str, Any] = json.loads(raw)
        return message


CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
SEEN = """JSON.stringify({
  title: document.title, scripts: document.scripts.length, wide: document.documentElement.scrollWidth > innerWidth,
  images: [...document.images].map(image => image.complete && image.naturalWidth > 0)})"""


@pytest.mark.skipif(CHROMIUM is None, reason="no headless browser is installed: apt-get install chromium")
@pytest.mark.parametrize("is_forged", [False, True])
def test_a_browser_shows_every_picture_and_asks_nobody(
    saved: pathlib.Path, tmp_path: pathlib.Path, is_forged: bool
) -> None:
    found = forged(saved) if is_forged else looked_at(saved)
    place = tmp_path / "report.html"
    place.write_text(report.page(*found), encoding="utf-8")
    assert CHROMIUM is not None
    with Browser(CHROMIUM, tmp_path / "profile") as browser:
        for domain in ("Page", "Network", "Log", "Runtime"):
            browser.call(f"{domain}.enable")
        browser.call("Page.navigate", url=place.as_uri())
        browser.wait_for("Page.loadEventFired")
        seen = json.loads(browser.call("Runtime.evaluate", expression=SEEN)["result"]["value"])
    assert seen["images"]
    assert all(seen["images"])
    assert not seen["wide"]
    assert (seen["scripts"], seen["title"] == "owned") == (0, False)
    asked = [event for event in browser.events if event["method"] == "Network.requestWillBeSent"]
    urls = [event["params"]["request"]["url"] for event in asked]
    assert urls[0] == place.as_uri()
    assert all(url.startswith("data:") for url in urls[1:])
    assert [event for event in browser.events if event["method"] in ("Log.entryAdded", "Runtime.exceptionThrown")] == []
