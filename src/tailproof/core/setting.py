"""One field of a settings dataclass, from which flag, variable, key and help text are derived."""

from dataclasses import field
from typing import Any, Literal

Unit = Literal["duration", "rate", "size", "slo"]


def setting(
    default: Any,
    help_text: str,
    *,
    unit: Unit | None = None,
    flag: bool = True,
    key: str | None = None,
    variable: str | None = None,
) -> Any:
    """A field with its help text. `unit` says how its text is read; a setting without `flag` can
    only be written in the file; `key` is its name there when that is not the field's own, and
    `variable` its name in the environment. The bounds of a value stand in the field's type, with
    the words for an error message."""
    metadata = {"help": help_text, "unit": unit, "flag": flag, "key": key, "variable": variable}
    return field(default=default, metadata=metadata)
