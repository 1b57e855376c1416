"""What a model's settings become, before any process is started."""

from typing import Any

import pydantic
import pytest

from tailproof.core.errors import ConfigError
from tailproof.core.slo import parse
from tailproof.serving import service
from tailproof.serving.settings import ModelSettings


class Payment(pydantic.BaseModel):
    """A user's own class."""

    amount: float = pydantic.Field(gt=0)
    channel: str = pydantic.Field(pattern="^(web|app)$")
    age: int | None = None


def settings(**fields: Any) -> ModelSettings:
    return ModelSettings(source="fake:", name="m", **fields)


def test_the_users_table_travels_to_the_worker() -> None:
    order = service._spec(settings(columns={"amount": {"gt": 0}}), None)
    assert order.columns == ({"name": "amount", "gt": 0},)
    assert order.class_columns == ()


def test_the_fields_of_the_users_class_travel_to_the_worker() -> None:
    order = service._spec(settings(columns="x:y"), Payment)
    assert order.columns == ()
    amount, channel, age = order.class_columns
    assert amount == {"name": "amount", "type": "float", "required": True, "gt": 0.0}
    assert channel["pattern"] == "^(web|app)$"
    assert (age["type"], age["required"]) == ("int", False)


def test_the_users_class_is_found_by_its_name() -> None:
    found = service._import_class(settings(columns=f"{__name__}:Payment"))
    assert found is Payment


@pytest.mark.parametrize(
    "columns", ["no_such_module:X", f"{__name__}:Nobody", "", ":", f"{__name__}:settings"]
)
def test_a_class_that_is_none_is_the_users_mistake(columns: str) -> None:
    with pytest.raises(ConfigError, match=r"^models\.m\.columns = "):
        service._import_class(settings(columns=columns))


def test_a_wrong_table_is_told_with_its_place() -> None:
    with pytest.raises(ConfigError, match=r"^models\.m\.columns\.amount"):
        service._check_columns(settings(columns={"amount": {"type": "float", "pattern": "("}}))


@pytest.mark.parametrize(
    ("fields", "model_max_rows", "max_batch_rows"),
    [
        ({}, None, service.DEFAULT_MAX_BATCH),
        ({}, 16, 16),
        ({}, 1000, service.DEFAULT_MAX_BATCH),
        ({"max_batch": 32}, None, 32),
        ({"max_batch": 32}, 16, 16),
        ({"max_batch": 1000}, None, 1000),
    ],
    ids=[
        "nobody says anything",
        "the model takes fewer",
        "the model takes more",
        "the user wants fewer",
        "the model takes fewer than the user wants",
        "the user wants more",
    ],
)
def test_the_largest_batch(fields: Any, model_max_rows: int | None, max_batch_rows: int) -> None:
    assert service._limits(settings(**fields), model_max_rows).max_batch_rows == max_batch_rows


def test_the_latencies_of_the_slo_are_what_the_policy_keeps() -> None:
    slos = tuple(
        map(parse, ("p99 < 250ms", "p95 < 100ms", "availability > 99.9%", "ttft p99 < 1ms"))
    )
    assert service._limits(settings(slo=slos), None).objectives == (slos[1], slos[0])
    assert service._limits(settings(), None).objectives == ()


@pytest.mark.parametrize(
    ("max_batch", "sizes"),
    [(1, (1,)), (2, (1, 2)), (5, (1, 2, 4, 5)), (8, (1, 2, 4, 8)), (9, (1, 2, 4, 8, 9))],
)
def test_warm_up_goes_through_the_sizes_to_the_largest(
    max_batch: int, sizes: tuple[int, ...]
) -> None:
    assert service._warmup_sizes(settings(max_batch=max_batch)) == sizes
