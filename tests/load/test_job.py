"""From what a user wrote to complete requests."""

from pathlib import Path

import pytest

from tailproof.core.errors import ConfigError
from tailproof.load import job
from tailproof.load.settings import TargetSettings

URL = "http://127.0.0.1:9/x?key=1"


def aim(environ: dict[str, str] | None = None, **settings: object) -> job.Aim:
    return job.aim(URL, TargetSettings(**settings), environ or {})  # type: ignore[arg-type]


def test_a_file_of_bodies_becomes_posts(tmp_path: Path) -> None:
    (tmp_path / "bodies.jsonl").write_text('{"a": 1}\n\n[{"a": 2}, {"a": 3}]\n')

    found = aim(data=str(tmp_path / "bodies.jsonl"))

    first, second = found.target.requests
    assert first.startswith(b"POST /x?key=1 HTTP/1.1\r\nHost: 127.0.0.1:9\r\n")
    assert b"Content-Type: application/json\r\n" in first
    assert first.endswith(b'\r\n\r\n{"a": 1}')
    assert second.endswith(b'[{"a": 2}, {"a": 3}]')
    assert found.payloads.rows == (1, 2)


def test_get_needs_no_body() -> None:
    (request,) = aim(method="get").target.requests

    assert request.startswith(b"GET /x?key=1 HTTP/1.1\r\n")
    assert request.endswith(b"\r\n\r\n")


def test_a_seed_draws_the_same_bodies_and_another_one_others() -> None:
    drawn = [
        aim(template='{"a": {{uniform 1 9}}}', seed=seed).payloads.bodies for seed in (1, 1, 2)
    ]

    assert drawn[0] == drawn[1] != drawn[2]
    assert len(set(drawn[0])) > 900


def test_headers_and_the_token_of_a_variable_are_sent() -> None:
    found = aim({"TOKEN": "s3cret"}, template="{}", header=("X-A: b:c",), bearer_env="TOKEN")

    assert b"\r\nX-A: b:c\r\n" in found.target.requests[0]
    assert b"\r\nAuthorization: Bearer s3cret\r\n" in found.target.requests[0]
    assert "s3cret" not in found.target.url


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"data": "x", "template": "{}"}, "give either --data or --template"),
        ({"template": "{}", "from_openapi": True}, "give either --template or --from-openapi"),
        (
            {"template": "{}", "header": ("nothing",)},
            "--header = 'nothing': expected 'Name: value'",
        ),
        ({"template": "{}", "header": (": x",)}, "expected 'Name: value'"),
        ({"template": "{}", "bearer_env": "TOKEN"}, "--bearer-env = 'TOKEN': this variable is not"),
        ({"data": "no such file"}, "--data = 'no such file'"),
    ],
)
def test_what_cannot_be_sent_is_told(settings: dict[str, object], told: str) -> None:
    with pytest.raises(ConfigError) as caught:
        aim(**settings)

    assert told in str(caught.value)


def test_far_hosts_need_a_word() -> None:
    far = "http://192.0.2.1/x"
    with pytest.raises(ConfigError, match="--i-may-load-this-host"):
        job.aim(far, TargetSettings(template="{}"), {})

    assert job.aim(far, TargetSettings(template="{}", i_may_load_this_host=True), {}).target.port
