"""References `${env:NAME}` and `${file:PATH}` in a configuration: secrets stay out of the file.

`$${` is a literal `${`. A file's byte order mark and its final line break are not part of the value. Substituted text is
remembered, so that no message shows it. It is not parsed again: a password that contains `${` remains
unchanged.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path

from framework.config.files import read_text
from framework.config.values import InvalidValueError, SubstitutedText, is_unicode, texts_in

REFERENCE = re.compile(r"\$\$\{|\$\{(?:([^}]*)\}|.*)", re.DOTALL)
"""Group 1 is what a reference names; None of a literal `$${`, and of a `${` without an end.

That takes the rest of the text with it, or each one after it would look for an end again.
"""
_MAX_FILE_BYTES = 1 << 20


def refers_to(value: object, variable: str) -> bool:
    """Return whether a value, or a value inside it, holds the reference `${env:VARIABLE}`."""
    return any(found[1] == f"env:{variable}" for text in texts_in(value) for found in REFERENCE.finditer(text))


class Substitution:
    """Replaces the references in a configuration, and remembers the secrets for masking.

    Args:
        environment: the variables; by default those of the process.
        may_wait: whether a file may be a pipe, which is waited for.

    Attributes:
        secrets: all substituted texts.
    """

    def __init__(self, environment: Mapping[str, str] | None = None, *, may_wait: bool = True) -> None:
        self._environment = os.environ if environment is None else environment
        self._may_wait = may_wait
        self.secrets: set[str] = set()

    def apply(self, text: str, report: Callable[[str], None]) -> str | None:
        """Return the text with its references replaced; None after a reported mistake.

        Args:
            text: a value of the file.
            report: receives each mistake, as the end of a sentence.
        """
        mistakes: list[str] = []
        values: list[str] = []

        def replace(found: re.Match[str]) -> str:
            if found[1] is None:
                return found[0].replace("$${", "${")
            try:
                values.append(self._value_of(found[1]))
            except InvalidValueError as mistake:
                mistakes.append(str(mistake))
                return ""
            return values[-1]

        result = REFERENCE.sub(replace, text)
        self.secrets.update(values)
        for mistake in mistakes:
            report(mistake)
        if mistakes:
            return None
        return SubstitutedText(result) if values else result

    def _value_of(self, reference: str) -> str:
        scheme, _, name = reference.partition(":")
        if scheme == "env" and name:
            if name not in self._environment:
                raise InvalidValueError(f"the environment variable {name} is not set")
            if not is_unicode(self._environment[name]):
                raise InvalidValueError(f"the environment variable {name} is not UTF-8 text")
            return self._environment[name]
        if scheme == "file" and name:
            return _content(name, may_wait=self._may_wait)
        raise InvalidValueError(
            f"${{{reference}}} must be ${{env:NAME}} or ${{file:PATH}}; a plain ${{ is written $${{"
        )


def _content(path: str, *, may_wait: bool) -> str:
    try:
        text = read_text(Path(path), _MAX_FILE_BYTES, may_wait=may_wait)
    except OSError as exc:
        raise InvalidValueError(f"the file {path} cannot be read: {exc.strerror or type(exc).__name__}") from None
    except ValueError:
        raise InvalidValueError(f"the path {path!r} is no path") from None
    return text.removesuffix("\n").removesuffix("\r")
