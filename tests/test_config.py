"""Flags > environment > file > defaults, and every mistake named where the user made it."""

import dataclasses
import re
import tempfile
from collections.abc import Callable
from dataclasses import make_dataclass
from pathlib import Path
from typing import Annotated, Any

import click
import pytest
from click.testing import CliRunner
from msgspec import Meta

from tailproof import config, reference
from tailproof.config import LoadConfig
from tailproof.core.errors import ConfigError
from tailproof.core.setting import setting
from tailproof.core.slo import Availability, Latency
from tailproof.core.units import format_size, parse_size
from tailproof.serving.settings import ModelSettings, ServerSettings

DIGEST = "sha256:" + "0123456789abcdef" * 4

Load = Callable[..., config.Config]


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Load:
    """`config.load` with a file of this text, in a folder without a tailproof.toml."""
    monkeypatch.chdir(tmp_path)

    def load(
        toml: str | None = None,
        *sources: str,
        flags: dict[str, object] | None = None,
        environ: dict[str, str] | None = None,
    ) -> config.Config:
        file = None if toml is None else tmp_path / "settings.toml"
        if file is not None and toml is not None:
            file.write_text(toml)
        return config.load(sources, flags or {}, environ or {}, file)

    return load


def test_the_four_origins_in_their_order(load: Load) -> None:
    toml = '[server]\nport = 1001\n[models.fraud]\nsource = "demo:fraud"'
    environ = {"TAILPROOF_PORT": "1002"}

    assert load(None, "demo:fraud").server.port == 8000
    assert load(toml).server.port == 1001
    assert load(toml, environ=environ).server.port == 1002
    assert load(toml, environ=environ, flags={"port": "1003"}).server.port == 1003


def test_a_weaker_origin_that_is_overruled_is_not_even_read(load: Load) -> None:
    assert load(None, "demo:fraud", environ={"TAILPROOF_PORT": "x"}, flags={"port": "1"})


def test_a_whole_file(load: Load) -> None:
    found = load(
        f"""
        [server]
        host = "0.0.0.0"
        log_format = "json"
        drain_delay = "500ms"
        max_body = "64KiB"

        [models.fraud]
        source = "models:/fraud-model@champion"
        slo = ["p95 < 100ms", "availability > 99.9%"]
        required = false
        method = "predict_proba"
        class = 1
        output = "probability"
        output_list = "probabilities"
        workers = 2
        max_batch = 64
        max_wait = "2ms"
        max_queue = 256
        trust = "{DIGEST}"
        tracking_uri = "http://mlflow:5000"

        [models.fraud.columns]
        amount = {{ type = "float", gt = 0, description = "in euro" }}
        channel = {{ pattern = "^(web|app)$" }}

        [models.other]
        source = "demo:fraud"
        slo = "p99 < 1s"
        columns = "service.schema:Transaction"
        """
    )

    assert found.server == ServerSettings(
        host="0.0.0.0", log_format="json", drain_delay=0.5, max_body=65536
    )
    fraud, other = found.models
    assert fraud == ModelSettings(
        source="models:/fraud-model@champion",
        name="fraud",
        slo=(Latency(95, 0.1), Availability(99.9 / 100)),
        required=False,
        method="predict_proba",
        class_index=1,
        output="probability",
        output_list="probabilities",
        workers=2,
        max_batch=64,
        max_wait=0.002,
        max_queue=256,
        trust=(DIGEST,),
        tracking_uri="http://mlflow:5000",
        columns={
            "amount": {"type": "float", "gt": 0, "description": "in euro"},
            "channel": {"pattern": "^(web|app)$"},
        },
    )
    assert (other.name, other.slo) == ("other", (Latency(99, 1.0),))
    assert other.columns == "service.schema:Transaction"


def test_models_of_the_line_replace_those_of_the_file_and_keep_its_server(load: Load) -> None:
    toml = '[server]\nport = 1001\n[models.fraud]\nsource = "demo:fraud"'

    found = load(toml, "models:/churn@champion", flags={"slo": ("p95 < 50ms", "p99 < 1s")})

    assert [model.source for model in found.models] == ["models:/churn@champion"]
    assert found.models[0].slo == (Latency(95, 0.05), Latency(99, 1.0))
    assert found.server.port == 1001


def test_model_flags_apply_to_every_model(load: Load) -> None:
    found = load(None, "models:/a@x", "models:/b@x", flags={"workers": "2", "slo": ("p95 < 1s",)})

    assert [(model.name, model.workers) for model in found.models] == [("a", 2), ("b", 2)]
    assert all(model.slo == (Latency(95, 1.0),) for model in found.models)


def test_names_come_from_flag_table_or_source(load: Load) -> None:
    assert load(None, "models:/fraud-model@x").models[0].name == "fraud-model"
    assert load(None, "models:/fraud-model@x", flags={"name": "f"}).models[0].name == "f"
    assert load('[models.t]\nsource = "demo:fraud"').models[0].name == "t"
    assert load('[models.t]\nsource = "demo:fraud"', flags={"name": "f"}).models[0].name == "f"


def test_a_list_in_the_environment_is_separated_by_commas(load: Load) -> None:
    environ = {"TAILPROOF_SLO": "p95 < 50ms, availability > 99%"}

    slo = load(None, "demo:fraud", environ=environ).models[0].slo

    assert slo == (Latency(95, 0.05), Availability(0.99))


def test_an_empty_variable_is_not_set(load: Load) -> None:
    assert load(None, "demo:fraud", environ={"TAILPROOF_PORT": ""}).server.port == 8000


def test_the_default_file_is_read_where_there_is_one(load: Load) -> None:
    Path("tailproof.toml").write_text('[models.fraud]\nsource = "demo:fraud"')

    assert [model.name for model in load().models] == ["fraud"]


def test_variables_of_kubernetes_for_a_service_of_our_name_are_left_alone(load: Load) -> None:
    environ = {
        "TAILPROOF_PORT": "tcp://10.0.171.239:8000",
        "TAILPROOF_PORT_8000_TCP": "tcp://10.0.171.239:8000",
        "TAILPROOF_PORT_8000_TCP_PORT": "8000",
        "TAILPROOF_PORT_8000_TCP_PROTO": "tcp",
        "TAILPROOF_PORT_8000_TCP_ADDR": "10.0.171.239",
        "TAILPROOF_SERVICE_HOST": "10.0.171.239",
        "TAILPROOF_SERVICE_PORT": "8000",
        "TAILPROOF_SERVICE_PORT_HTTP": "8000",
    }

    assert load(None, "demo:fraud", environ=environ).server.port == 8000


def test_a_variable_of_somebody_else_is_left_alone(load: Load) -> None:
    environ = {"TAILPROOF_IMAGE": "registry/tailproof:1", "PORT": "x"}

    assert load(None, "demo:fraud", environ=environ).server == ServerSettings()


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("port", "1", 1),
        ("port", "65535", 65535),
        ("drain_delay", "0s", 0.0),
        ("drain_delay", "24h", 86400.0),
        ("request_timeout", "1us", 1e-6),
        ("max_header", "8KiB", 8192),
        ("max_body", "1B", 1),
        ("max_connections", "1", 1),
        ("workers", "1", 1),
        ("class_index", "0", 0),
        ("max_wait", "0ms", 0.0),
        ("max_batch", "1", 1),
        ("name", "a" * 128, "a" * 128),
        ("name", "0._-", "0._-"),
    ],
)
def test_a_value_at_its_limit_is_taken(load: Load, key: str, text: str, value: object) -> None:
    found = load(None, "demo:fraud", flags={key: text})

    owner = found.server if hasattr(found.server, key) else found.models[0]
    assert getattr(owner, key) == value


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("port", "0"),
        ("port", "65536"),
        ("drain_delay", "24.1h"),
        ("drain_delay", "-1s"),
        ("request_timeout", "0s"),
        ("max_header", "8191B"),
        ("max_body", "0B"),
        ("max_body", "9" * 400 + "B"),
        ("drain_timeout", "9" * 400 + "s"),
        ("max_connections", "0"),
        ("workers", "0"),
        ("class_index", "-1"),
        ("max_batch", "0"),
        ("max_queue", "0"),
        ("name", "a" * 129),
        ("name", "-a"),
        ("name", "a\n"),
        ("name", "../a"),
        ("name", "ä"),
    ],
)
def test_a_value_past_its_limit_is_refused(load: Load, key: str, text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(None, "demo:fraud", flags={key: text})

    assert caught.value.value == text


def _extended(cls: type, *extra: tuple[str, Any, Any]) -> type:
    return make_dataclass(cls.__name__, extra, bases=(cls,), frozen=True, kw_only=True)


def test_a_new_field_has_flag_variable_key_and_reference_at_once() -> None:
    patience = setting(2.0, "how long to be patient", unit="duration")
    extended = _extended(ServerSettings, ("patience_limit", Annotated[float, Meta(gt=0)], patience))
    command = click.Command("serve", params=list(config.options(extended)))

    def value(table: dict[str, object], environ: dict[str, str], flags: dict[str, object]) -> float:
        layer = config.from_table(extended, table, "server")
        built = config.build(extended, layer | config.stronger(extended, flags, environ))
        assert isinstance(built, extended)
        return float(built.patience_limit)  # type: ignore[attr-defined]

    help_text = CliRunner().invoke(command, ["--help"]).output
    assert "--patience-limit DURATION" in help_text
    assert "how long to be patient [default: 2s]" in help_text
    assert value({}, {}, {}) == 2.0
    assert value({"patience_limit": "3s"}, {}, {}) == 3.0
    assert value({"patience_limit": "3s"}, {"TAILPROOF_PATIENCE_LIMIT": "4s"}, {}) == 4.0
    assert value({}, {"TAILPROOF_PATIENCE_LIMIT": "4s"}, {"patience_limit": "5s"}) == 5.0
    with pytest.raises(ConfigError, match=r"server\.patience_limit = '0s'"):
        value({"patience_limit": "0s"}, {}, {})
    assert "`TAILPROOF_PATIENCE_LIMIT`" in reference.table_of(extended)


def test_a_yes_or_no_is_a_switch() -> None:
    extended = _extended(ServerSettings, ("strict", bool, setting(False, "refuse more")))
    command = click.Command("x", params=list(config.options(extended)), callback=lambda **kw: kw)

    def flags(*line: str) -> dict[str, object]:
        return dict(command.main(list(line), standalone_mode=False))

    assert config.from_flags(extended, flags()) == {}
    built = config.build(extended, config.from_flags(extended, flags("--strict")))
    assert built.strict is True  # type: ignore[attr-defined]


def test_no_two_settings_share_a_flag_or_a_variable() -> None:
    for classes in (config.SERVING, config.LOADING):  # of one command
        settings = [item for cls in classes for item in config.settings_of(cls)]
        flags = [item.flag for item in settings if item.flag]
        assert len(set(flags)) == len(flags)
    variables = [item.variable for item in config.all_settings() if item.variable]
    shared = {name for name in variables if variables.count(name) > 1}
    assert shared == {"TAILPROOF_SLO"}  # one SLO, written once


def test_every_setting_has_words_and_a_default_that_passes_its_own_check() -> None:
    for cls in (*config.SERVING, *config.LOADING):
        for item in config.settings_of(cls):
            assert item.help, item.field
            assert config.kind_of(item), item.field
    # what --help prints as the default can be written back
    for item in config.settings_of(ServerSettings):
        text = config.default_of(item).removeprefix("[default: ").removesuffix("]")
        assert config.value_of(item, config.Written("x", text, text=True)) == item.default


def test_settings_are_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        ServerSettings().port = 1  # type: ignore[misc]


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [
        (0, "0B"),
        (1023, "1023B"),
        (1024, "1KiB"),
        (1536, "1536B"),
        (2**24, "16MiB"),
        (2**30, "1GiB"),
    ],
)
def test_sizes_are_printed_as_they_are_read(num_bytes: int, text: str) -> None:
    assert format_size(num_bytes) == text
    assert parse_size(text) == num_bytes


def load_test(*lines: str, environ: dict[str, str] | None = None, **flags: object) -> LoadConfig:
    """Settings of a load test with a file of these lines."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "tailproof.toml"
        file.write_text("\n".join(lines))
        return config.load_test(flags, environ or {}, file)


def test_a_load_test_asks_what_the_only_model_must_hold() -> None:
    model = ("[models.fraud]", 'source = "demo:fraud"', 'slo = ["p95 < 40ms"]')

    assert load_test(*model).load.slo == (Latency(95.0, 0.040),)
    assert load_test(*model, "[prove]", 'slo = ["p99 < 1s"]').load.slo == (Latency(99.0, 1.0),)
    assert load_test(*model, slo=("p50 < 5ms",)).load.slo == (Latency(50.0, 0.005),)
    by_variable = load_test(*model, environ={"TAILPROOF_SLO": "p90 < 9ms"})
    assert by_variable.load.slo == (Latency(90.0, 0.009),)


def test_of_two_models_a_load_test_takes_no_slo() -> None:
    models = [f'[models.{name}]\nsource = "x"\nslo = ["p95 < 40ms"]' for name in ("a", "b")]

    assert load_test(*models).load.slo == ()


def test_a_load_test_reads_its_table_its_variables_and_its_flags() -> None:
    found = load_test(
        "[prove]",
        'budget = "3m"',
        "seed = 5",
        'for = "10s"',
        environ={"TAILPROOF_PROVE_SEED": "6", "TAILPROOF_PROVE_FOR": "11s"},
        seconds="12s",
        rate="300/s",
    )

    assert found.load.budget == 180.0
    assert found.target.seed == 6
    assert found.load.seconds == 12.0
    assert found.load.rate == 300.0


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ('budget = "0s"', "prove.budget = '0s': expected a duration from 1s to 24h"),
        ("budgit = 1", "prove.budgit = 1: unknown key; did you mean budget?"),
        ('rate = "300"', "prove.rate = '300': expected a rate with its unit, such as 300/s"),
        ('rate = "2000000/s"', "prove.rate = '2000000/s': expected a rate above 0/s"),
    ],
)
def test_what_is_wrong_in_the_table_of_a_load_test_is_named(line: str, told: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(told)):
        load_test("[prove]", line)


def test_a_load_test_has_a_table_not_a_value() -> None:
    with pytest.raises(ConfigError, match="expected a table"):
        load_test("prove = 5")
