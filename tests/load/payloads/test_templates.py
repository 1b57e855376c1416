"""Templates: what each rule gives, and how a wrong one is named."""

import json
import uuid
from typing import Any

import pytest

from tailproof.core.errors import ConfigError
from tailproof.load.payloads import Payloads, from_template

DRAWS = 200


def values(found: Payloads) -> list[Any]:
    return [json.loads(body) for body in found.bodies]


TEMPLATE = """{
    "amount": {{uniform 100 50000}}, "age": {{int 18 90}}, "size": {{lognormal 6 1}},
    "score": {{ normal -5 0.5 }}, "channel": "{{choice web app store}}", "n": {{choice 1 2.5 true}},
    "id": "{{uuid}}", "place": {{index}}, "name": "row-{{index}}: {{choice 'a "b' c}}",
    "text": "{{words 10 50}}", "list": [{{int 1 1}}, {{int -3 -3}}]
}"""


def test_a_template_gives_json_within_its_rules() -> None:
    found = from_template(TEMPLATE, num=DRAWS, seed=3)

    rows = values(found)
    assert len(rows) == DRAWS
    assert found.content_type == "application/json"
    assert found.seed == 3
    assert all(100 <= row["amount"] < 50_000 for row in rows)
    assert {row["age"] for row in rows} <= set(range(18, 91))
    assert min(row["age"] for row in rows) < 25
    assert max(row["age"] for row in rows) > 80
    sizes = sorted(row["size"] for row in rows)
    assert 250 < sizes[DRAWS // 2] < 600, "the median of lognormal(6, 1) is 403"
    assert -5.3 < sum(row["score"] for row in rows) / DRAWS < -4.7
    assert {row["channel"] for row in rows} == {"web", "app", "store"}
    assert {str(row["n"]) for row in rows} == {"1", "2.5", "True"}
    assert len({uuid.UUID(row["id"]) for row in rows}) == DRAWS
    assert [row["place"] for row in rows] == list(range(DRAWS))
    assert rows[7]["name"] in ('row-7: a "b', "row-7: c")
    lengths = {len(row["text"].split()) for row in rows}
    assert min(lengths) >= 10
    assert max(lengths) <= 50
    assert len(lengths) > 20
    assert rows[0]["list"] == [1, -3]


def test_a_template_follows_its_seed() -> None:
    assert from_template(TEMPLATE, 5, 1) == from_template(TEMPLATE, 5, 1)
    assert from_template(TEMPLATE, 5, 1).bodies != from_template(TEMPLATE, 5, 2).bodies
    assert len(from_template(TEMPLATE).bodies) == 1_000


def test_a_template_without_rules_is_one_body_again_and_again() -> None:
    found = from_template("[1, 2]", num=3)
    assert found.bodies == (b"[1, 2]",) * 3
    assert found.rows == (2, 2, 2)


@pytest.mark.parametrize(
    ("template", "problem"),
    [
        ("{{unifrom 1 2}}", "{{unifrom 1 2}}: unknown rule; known are uniform, int"),
        ("{{}}", "{{}}: "),
        ("{{uniform 1}}", "expected uniform LOW HIGH"),
        ("{{uniform 2 1}}", "LOW <= HIGH"),
        ("{{uniform -1e308 1e308}}", "LOW <= HIGH"),
        ("{{uniform a b}}", "in numbers"),
        ("{{normal 1 inf}}", "finite"),
        ("{{normal 1 -1}}", "SPREAD from 0"),
        ("{{lognormal 900 1}}", "too large"),
        ("{{int 1 2.5}}", "whole numbers"),
        ("{{int 9 1}}", "LOW <= HIGH"),
        ('"{{words 0 3}}"', "1 <= LOW"),
        ("{{choice}}", "expected choice A B"),
        ("{{uuid 4}}", "expected uuid"),
        ('"{{choice "a}}"', "No closing quotation"),
        ('{"c": {{choice web app}}}', "gives 'web|app': put it between double quotes"),
        ('{"c": {{words 3 4}}}', "put it between double quotes"),
        ('{"a": 1', "the result is no JSON"),
        ("{'a': 1}", "the result is no JSON"),
        ("", "the result is no JSON"),
    ],
)
def test_a_wrong_template_names_its_rule(template: str, problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        from_template(template, 3)
    assert caught.value.key == "--template"
    assert any(part in str(caught.value) for part in alternatives(problem))


def alternatives(problem: str) -> list[str]:
    return [problem.replace("web|app", word) for word in ("web", "app")]


def test_a_template_nested_without_end_is_refused() -> None:
    assert from_template("[" * 100 + "]" * 100, num=1).bodies == (b"[" * 100 + b"]" * 100,)
    with pytest.raises(ConfigError, match="the result is no JSON"):
        from_template("[" * 100_000 + "]" * 100_000, num=1)
