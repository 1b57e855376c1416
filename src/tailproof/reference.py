"""The tables of settings in the documents, generated from the settings themselves.

`python -m tailproof.reference README.md docs/configuration.md` rewrites what stands between
`<!-- settings: NAME -->` and `<!-- end -->`.
"""

import re
import sys
from pathlib import Path

from tailproof import config
from tailproof.serving.settings import ModelSettings, ServerSettings

_MARKED = re.compile(
    r"(?P<start><!-- settings: (?P<name>server|model|all|prove) -->)\n.*?(?P<end><!-- end -->)",
    re.DOTALL,
)


def bounds_of(setting: config.Setting) -> str:
    """`>= 1, <= 65535`, or nothing."""
    signs = {"ge": ">=", "gt": ">", "le": "<=", "lt": "<"}
    found = []
    for meta in config.metas_of(setting.type):
        for name, sign in signs.items():
            value = getattr(meta, name)
            if value is not None:
                found.append(f"{sign} {config.in_unit(value, setting.unit)}")
    return ", ".join(found)


def table_of(*classes: type) -> str:
    """The settings of dataclasses as a Markdown table, with all their names and bounds."""
    head = ["| key | flag | variable | value | default | meaning |", "|---|---|---|---|---|---|"]
    return "\n".join(head + [_row(item) for cls in classes for item in config.settings_of(cls)])


def short_table() -> str:
    """Flag, default and meaning of every setting of `serve` that has a flag."""
    rows = [
        _line(f"`{item.flag}`", _plain_default(item), item.help)
        for cls in config.SERVING
        for item in config.settings_of(cls)
        if item.flag
    ]
    return "\n".join(["| flag | default | meaning |", "|---|---|---|", *rows])


def _row(setting: config.Setting) -> str:
    names = [setting.key, setting.flag, setting.variable]
    kind = " or ".join(config.kind_of(setting).split("|"))
    return _line(
        *(f"`{name}`" if name else "" for name in names),
        " ".join((kind, bounds_of(setting))).strip(),
        _plain_default(setting),
        setting.help,
    )


def _line(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def _plain_default(setting: config.Setting) -> str:
    return config.default_of(setting).removeprefix("[default: ").removesuffix("]")


def refresh(document: str) -> str:
    """A Markdown document with the tables between its `settings` marks written anew."""
    tables = {
        "server": table_of(ServerSettings),
        "model": table_of(ModelSettings),
        "all": short_table(),
        "prove": table_of(*config.LOADING),
    }
    return _MARKED.sub(
        lambda found: f"{found['start']}\n{tables[found['name']]}\n{found['end']}", document
    )


def main(paths: list[str]) -> None:
    """Refresh documents in place; without any, print the tables."""
    for path in map(Path, paths):
        path.write_text(refresh(path.read_text(encoding="utf-8")), encoding="utf-8")
    if not paths:
        print(table_of(ServerSettings), table_of(ModelSettings), sep="\n\n")


if __name__ == "__main__":
    main(sys.argv[1:])
