"""Both languages say the same, with the same blanks."""

import math
import re
import string
from pathlib import Path

import pytest

import tailproof
from tailproof.core.errors import ConfigError
from tailproof.core.saturation import advice
from tailproof.reporting import words
from tailproof.reporting.document import Percentiles
from tailproof.reporting.words import PHRASES, Text, named, plain, say, translated

REPORTING = Path(tailproof.__file__).parent / "reporting"


def blanks(phrase: str) -> set[str | None]:
    return {name for _, name, _, _ in string.Formatter().parse(phrase) if name is not None}


def asked_for() -> set[str]:
    """Every id that a call `say("...")` names in full."""
    text = "".join(path.read_text() for path in REPORTING.glob("*.py"))
    return set(re.findall(r'\bsay\(\s*"(\w+)"', text))


@pytest.mark.parametrize("key", PHRASES)
def test_both_languages_have_the_same_blanks(key: str) -> None:
    english, chinese = PHRASES[key]

    assert english
    assert chinese
    assert blanks(english) == blanks(chinese)


def test_phrases_hold_no_markup() -> None:
    assert [key for key, pair in PHRASES.items() if re.search(r"<\w|&\w+;", "".join(pair))] == []


def test_no_phrase_is_missing() -> None:
    wanted = asked_for()

    assert len(wanted) > 50
    assert wanted - set(PHRASES) == set()


@pytest.mark.parametrize(
    "key",
    [
        *(f"verdict_{name}" for name in ("pass", "fail", "undecided", "invalid")),
        *(f"meaning_{name}" for name in ("pass", "fail", "undecided", "invalid")),
        *(f"class_{name}" for name in ("linear", "knee", "overload")),
        *(f"{name}_about" for name in ("limit", "knee", "saturation")),
        *(f"state_{name}" for name in ("ok", "bad", "invalid")),
    ],
)
def test_phrases_that_are_put_together_exist(key: str) -> None:
    assert key in PHRASES


def test_an_unknown_phrase_or_a_missing_value_is_an_error() -> None:
    with pytest.raises(KeyError):
        say("nobody says this")
    with pytest.raises(KeyError):
        say("interval_95", low="1/s")


def test_a_text_within_a_text_keeps_its_language() -> None:
    assert say("primary", cause=named("cause", "queueing")) == Text(
        "Primary cause: queueing.",
        f"主因：{PHRASES['cause_queueing'][1]}。",  # noqa: RUF001
    )


def test_what_has_no_phrase_keeps_its_name() -> None:
    assert named("signal", "never_heard_of") == plain("never heard of")


def test_texts_are_escaped() -> None:
    assert plain("<b>").html() == "&lt;b&gt;"
    assert "&lt;en&gt;" in Text("<en>", "<zh>").html()
    assert Text("<en>", "<zh>").svg().count("&lt;") == 2


def test_an_unknown_language_is_named() -> None:
    assert words.html_language("zh-TW") == "zh-Hant-TW"
    with pytest.raises(ConfigError, match="--lang = 'fr'"):
        words.html_language("fr")


@pytest.mark.parametrize("class_", ["LINEAR", "KNEE", "OVERLOAD", None])
@pytest.mark.parametrize("verdict", ["PASS", "FAIL", "UNDECIDED", "INVALID"])
def test_every_advice_is_translated(class_: str | None, verdict: str) -> None:
    text = translated(advice(class_, verdict))  # type: ignore[arg-type]

    assert text.zh != text.en


def test_sentences_within_sentences_are_translated_with_their_numbers() -> None:
    sentence = (
        "not even 40/s holds: P95 was 104ms: 12% of 1,200 requests were late, at most 5% may be; "
        "with 95% confidence at least 9.8%"
    )

    text = translated(sentence)

    assert text.en == sentence
    assert sorted(re.findall(r"[\d.,]*\d", text.zh)) == sorted(re.findall(r"[\d.,]*\d", sentence))
    assert not re.search(r"late|holds|confidence", text.zh)


def test_an_unknown_sentence_stays_as_it_is() -> None:
    assert translated("the moon was full {x}") == plain("the moon was full {x}")


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (None, ""),
        (math.inf, "miss"),
        (0.0, "0.000"),
        (0.000123, "0.123"),
        (0.00123, "1.23"),
        (0.0123, "12.3"),
        (0.123, "123"),
        (1.86, "1,860"),
    ],
)
def test_milliseconds(seconds: float | None, shown: str) -> None:
    assert words.milliseconds(seconds) == shown


def test_a_percentile_tells_what_it_is_worth() -> None:
    times = Percentiles(p50=0.01, p95=0.02, p99=None, max=0.03, resolved=["p50"], infinite=["p99"])

    assert words.percentile_in(times, "p50") == "10.0"
    assert words.percentile_in(times, "p95") == "~20.0"
    assert words.percentile_in(times, "p99") == "miss"
    assert words.percentile_in(times, "p99_9") == ""
    assert words.percentile_in(times, "max") == "30.0"


def test_rates_and_shares() -> None:
    assert words.per_second(609.8) == "610"
    assert words.per_second(0.25) == "0.25"
    assert words.per_second(None) == ""
    assert words.percent(0.0123) == "1.23%"
    assert words.percentile_name("p99_9") == "P99.9"
