"""One file that says everything, loads nothing, and can be read by everybody."""

import re
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest

from tailproof.core.errors import ConfigError
from tailproof.reporting import html, runs
from tailproof.reporting.document import ClosedLoop, Document, Percentiles
from tests.reporting import made
from tests.reporting.browser import CHROMIUM, Browser, browser

VOID = {"meta", "br", "link", "img", "input", "hr"}


class Outline(HTMLParser):
    """Tags in order, text, ids, and whether every tag that is opened is closed."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.words: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, f"</{tag}> closes something else"

    def handle_data(self, data: str) -> None:
        if not self.open or self.open[-1] not in ("style", "script"):
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(self.words)

    @property
    def ids(self) -> list[str]:
        return [found["id"] for _, found in self.tags if found.get("id")]  # type: ignore[misc]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> runs.Run:
    return made.write(tmp_path_factory.mktemp("run"))


@pytest.fixture(scope="module")
def page(run: runs.Run) -> str:
    return html.report(run.document, run.step)


def bare(document: Document) -> str:
    return html.report(document, lambda index: None)


def probe(**changes: object) -> dict[str, object]:
    found: dict[str, object] = {
        "tool": "tailproof 0.1.0",
        "target": "http://localhost:8000/predict",
        "cold_seconds": 0.812,
        "warm_seconds": {"p50": 0.0071, "p95": 0.0093, "p99": 0.0121, "resolved": ["p50"]},
        "cold_warm_ratio": 114.4,
        "counters": {"requests_total": 30.0},
        "seconds": [0.812, 0.0072, None, 0.0069],
    }
    return found | changes


def test_tags_match_and_ids_are_unique(page: str) -> None:
    outline = Outline(page)

    assert outline.open == []
    assert len(outline.ids) == len(set(outline.ids)) > 20


def test_whatever_is_pointed_at_exists(page: str) -> None:
    outline = Outline(page)
    wanted = set(re.findall(r'aria-labelledby="([^"]+)"', page))
    wanted |= set(re.findall(r'href="#([^"]+)"', page)) | set(re.findall(r"url\(#([^)]+)\)", page))

    missing = {name for names in wanted for name in names.split()} - set(outline.ids)

    assert wanted
    assert missing == set()


def test_the_order_is_verdict_first_and_the_command_last(page: str) -> None:
    sections = [
        found.get("id") for tag, found in Outline(page).tags if tag == "section" and found.get("id")
    ]

    assert page.index('id="verdict"') < page.index('id="advice"')
    assert sections == [
        *("advice", "distribution", "percentiles", "rates", "points", "timeline", "cold"),
        *("causes", "generator", "own_errors", "environment", "confidence", "warnings", "command"),
    ]


def test_headings_go_down_one_level_at_a_time(page: str) -> None:
    levels = [int(tag[1]) for tag, _ in Outline(page).tags if re.fullmatch(r"h[1-6]", tag)]

    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(later <= before + 1 for before, later in pairwise(levels))


def test_the_three_rates_stand_with_their_intervals(page: str) -> None:
    text = Outline(page).text

    for part in ("611/s", "431/s", "758/s", "95% interval 592/s to 628/s", "PASS up to 580/s"):
        assert part in text, part


def test_everything_that_the_document_says_is_in_the_page(run: runs.Run, page: str) -> None:
    text, document = Outline(page).text, run.document

    for part in (
        document.reason,
        document.command,
        *document.warnings,
        *document.unresolved,
        *document.slo,
        *(signal.text for signal in document.generator.signals),
        *(point.advice for point in document.points),
        "A mean over both would have said 15.2 ms",
        "unexplained",
        "Example CPU",
        "PASS, though the SLO is broken",
        "2.1%",
    ):
        assert part in text, part


def test_unresolved_percentiles_and_misses_are_marked_and_explained(page: str) -> None:
    cells = re.findall(r"<td[^>]*>([^<]*)</td>", page)

    assert any(cell.startswith("~") for cell in cells)
    assert "miss" in cells
    assert "no verdict uses it" in page


def test_nothing_is_loaded_and_the_policy_forbids_it(page: str) -> None:
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', page)

    assert policy
    assert policy[1].startswith("default-src 'none'")
    assert "unsafe" not in policy[1]
    assert not re.search(r'(src|href)="(?!#)', page)
    assert not re.search(r"@import|url\((?!#)|fetch\(|XMLHttp", page)
    assert " style=" not in page


def test_text_of_others_is_escaped() -> None:
    found = msgspec.structs.replace(
        made.invalid(),
        reason="<img src=x onerror=alert(1)>",
        command="x'</code><script>alert(2)</script>",
        warnings=["</ul><script>alert(3)</script>"],
    )

    page = bare(found)

    assert page.count("<script>") == 1
    assert "<img" not in page
    assert "&lt;script&gt;alert(1)" in page


@pytest.mark.parametrize("verdict", ["PASS", "FAIL", "UNDECIDED", "INVALID"])
def test_each_verdict_has_its_word_and_shape(verdict: str) -> None:
    page = bare(msgspec.structs.replace(made.invalid(), verdict=verdict))

    assert verdict in Outline(page).text
    assert html.VERDICT_SHAPES[verdict] in page


def test_a_run_with_one_invalid_step_and_nothing_else_is_a_page() -> None:
    data = made.step(0, 200.0, refused=1.0)

    for page in (html.report(made.invalid(), lambda index: data), bare(made.invalid())):
        assert Outline(page).open == []
        assert "at 200/s" in page
        assert "miss" in re.findall(r"<td[^>]*>([^<]*)</td>", page)


def test_a_run_without_any_step_is_a_page() -> None:
    page = bare(msgspec.structs.replace(made.invalid(), points=[]))

    assert Outline(page).open == []


def test_a_closed_loop_stands_beside_the_open_one() -> None:
    times = Percentiles(p50=0.0113, resolved=["p50"])
    loop = ClosedLoop(users=10, requests=900, rate=88.0, response_seconds=times)

    text = Outline(bare(msgspec.structs.replace(made.invalid(), closed_loop=loop))).text

    assert "closed loop: 10 users, 88/s" in text
    assert "11.3" in text


def test_an_absent_number_is_never_a_zero() -> None:
    found = msgspec.structs.replace(made.invalid(), points=[])

    assert "&ndash;" in bare(found)
    assert not re.search(r"\b0(\.0+)?( ms|/s|%)", Outline(bare(found)).text)


def test_the_language_is_the_one_asked_for(run: runs.Run) -> None:
    chinese = html.report(run.document, run.step, "zh-TW")

    assert '<html lang="zh-Hant-TW">' in chinese
    assert "<title" in chinese
    assert re.search(r"<title[^>]*>通過", chinese)
    with pytest.raises(ConfigError, match="--lang"):
        html.report(run.document, run.step, "de")


def test_a_probe_is_a_page() -> None:
    outline = Outline(html.probe_page(probe()))

    assert outline.open == []
    for part in (
        "Cold 812 ms, warm P50 7.10 ms",
        "114 times",
        "~12.1 ms",
        "requests_total",
        "miss",
    ):
        assert part in outline.text, part


def test_a_probe_without_answers_is_a_page() -> None:
    empty = probe(
        cold_seconds=None, warm_seconds={"resolved": []}, cold_warm_ratio=None, seconds=[]
    )

    outline = Outline(html.probe_page(empty))

    assert outline.open == []
    assert "no answer" in outline.text


# In a browser.


@pytest.fixture(scope="module")
def pages(run: runs.Run, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    data = made.step(0, 200.0, refused=1.0)
    texts = {
        "report": html.report(run.document, run.step),
        "chinese": html.report(run.document, run.step, "zh-TW"),
        "invalid": html.report(made.invalid(), lambda index: data),
        "probe": html.probe_page(probe()),
    }
    for name, text in texts.items():
        (folder / f"{name}.html").write_text(text, encoding="utf-8")
    return {name: folder / f"{name}.html" for name in texts}


@pytest.fixture(scope="module")
def chromium() -> "Browser":  # type: ignore[misc]
    if CHROMIUM is None:
        pytest.skip("there is no chromium")
    with browser() as found:
        yield found


@pytest.mark.parametrize("name", ["report", "chinese", "invalid", "probe"])
def test_a_page_complains_of_nothing_asks_for_nothing_and_fits_a_phone(
    chromium: Browser, pages: dict[str, Path], name: str
) -> None:
    for media in ("light", "dark"):
        for width in (1200, 390):
            chromium.open(pages[name], width, media=media)
            chromium.value("document.querySelectorAll('details').forEach(d => d.open = true)")

            assert chromium.complaints() == []
            assert chromium.requests() == []
            assert chromium.value("document.documentElement.scrollWidth") <= width


def test_the_browser_would_see_a_request_an_error_and_an_overflow(
    chromium: Browser, tmp_path: Path
) -> None:
    page = tmp_path / "bad.html"
    page.write_text(
        "<img src='http://127.0.0.1:9/x.png'><div style='width:999px'>x</div>"
        "<script>throw Error('broken')</script>"
    )

    chromium.open(page, 390)

    assert chromium.requests() == ["http://127.0.0.1:9/x.png"]
    assert any("broken" in text or "Uncaught" in text for text in chromium.complaints())
    assert chromium.value("document.documentElement.scrollWidth") > 390


def test_the_policy_stops_what_somebody_might_slip_in(
    chromium: Browser, pages: dict[str, Path], tmp_path: Path
) -> None:
    page = tmp_path / "slipped.html"
    text = (
        pages["report"]
        .read_text()
        .replace("</main>", "<script>document.title='mine'</script></main>")
    )
    page.write_text(text, encoding="utf-8")

    chromium.open(page, 390)

    assert chromium.value("document.title") != "mine"
    assert chromium.complaints()


def test_the_language_can_be_changed_in_the_page(chromium: Browser, pages: dict[str, Path]) -> None:
    chromium.open(pages["report"], 1200)
    seen = "document.querySelector('h1').innerText"

    assert chromium.value(seen) == "PASS"
    chromium.value("document.querySelector('[data-language=zh-Hant-TW]').click()")

    assert chromium.value(seen) == "通過"
    assert chromium.value("document.documentElement.lang") == "zh-Hant-TW"
    assert chromium.value("document.title").startswith("通過")
    assert chromium.value("getComputedStyle(document.querySelector('h1 .en')).display") == "none"


@pytest.mark.parametrize("media", ["light", "dark"])
def test_light_and_dark_can_be_changed_and_print_is_light(
    chromium: Browser, pages: dict[str, Path], media: str
) -> None:
    paper = "getComputedStyle(document.body).backgroundColor"
    chromium.open(pages["report"], 1200, media=media)
    before = chromium.value(paper)
    chromium.value("document.getElementById('theme').click()")
    after = chromium.value(paper)

    assert {before, after} == {"rgb(255, 255, 255)", "rgb(18, 22, 27)"}
    assert (before == "rgb(255, 255, 255)") == (media == "light")

    chromium.open(pages["report"], 794, media="print")
    assert chromium.value(paper) == "rgb(255, 255, 255)"
    assert chromium.value("getComputedStyle(document.querySelector('.controls')).display") == "none"
    assert chromium.value("document.documentElement.scrollWidth") <= 794


def test_everything_can_be_reached_with_the_keyboard(
    chromium: Browser, pages: dict[str, Path]
) -> None:
    chromium.open(pages["report"], 1200)
    reached = []
    for _ in range(80):
        chromium.press("Tab")
        reached.append(
            chromium.value("document.activeElement.id || document.activeElement.tagName")
        )

    assert chromium.value("document.querySelector('.skip') !== null")
    assert reached[0] == "A"
    assert {"theme", "copy", "SUMMARY"} <= set(reached)


def test_the_words_of_charts_stay_large_enough_on_a_phone(
    chromium: Browser, pages: dict[str, Path]
) -> None:
    for width in (1200, 390):
        chromium.open(pages["report"], width)
        heights = chromium.value(
            "[...document.querySelectorAll('svg.chart text')].map(t => t.getBoundingClientRect())"
            ".filter(r => r.height > 0).map(r => r.height)"
        )

        assert len(heights) > 50
        assert min(heights) >= 11
