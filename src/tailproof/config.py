"""Flags > environment > `tailproof.toml` > defaults, all derived from the settings dataclasses.

    --max-body 1MiB                    ┐
    TAILPROOF_MAX_BODY=1MiB            ├─ Written(origin, value) ─ value_of ─> ServerSettings
    [server] max_body = "1MiB"         ┘  one per field, the strongest wins      ModelSettings

A new field of a dataclass has its flag, its environment name, its key in the file, its help text
and its line in the documents at once (see `tailproof.reference`).
"""

import difflib
import re
import tomllib
import typing
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import Field, dataclass, fields, replace
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union

import click
import msgspec

from tailproof.core import slo
from tailproof.core.errors import ConfigError
from tailproof.core.units import (
    format_duration,
    format_rate,
    format_size,
    parse_duration,
    parse_rate,
    parse_size,
)
from tailproof.load.settings import LoadSettings, TargetSettings
from tailproof.models.source import default_name, parse
from tailproof.serving.settings import ModelSettings, ServerSettings

DEFAULT_FILE = Path("tailproof.toml")
PREFIX = "TAILPROOF_"
TABLES = ("server", "models", "prove")

S = TypeVar("S")

_UNITS = {
    "duration": parse_duration,
    "rate": parse_rate,
    "size": parse_size,
    "slo": slo.parse,
}
_PYTHON_CLASS = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
_AT = re.compile(r" - at `[^`]*`$")
_OUR_WORDS = {"Expected": "expected", "object": "table", "str": "text", " | null": "", "`": ""}
_THEIR_WORDS = re.compile(r"\b(Expected|object|str)\b| \| null|`")

# Kubernetes writes such variables for a Service called `tailproof`; TAILPROOF_PORT is then an
# address and not a port.
_SERVICE_LINK = re.compile(r"TAILPROOF_(\w+_)?(SERVICE_(HOST|PORT)|PORT_\d+)(_\w+)?")
_SERVICE_ADDRESS = re.compile(r"(tcp|udp|sctp)://.*")


@dataclass(frozen=True, slots=True)
class Config:
    """All that `serve` was told."""

    server: ServerSettings
    models: tuple[ModelSettings, ...]


@dataclass(frozen=True, slots=True)
class Setting:
    """One field of a settings dataclass, with every name that a user can call it by."""

    field: str
    key: str
    """In the file: `max_body`."""
    flag: str | None
    """`--max-body`; None: the setting can only be written in the file."""
    variable: str | None
    """`TAILPROOF_MAX_BODY`; None as above."""
    help: str
    unit: str | None
    type: Any
    """Type of the field, or of one item where the setting is a list."""
    repeated: bool
    default: Any


@dataclass(frozen=True, slots=True)
class Written:
    """What a user wrote, and where: errors name this origin."""

    origin: str
    value: object
    text: bool = False
    """From the command line or the environment, where a number is a text too."""


Layer = dict[str, Written]
"""What one origin says: field name -> what is written there. `a | b`: b is stronger."""


def load(
    sources: Sequence[str],
    flags: Mapping[str, object],
    environ: Mapping[str, str],
    file: Path | None,
) -> Config:
    """Settings of the server and its models.

    `sources` are the MODELs of the command line: without any, those of the file are served.
    `flags` maps field names to what was given; `file` None means `tailproof.toml`, if it exists.

    Raises:
        ConfigError: something is wrong; it names the flag, variable or key, and the value.
    """
    _refuse_misspelt(environ)
    document = _read(file)
    server = _server(document, flags, environ)
    on_line = [{"source": Written("MODEL", source, text=True)} for source in sources]
    models = on_line or _models_of(document)
    return Config(server, _models(models, stronger(ModelSettings, flags, environ)))


def load_server(
    flags: Mapping[str, object], environ: Mapping[str, str], file: Path | None
) -> ServerSettings:
    """The settings of the server alone, as `load` reads them. Raises ConfigError."""
    return _server(_read(file), flags, environ)


@dataclass(frozen=True, slots=True)
class LoadConfig:
    """All that `prove` or `probe` was told."""

    target: TargetSettings
    load: LoadSettings


def load_test(
    flags: Mapping[str, object], environ: Mapping[str, str], file: Path | None
) -> LoadConfig:
    """Settings of a load test: the table `prove` of the file, and the SLO of its only model.

    Raises ConfigError as `load` does.
    """
    _refuse_misspelt(environ)
    document = _read(file)
    _refuse_unknown(document, TABLES, "")
    table = document.get("prove", {})
    known = [setting.key for cls in LOADING for setting in settings_of(cls)]
    if isinstance(table, dict):
        _refuse_unknown(table, known, "prove.")
    return LoadConfig(
        build(TargetSettings, _load_layer(TargetSettings, table, flags, environ)),
        build(
            LoadSettings,
            _slo_of_the_model(document) | _load_layer(LoadSettings, table, flags, environ),
        ),
    )


def _load_layer(
    cls: type, table: object, flags: Mapping[str, object], environ: Mapping[str, str]
) -> Layer:
    keys = {setting.key for setting in settings_of(cls)}
    part = {k: v for k, v in table.items() if k in keys} if isinstance(table, dict) else table
    return from_table(cls, part, "prove") | stronger(cls, flags, environ)


def _slo_of_the_model(document: dict[str, Any]) -> Layer:
    """What the served model must hold is what its load test asks, when there is only one."""
    tables = document.get("models", {})
    if isinstance(tables, dict) and len(tables) == 1:
        ((name, table),) = tables.items()
        if isinstance(table, dict) and "slo" in table:
            return {"slo": Written(f"models.{name}.slo", table["slo"])}
    return {}


def _server(
    document: dict[str, Any], flags: Mapping[str, object], environ: Mapping[str, str]
) -> ServerSettings:
    _refuse_unknown(document, TABLES, "")
    in_file = from_table(ServerSettings, document.get("server", {}), "server")
    return build(ServerSettings, in_file | stronger(ServerSettings, flags, environ))


def stronger(cls: type, flags: Mapping[str, object], environ: Mapping[str, str]) -> Layer:
    """What stands above the file: the environment, and the flags above it."""
    return from_environment(cls, environ) | from_flags(cls, flags)


def from_flags(cls: type, flags: Mapping[str, object]) -> Layer:
    """The flags that were given; `flags` may hold those of other classes, too."""
    return {
        setting.field: Written(setting.flag, flags[setting.field], text=True)
        for setting in settings_of(cls)
        if setting.flag and flags.get(setting.field) not in (None, ())
    }


def from_environment(cls: type, environ: Mapping[str, str]) -> Layer:
    """The variables that are set and not empty. A list is separated by commas."""
    layer: Layer = {}
    for setting in settings_of(cls):
        text = environ.get(setting.variable, "") if setting.variable else ""
        if text and setting.variable and not _SERVICE_ADDRESS.fullmatch(text):
            value = [item.strip() for item in text.split(",")] if setting.repeated else text
            layer[setting.field] = Written(setting.variable, value, text=True)
    return layer


def from_table(cls: type, table: object, origin: str) -> Layer:
    """A table of the file. Raises ConfigError for a key that is not a setting of `cls`."""
    if not isinstance(table, dict):
        raise ConfigError(origin, table, "expected a table")
    settings = {setting.key: setting for setting in settings_of(cls)}
    _refuse_unknown(table, settings, f"{origin}.")
    return {settings[key].field: Written(f"{origin}.{key}", value) for key, value in table.items()}


def build(cls: type[S], layer: Layer) -> S:
    """The dataclass with the values that were written, each checked. Raises ConfigError."""
    settings = {setting.field: setting for setting in settings_of(cls)}
    return cls(**{name: value_of(settings[name], written) for name, written in layer.items()})


def value_of(setting: Setting, written: Written) -> Any:
    """What was written, as the field's type. Raises ConfigError when it cannot be that."""
    if not setting.repeated:
        return _one(setting, written)
    items = written.value if isinstance(written.value, list | tuple) else [written.value]
    return tuple(_one(setting, replace(written, value=item)) for item in items)


def _one(setting: Setting, written: Written) -> Any:
    value = written.value
    try:
        if setting.unit is None:
            return msgspec.convert(value, setting.type, strict=not written.text)
        read = _UNITS[setting.unit](str(value))  # 5 has no unit, as a text or not
        return read if setting.unit == "slo" else msgspec.convert(read, setting.type)
    except msgspec.ValidationError as error:
        problem = _expectation(setting) or _words(error)
    except (ValueError, ArithmeticError) as error:
        problem = str(error)
    raise ConfigError(written.origin, value, problem)


def _expectation(setting: Setting) -> str:
    """What the type of the field says in words, if it does."""
    if typing.get_origin(setting.type) is Literal:
        return f"expected one of {', '.join(typing.get_args(setting.type))}"
    described = [meta.description for meta in metas_of(setting.type) if meta.description]
    return f"expected {described[0]}" if described else ""


def metas_of(hint: Any) -> list[msgspec.Meta]:
    """The constraints in a type, wherever they are in it."""
    own = [item for item in getattr(hint, "__metadata__", ()) if isinstance(item, msgspec.Meta)]
    return own + [meta for item in typing.get_args(hint) for meta in metas_of(item)]


def _words(error: Exception) -> str:
    """A failed check in the words of a person who writes TOML."""
    return _THEIR_WORDS.sub(lambda found: _OUR_WORDS[found[0]], _AT.sub("", str(error)))


def _models_of(document: dict[str, Any]) -> list[Layer]:
    tables = document.get("models", {})
    if not isinstance(tables, dict):
        raise ConfigError("models", tables, "expected one table for each model")
    return [_model_of(name, table) for name, table in tables.items()]


def _model_of(name: str, table: object) -> Layer:
    origin = f"models.{name}"
    layer = from_table(ModelSettings, table, origin)
    if "name" in layer:
        raise ConfigError(layer["name"].origin, layer["name"].value, "the table's name is the name")
    if "source" not in layer:
        raise ConfigError(f"{origin}.source", None, "say where the model comes from")
    return {**layer, "name": Written(origin, name)}


def _models(layers: list[Layer], above: Layer) -> tuple[ModelSettings, ...]:
    if not layers:
        raise ConfigError("MODEL", None, "name a model, on the command line or in tailproof.toml")
    if len(layers) > 1 and "name" in above:
        name = above["name"]
        raise ConfigError(name.origin, name.value, f"{len(layers)} models cannot share one name")
    models: dict[str, ModelSettings] = {}
    for layer in layers:
        model = _model(layer | above)
        if model.name in models:
            problem = (
                f"two models are called {model.name!r}; write them in tailproof.toml to name them"
            )
            raise ConfigError(layer["source"].origin, model.source, problem)
        models[model.name] = model
    return tuple(models.values())


def _model(layer: Layer) -> ModelSettings:
    model = build(ModelSettings, layer)
    source = layer["source"]
    try:
        parse(model.source)
        named = model if model.name else replace(model, name=default_name(model.source))
    except ConfigError as error:
        raise ConfigError(source.origin, source.value, _about_source(error)) from None
    if "columns" in layer:
        _check_columns(layer["columns"].origin, model.columns)
    return named


def _about_source(error: ConfigError) -> str:
    """What is wrong with a source: as a whole, its own name, or a parameter in it."""
    if error.key == "model":
        return error.problem
    if error.key == "name":
        return f"its own name cannot be used, so give it another with --name ({error.problem})"
    return str(error)


def _check_columns(origin: str, columns: dict[str, dict[str, Any]] | str | None) -> None:
    """All that can be said about the constraints before the model is there."""
    if isinstance(columns, str) and not _PYTHON_CLASS.fullmatch(columns):
        raise ConfigError(origin, columns, "expected a table for each column, or 'module:Class'")
    if isinstance(columns, dict):
        from tailproof.models.signature import check_table  # noqa: PLC0415  numpy: not for --help

        try:
            check_table(columns)
        except ConfigError as error:
            key = origin + error.key.removeprefix("columns")
            raise ConfigError(key, error.value, error.problem) from None


def _read(file: Path | None) -> dict[str, Any]:
    """The document. Without a file the default one, which need not exist."""
    path = file or DEFAULT_FILE
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        if file is None:
            return {}
        raise ConfigError("--config", str(path), "no such file") from None
    except OSError as error:
        raise ConfigError("--config", str(path), error.strerror or "cannot be read") from None
    except UnicodeDecodeError:
        raise ConfigError("--config", str(path), "is not UTF-8 text") from None
    except RecursionError:
        raise ConfigError("--config", str(path), "is nested too deeply") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError("--config", str(path), f"is not TOML: {error}") from None


def _refuse_unknown(table: Mapping[str, object], known: Iterable[str], prefix: str) -> None:
    names = list(known)
    for key, value in table.items():
        if key not in names:
            raise ConfigError(f"{prefix}{key}", value, f"unknown key{_nearest(key, names)}")


def _refuse_misspelt(environ: Mapping[str, str]) -> None:
    """An unknown TAILPROOF_ variable may be somebody else's; one letter off is a slip."""
    known = [item.variable for item in all_settings() if item.variable]
    for name, value in environ.items():
        if name.startswith(PREFIX) and name not in known and not _SERVICE_LINK.fullmatch(name):
            near = _nearest(
                name.removeprefix(PREFIX), [item.removeprefix(PREFIX) for item in known]
            )
            if near:
                raise ConfigError(name, value, f"unknown setting{near}")


def _nearest(word: str, known: Iterable[str]) -> str:
    found = difflib.get_close_matches(word, list(known), n=1, cutoff=0.75)
    return f"; did you mean {found[0]}?" if found else ""


def settings_of(cls: type) -> tuple[Setting, ...]:
    """Every setting of a dataclass, in the order of its fields."""
    types = typing.get_type_hints(cls, include_extras=True)
    table = f"{cls.table}_" if hasattr(cls, "table") else ""
    return tuple(_setting(item, types[item.name], table) for item in fields(cls))


SERVING = (ServerSettings, ModelSettings)
LOADING = (LoadSettings, TargetSettings)


def all_settings() -> tuple[Setting, ...]:
    """Those of serving (the server, a model), then those of a load test."""
    return tuple(item for cls in (*SERVING, *LOADING) for item in settings_of(cls))


def _setting(item: Field[Any], hint: Any, table: str) -> Setting:
    key = item.metadata["key"] or item.name
    repeated = typing.get_origin(hint) is tuple
    variable = item.metadata["variable"] or f"{PREFIX}{table}{key}".upper()
    return Setting(
        field=item.name,
        key=key,
        flag=f"--{key.replace('_', '-')}" if item.metadata["flag"] else None,
        variable=variable if item.metadata["flag"] else None,
        help=item.metadata["help"],
        unit=item.metadata["unit"],
        type=typing.get_args(hint)[0] if repeated else hint,
        repeated=repeated,
        default=item.default,
    )


def options(cls: type) -> list[click.Option]:
    """The command-line options of a dataclass. Their values stay texts, which `load` reads."""
    return [_option(setting) for setting in settings_of(cls) if setting.flag]


def _option(setting: Setting) -> click.Option:
    text = " ".join((setting.help, default_of(setting))).strip()
    if setting.type is bool:
        return click.Option(
            [str(setting.flag), setting.field], is_flag=True, default=None, help=setting.help
        )
    names = [str(setting.flag), setting.field]
    return click.Option(names, multiple=setting.repeated, metavar=kind_of(setting), help=text)


def kind_of(setting: Setting) -> str:
    """What to write: DURATION, SIZE, SLO, INTEGER, TEXT, BOOLEAN, TABLE or `auto|json|text`."""
    kinds = {str: "TEXT", int: "INTEGER", float: "NUMBER", bool: "BOOLEAN", dict: "TABLE"}
    return setting.unit.upper() if setting.unit else "|".join(_kinds(setting.type, kinds))


def _kinds(hint: Any, kinds: dict[Any, str]) -> list[str]:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        return [str(choice) for choice in arguments]
    if origin is Annotated:
        return _kinds(arguments[0], kinds)
    if origin in (Union, UnionType):
        return [kind for item in arguments if item is not NoneType for kind in _kinds(item, kinds)]
    return [kinds[origin or hint]]


def default_of(setting: Setting) -> str:
    """`[default: 5s]`, or nothing where the help text says what happens without a value."""
    value = setting.default
    if value is None or value in ("", ()):
        return ""
    return f"[default: {in_unit(value, setting.unit)}]"


def in_unit(value: Any, unit: str | None) -> str:
    """A default or a bound as a user would write it."""
    if unit == "duration":
        return format_duration(value) if value else "0s"
    if unit == "size":
        return format_size(value)
    if unit == "rate":
        return format_rate(value)
    return str(value).lower() if isinstance(value, bool) else str(value)
