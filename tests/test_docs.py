"""The documents say what the code does: commands, settings, statuses, metrics, links, examples."""

import ast
import json
import os
import re
import shlex
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import click
import numpy as np
import pytest

import tailproof
from tailproof import cli, config, reference
from tailproof.core import errors
from tailproof.models.signature import MAX_ROWS
from tailproof.serving.settings import ModelSettings, ServerSettings

ROOT = Path(__file__).parent.parent
READMES = (ROOT / "README.md", ROOT / "README.zh-TW.md")
DOCUMENTS = (*READMES, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *ROOT.glob("docs/*.md"))
GENERATED = (ROOT / "README.md", ROOT / "docs/configuration.md")

_FENCE = re.compile(r"^```(?P<kind>\w*)\n(?P<text>.*?)^```$", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"\]\((?P<target>[^)#\s]+)(#[^)]*)?\)")
_IN_CODE = re.compile(r"`[^`]*`")


@dataclass(frozen=True)
class Block:
    """One fenced block of a document."""

    document: str
    kind: str
    text: str


def blocks(*kinds: str) -> list[Block]:
    return [
        Block(path.name, found["kind"], found["text"])
        for path in DOCUMENTS
        for found in _FENCE.finditer(path.read_text())
        if found["kind"] in kinds
    ]


def commands() -> Iterator[tuple[str, list[str]]]:
    """(document, arguments) of every tailproof command line in a shell block."""
    for block in blocks("sh", "console", "bash"):
        for line in block.text.replace("\\\n", " ").splitlines():
            words = shlex.split(line.removeprefix("$ "), comments=True)
            if words and Path(words[0]).name == "tailproof":
                yield block.document, words[1:]


def words_of(arguments: object) -> str:
    return " ".join(arguments) if isinstance(arguments, list) else str(arguments)


COMMANDS = list(commands())


def test_the_documents_show_commands() -> None:
    shown = {(document, arguments[0]) for document, arguments in COMMANDS}

    assert {("README.md", "serve"), ("README.md", "healthcheck")} <= shown
    assert [a for d, a in COMMANDS if d == "README.md"] == [
        a for d, a in COMMANDS if d == "README.zh-TW.md"
    ]


@pytest.mark.parametrize(("document", "arguments"), COMMANDS, ids=words_of)
def test_every_command_line_is_one_that_the_command_takes(
    document: str, arguments: list[str]
) -> None:
    name, *rest = arguments
    command = cli.cli.commands[name]

    context = command.make_context(name, rest)  # raises for an option that does not exist

    if name == "serve" and context.params["models"]:
        config.load(context.params["models"], context.params, {}, Path("/dev/null"))


def test_a_command_line_with_an_unknown_option_is_caught() -> None:
    with pytest.raises(click.UsageError):
        cli.cli.commands["serve"].make_context("serve", ["demo:fraud", "--batch-size", "3"])


@pytest.mark.parametrize("block", blocks("toml"), ids=lambda block: block.document)
def test_every_toml_block_is_a_configuration(block: Block, tmp_path: Path) -> None:
    file = tmp_path / "tailproof.toml"
    file.write_text(block.text)

    loaded = config.load([], {}, {}, file)

    assert [model.name for model in loaded.models] == list(tomllib.loads(block.text)["models"])


def test_every_block_of_data_or_code_can_be_read() -> None:
    readers = {"toml": tomllib.loads, "json": json.loads, "python": ast.parse}
    found = blocks(*readers)

    for block in found:
        readers[block.kind](block.text)

    assert {block.document for block in found} >= {path.name for path in READMES}


def test_the_answers_in_both_readmes_are_json_and_the_same() -> None:
    answers = [
        [
            line
            for block in blocks("console")
            if block.document == readme.name
            for line in block.text.splitlines()
            if line.startswith(("{", "["))
        ]
        for readme in READMES
    ]

    assert [sorted(json.loads(line)) for line in answers[0]] == [
        ["model_alias", "model_version", "score"],
        ["detail"],
    ]
    assert answers[0] == answers[1]


@pytest.mark.parametrize("path", GENERATED, ids=lambda path: path.name)
def test_generated_tables_are_up_to_date(path: Path) -> None:
    text = path.read_text()

    assert "<!-- settings:" in text
    assert text == reference.refresh(text), "run: make docs"


def test_a_table_that_is_out_of_date_is_seen() -> None:
    text = (ROOT / "README.md").read_text().replace("| `--port` | 8000 |", "| `--port` | 80 |")

    assert text != reference.refresh(text)


def test_the_chinese_readme_has_the_same_settings_and_defaults() -> None:
    rows = re.compile(r"^\| (`--[a-z-]+`) \| (\S*) \| ", re.MULTILINE)
    english, chinese = (rows.findall(path.read_text()) for path in READMES)

    assert english
    assert chinese == english


def test_both_readmes_have_the_same_sections_statuses_and_metrics() -> None:
    for pattern in (r"^## ", r"^\| (\d{3}) \|", r"`(tailproof_\w+)`", r"\]\(([\w./-]+)\)"):
        english, chinese = (re.findall(pattern, path.read_text(), re.MULTILINE) for path in READMES)
        if pattern.endswith(r"\)"):  # each names the other one
            english, chinese = english[1:], chinese[1:]
        assert english, pattern
        assert chinese == english, pattern


def test_the_status_table_has_every_status_that_an_error_can_have() -> None:
    listed = set(re.findall(r"^\| (\d{3}) \|", READMES[0].read_text(), re.MULTILINE))
    ours = {
        str(item.status)
        for item in vars(errors).values()
        if isinstance(item, type) and issubclass(item, errors.RequestError)
    }

    assert ours <= listed
    assert listed - ours == {"200", "431"}  # good, and refused by the HTTP library
    assert f"{MAX_ROWS:,} rows" in READMES[0].read_text()


def test_every_metric_that_is_named_exists() -> None:
    source = (ROOT / "src/tailproof/telemetry/metrics.py").read_text()

    for name in re.findall(r"`tailproof_(\w+)`", READMES[0].read_text()):
        assert f'"{name.removesuffix("_total")}' in source, name


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_every_link_to_a_file_leads_somewhere(path: Path) -> None:
    text = _FENCE.sub("", path.read_text())
    targets = [found["target"] for found in _LINK.finditer(_IN_CODE.sub("", text))]

    missing = [
        target for target in targets if "://" not in target and not (path.parent / target).exists()
    ]
    assert missing == []


def test_configuration_md_names_every_key_flag_and_variable() -> None:
    text = (ROOT / "docs/configuration.md").read_text()

    for setting in config.settings_of(ServerSettings) + config.settings_of(ModelSettings):
        for name in (setting.key, setting.flag, setting.variable):
            assert name is None or f"`{name}`" in text


def test_make_targets_in_documents_exist() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {
        name for path in DOCUMENTS for name in re.findall(r"\bmake ([a-z]+)\b", path.read_text())
    }

    assert {"demo", "test"} <= named
    assert named <= targets | {"the", "it", "sure"}


def test_the_script_for_ci_runs_what_contributors_run() -> None:
    script = ROOT / ".ci/run"

    assert os.access(script, os.X_OK)
    assert script.read_text().rstrip().endswith("make test")


def test_the_licence_is_the_whole_apache_licence() -> None:
    text = (ROOT / "LICENSE").read_text()

    assert "Version 2.0, January 2004" in text
    assert "END OF TERMS AND CONDITIONS" in text


def test_the_changelog_has_this_version() -> None:
    assert tailproof.__version__ in (ROOT / "CHANGELOG.md").read_text()


def test_the_example_configuration_loads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)

    loaded = config.load([], {}, {}, ROOT / "examples/tailproof.toml")

    assert [model.name for model in loaded.models] == ["fraud", "flowers"]


def test_the_example_model_knows_most_flowers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT))
    from examples.model import MEASUREMENTS, Flowers
    from sklearn.datasets import load_iris

    iris = load_iris()
    model = Flowers()
    model.load()

    kinds = model.predict(dict(zip(MEASUREMENTS, iris.data.T, strict=True)))

    assert kinds.shape == (150,)
    assert np.mean(kinds == iris.target_names[iris.target]) >= 0.95
