"""Owns what looks like a secret in text from the cluster, and paints over it. Pure.

Its patterns take 15 ms to compile: whoever has to be quick imports it when there is text.
"""

import re
from collections.abc import Callable

MARK = "•••"
"""What stands where a secret stood."""

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


def redact(text: str, mark: str = MARK) -> str:
    """The text with what looks like a secret (token, password, key, credentials in an address) painted over."""
    if len(text) >= 64 and _KEY_BODY.match(text):
        return mark
    lower = text.lower()
    for hint in _HINTS:
        if hint in lower:
            break
    else:
        return text
    hide = _hider(mark)
    for rule in _RULES:
        text = rule.sub(hide, text)
    return text


def _hider(mark: str) -> Callable[[re.Match[str]], str]:
    def hide(match: re.Match[str]) -> str:
        hidden = match["hide"]
        bare = hidden.strip("\"'")
        if not bare or _QUIET.match(bare):
            return match[0]
        quote = hidden[0] if hidden[0] in "\"'" and hidden[-1] == hidden[0] and len(hidden) > 1 else ""
        return f"{match['keep']}{quote}{mark}{quote}"

    return hide
