"""The limits of an option's value: its choices and its range."""

from __future__ import annotations

from framework.config.option import Option, nearest
from framework.config.values import InvalidValueError


def check_limits(value: object, option: Option) -> None:
    """Check the value of an option.

    Raises:
        InvalidValueError: it is none of the choices, or out of the range.
    """
    if option.choices is not None:
        for item in value if isinstance(value, tuple) else (value,):
            if item not in option.choices:
                guess = nearest(str(item), option.choices)
                advice = f'; did you mean "{guess}"?' if guess else ""
                allowed = " or ".join(f'"{choice}"' for choice in option.choices)
                raise InvalidValueError(f"must be {allowed}{advice}")
    amount = len(value) if isinstance(value, (str, tuple)) else value
    if not isinstance(amount, (int, float)) or isinstance(amount, bool):
        return
    low, high = option.minimum, option.maximum
    if (low is not None and amount < low) or (high is not None and amount > high):
        limits = limits_text(option)
        verb = "have" if isinstance(value, tuple) else "be"
        raise InvalidValueError("must not be empty" if limits == "not empty" else f"must {verb} {limits}")


def limits_text(option: Option) -> str:
    """Return the range of an option in words: `at least 1`, `1 to 1000`, `at most 5 s`; empty without a range."""
    low, high = option.minimum, option.maximum
    unit = {"duration": " s", "size": " B", "text": " characters"}.get(option.type_text, "")
    if option.type_text.startswith("list"):
        unit = " item" if (low if high is None else high) == 1 else " items"
    if low == 1 and high is None and option.type_text == "text":
        return "not empty"
    if low is not None and low == high:
        return f"{_number(low)}{unit}"
    if low is not None and high is not None:
        return f"{_number(low)} to {_number(high)}{unit}"
    if low is not None:
        return f"at least {_number(low)}{unit}"
    return f"at most {_number(high)}{unit}" if high is not None else ""


def _number(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) else f"{value:g}"
