"""Makes foreign text fit for a terminal: no control sequence, no trick of direction, no secret; and the ASCII switch.

Whatever a cluster says (a name, a log line, an error body) is data. It is painted only after it went through here.
"""

import re
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


_NAMES = (
    r"password|passwd|passphrase|secret|token|credentials?|cookie|"
    r"api[_-]?key|access[_-]?key|secret[_-]?key|private[_-]?key|auth[_-]?key|encryption[_-]?key"
)
_HINTS = (
    *("passw", "passphrase", "secret", "token", "credential", "authorization", "cookie", "key", "bearer", "://"),
    *(
        "akia",
        "asia",
        "ghp_",
        "gho_",
        "ghu_",
        "ghs_",
        "ghr_",
        "github_pat_",
        "glpat-",
        "hf_",
        "sk-",
        "xox",
        "aiza",
        "eyj",
    ),
)
"""Is there anything to look at? Most lines of a log have none of these, and are done after a few plain searches."""

_VALUE = r"""(?:"[^"]*"|'[^']*'|\$\{\w*\}|[^\s"',;&})\]]+)"""
_QUIET = re.compile(
    r"(?:none|null|true|false|\d{1,9}|<[^>]*>|\[[^\]]*\]?|\{\{?[^}]*\}*|\$\w+|\$\{\w*\}|•+|\*+)\Z", re.IGNORECASE
)
"""Values that tell nothing: ``token=None``, ``eos_token=<pad>``, ``password=${PASSWORD}``."""

_RULES = (
    # Authorization: Bearer abc  /  "authorization": "Basic abc"
    re.compile(
        r"""(?P<keep>\bauthorization["']?\s*[:=]\s*["']?(?:(?:bearer|basic|token|digest)\s+)?)(?P<hide>[^\s"']+)""",
        re.I,
    ),
    re.compile(r"(?P<keep>\bbearer\s+)(?P<hide>[A-Za-z0-9._~+/=-]{8,})", re.I),
    # scheme://user:password@host
    re.compile(r"(?P<keep>\b[a-z][a-z0-9+.-]{1,20}://[^\s/:@]{0,200}:)(?P<hide>[^\s/]{1,500})(?=@)", re.I),
    re.compile(r"(?P<keep>\b[a-z][a-z0-9+.-]{1,20}://)(?P<hide>[A-Za-z0-9_-]{20,500})(?=@)", re.I),
    # NAME_TOKEN=abc, "password": "abc", --api-key abc
    re.compile(rf"""(?P<keep>(?<![A-Za-z0-9])(?:{_NAMES})["']?\s*[:=]\s*)(?P<hide>{_VALUE})""", re.I),
    re.compile(rf"(?P<keep>--(?:[a-z]{{1,30}}-){{0,3}}(?:{_NAMES})\s+)(?P<hide>[^\s-]\S*)", re.I),
    # formats that speak for themselves
    re.compile(
        r"(?P<keep>)(?P<hide>\b(?:(?:AKIA|ASIA)[0-9A-Z]{16}|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_\w{20,}|glpat-[\w-]{16,}|"
        r"hf_[A-Za-z0-9]{20,}|sk-[A-Za-z0-9_-]{20,}|xox[abeprs]-[A-Za-z0-9-]{10,}|AIza[\w-]{30,}|"
        r"eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*))"
    ),
    re.compile(r"(?P<keep>-----BEGIN [A-Z ]{0,30}PRIVATE KEY-----)(?P<hide>.*?)(?=-----END|\Z)", re.DOTALL),
)
_KEY_BODY = re.compile(r"\s*(?=\S*[a-z])(?=\S*[A-Z])(?=\S*[0-9])[A-Za-z0-9+/]{64,76}={0,2}\s*\Z")
"""A whole line of a private key's body, as seen in a log of one line each."""


def _hide(match: re.Match[str]) -> str:
    hidden = match["hide"]
    bare = hidden.strip("\"'")
    if not bare or _QUIET.match(bare):
        return match[0]
    quote = hidden[0] if hidden[0] in "\"'" and hidden[-1] == hidden[0] and len(hidden) > 1 else ""
    return f"{match['keep']}{quote}{glyph('•••', '***')}{quote}"


def redact(text: str) -> str:
    """The text with what looks like a secret (token, password, key, credentials in an address) painted over."""
    if len(text) >= 64 and _KEY_BODY.match(text):
        return glyph("•••", "***")
    lower = text.lower()
    for hint in _HINTS:
        if hint in lower:
            break
    else:
        return text
    for rule in _RULES:
        text = rule.sub(_hide, text)
    return text
