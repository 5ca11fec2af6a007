"""Makes foreign text fit for a terminal: no control sequence, no trick of direction; and the ASCII switch.

Whatever a cluster says (a name, a log line, an error body) is data. It is painted only after it went through here.
"""

import unicodedata

_ascii = False


def use_ascii(on: bool) -> None:
    """Say once, at start, that this terminal has no UTF-8. From then on only ASCII is painted."""
    global _ascii  # one switch for the process, since a terminal does not change its encoding
    _ascii = on
    _table.clear()


def is_ascii() -> bool:
    """Does this terminal show ASCII only?"""
    return _ascii


def glyph(sign: str, plain: str) -> str:
    """``sign``, or ``plain`` on a terminal without UTF-8."""
    return plain if _ascii else sign


UNSHOWN = "\N{REPLACEMENT CHARACTER}"
_UNSAFE_CATEGORIES = frozenset({"Cc", "Cf", "Cs", "Co", "Cn"})
_BLANK_LETTERS = frozenset({0x115F, 0x1160, 0x17B4, 0x17B5, 0x2800, 0x3164, 0xFFA0})
"""Letters that show nothing, with which two names can be made to look alike."""
_TABLE_LIMIT = 4096


def _is_selector(code: int) -> bool:
    """Variation selectors: they change a width on some terminals only, so they are left out."""
    return 0xFE00 <= code <= 0xFE0F or 0xE0100 <= code <= 0xE01EF or 0x180B <= code <= 0x180F or code == 0x034F


def _joins(code: int) -> bool:
    """Regional indicators and skin tones: terminals disagree on how wide a pair of them is."""
    return 0x1F1E6 <= code <= 0x1F1FF or 0x1F3FB <= code <= 0x1F3FF


def _shown(code: int) -> str:
    """What stands for one character on this terminal."""
    if 0x20 <= code < 0x7F:
        return chr(code)
    if code == 0x0A:
        return " " if _ascii else "⏎"
    if _ascii:
        return "" if _is_selector(code) else "?"
    if code < 0x20:
        return chr(0x2400 + code)
    if code == 0x7F:
        return "␡"
    category = unicodedata.category(chr(code))
    if category in ("Zl", "Zp"):
        return "⏎"
    if category == "Zs":
        return "  " if code == 0x3000 else " "
    if _is_selector(code):
        return ""
    if category in _UNSAFE_CATEGORIES or code in _BLANK_LETTERS or _joins(code):
        return UNSHOWN
    return chr(code)


class _Table(dict[int, str]):
    """Character to what is shown for it, worked out when first met."""

    def __missing__(self, code: int) -> str:
        if len(self) > _TABLE_LIMIT:
            self.clear()
        text = self[code] = _shown(code)
        return text


_table = _Table()


def safe(text: str) -> str:
    """The text as it may be painted: one line, tabs as spaces, every control character as a visible sign."""
    if text.isascii() and text.isprintable():
        return text
    if "\t" in text:
        text = text.expandtabs(8)
    return text.translate(_table)
