"""Paints over what looks like a secret, with a mark that this terminal can show.

Apart from `console.render.safe`, since the patterns take 15 ms to compile and the first paint shows no log.
"""

from console.render.safe import glyph
from jobs.redact import MARK
from jobs.redact import redact as painted


def redact(text: str) -> str:
    """The text with what looks like a secret (token, password, key, credentials in an address) painted over."""
    return painted(text, glyph(MARK, "***"))
