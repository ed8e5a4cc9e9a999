"""One value of an option, and where it comes from."""

from dataclasses import dataclass

from baton.deploy.errors import ControlError

Value = str | int | float | bool | None | list[str | int | float]
"""A value as a file has it, in the option's words and unit; None: left out."""

DEFAULT = "default"
COMMAND_LINE = "command line"


@dataclass(frozen=True)
class Setting:
    """One value, under a name of its option without dashes."""

    name: str
    value: Value
    source: str  # file and line, `DEFAULT`, `COMMAND_LINE`, or what else has set it

    def as_json(self) -> dict[str, object]:
        return {"option": self.name, "value": self.value, "source": self.source}


def settings_from(found: object) -> tuple[Setting, ...]:
    """Parse a list of what `Setting.as_json` returned. Raises ControlError for anything else."""
    try:
        return tuple(
            Setting(str(each["option"]), each["value"], str(each["source"]))
            for each in found  # type: ignore[attr-defined]
        )
    except (TypeError, KeyError) as err:
        raise ControlError(
            f"expected a list of options, each with option, value and source; got {found!r}"
        ) from err
