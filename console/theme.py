"""How things look: the themes, and what each style name of a cell means in them.

A theme is chosen by what the terminal can show. The surfaces of the true-colour themes are greys that stand in the
256-colour palette themselves, because OpenSSH does not forward COLORTERM, and a dark theme that is rounded to that
palette turns flat black otherwise.
"""

import codecs
from collections.abc import Mapping

from rich.style import Style
from textual.color import Color, ColorParseError
from textual.theme import BUILTIN_THEMES, Theme

from console.render.cells import STATE_GLYPHS, state_glyph, state_style

__all__ = [
    "STATE_GLYPHS",
    "STYLES",
    "THEMES",
    "choose_theme",
    "state_glyph",
    "state_style",
    "style_for",
    "variable_for",
    "wants_ascii",
]

DARK = Theme(
    name="raydeck-dark",
    primary="#5fafff",
    secondary="#87afd7",
    warning="#ffaf00",
    error="#ff5f5f",
    success="#5fd787",
    accent="#5fd7d7",
    foreground="#dadada",
    background="#121212",
    surface="#1c1c1c",
    panel="#303030",
    boost="#262626",
    dark=True,
    variables={
        "border": "#5fafff",
        "border-blurred": "#585858",
        "scrollbar": "#585858",
        "scrollbar-hover": "#6c6c6c",
        "scrollbar-active": "#8a8a8a",
        "scrollbar-background": "#1c1c1c",
        "scrollbar-background-hover": "#1c1c1c",
        "scrollbar-background-active": "#1c1c1c",
        "scrollbar-corner-color": "#1c1c1c",
        "block-cursor-background": "#005f87",
        "block-cursor-foreground": "#ffffff",
        "block-cursor-text-style": "none",
        "block-cursor-blurred-background": "#3a3a3a",
        "block-cursor-blurred-foreground": "#dadada",
        "input-selection-background": "#005f87",
        "footer-background": "#303030",
        "footer-key-foreground": "#ffaf00",
        "deck-muted": "#8a8a8a",
        "deck-idle": "#6c6c6c",
        "deck-stale": "#af8700",
        "deck-busy": "#5fafff",
        "deck-info": "#87afd7",
        "deck-title": "#ffffff",
        "deck-simulated": "#d787ff",
        "deck-load1": "#5f87af",
        "deck-load2": "#5fafaf",
        "deck-load3": "#87d75f",
        "deck-load4": "#d7ff5f",
        "deck-match": "#ffff00",
    },
)

LIGHT = Theme(
    name="raydeck-light",
    primary="#005faf",
    secondary="#005f87",
    warning="#875f00",
    error="#af0000",
    success="#005f00",
    accent="#005f87",
    foreground="#262626",
    background="#eeeeee",
    surface="#e4e4e4",
    panel="#d0d0d0",
    boost="#dadada",
    dark=False,
    variables={
        "border": "#005faf",
        "border-blurred": "#9e9e9e",
        "scrollbar": "#9e9e9e",
        "scrollbar-hover": "#8a8a8a",
        "scrollbar-active": "#767676",
        "scrollbar-background": "#e4e4e4",
        "scrollbar-background-hover": "#e4e4e4",
        "scrollbar-background-active": "#e4e4e4",
        "scrollbar-corner-color": "#e4e4e4",
        "block-cursor-background": "#afd7ff",
        "block-cursor-foreground": "#000000",
        "block-cursor-text-style": "none",
        "block-cursor-blurred-background": "#c6c6c6",
        "block-cursor-blurred-foreground": "#262626",
        "input-selection-background": "#afd7ff",
        "footer-background": "#d0d0d0",
        "footer-key-foreground": "#875f00",
        "deck-muted": "#626262",
        "deck-idle": "#8a8a8a",
        "deck-stale": "#875f00",
        "deck-busy": "#005faf",
        "deck-info": "#005f87",
        "deck-title": "#000000",
        "deck-simulated": "#8700af",
        "deck-load1": "#5f5f87",
        "deck-load2": "#008787",
        "deck-load3": "#008700",
        "deck-load4": "#5f5f00",
        "deck-match": "#af5f00",
    },
)

SIXTEEN = Theme(
    name="raydeck-16",
    ansi=True,
    primary="ansi_cyan",
    secondary="ansi_blue",
    warning="ansi_yellow",
    error="ansi_bright_red",
    success="ansi_green",
    accent="ansi_cyan",
    foreground="ansi_default",
    background="ansi_default",
    surface="ansi_default",
    panel="ansi_default",
    boost="ansi_default",
    dark=True,
    variables={
        "ansi-background": "ansi_black",
        "ansi-foreground": "ansi_white",
        "border": "ansi_cyan",
        "border-blurred": "ansi_bright_black",
        "scrollbar": "ansi_white",
        "scrollbar-background": "ansi_default",
        "block-cursor-foreground": "ansi_black",
        "block-cursor-background": "ansi_cyan",
        "block-cursor-text-style": "none",
        "block-cursor-blurred-foreground": "ansi_black",
        "block-cursor-blurred-background": "ansi_white",
        "input-cursor-background": "ansi_black",
        "input-cursor-foreground": "ansi_white",
        "input-selection-background": "ansi_cyan",
        "input-selection-foreground": "ansi_black",
        "screen-selection-background": "ansi_cyan",
        "screen-selection-foreground": "ansi_black",
        "footer-key-foreground": "ansi_yellow",
        "deck-muted": "ansi_white",
        "deck-idle": "ansi_white",
        "deck-stale": "ansi_yellow",
        "deck-busy": "ansi_cyan",
        "deck-info": "ansi_cyan",
        "deck-title": "ansi_bright_white",
        "deck-simulated": "ansi_magenta",
        "deck-load1": "ansi_cyan",
        "deck-load2": "ansi_cyan",
        "deck-load3": "ansi_green",
        "deck-load4": "ansi_bright_green",
        "deck-match": "ansi_yellow",
    },
)

COLOR_BLIND = Theme(
    # Blue, orange and yellow (Okabe and Ito): no meaning rests on red against green.
    name="raydeck-color-blind",
    primary="#5fafff",
    secondary="#87afd7",
    warning="#ffd75f",
    error="#ff8700",
    success="#5fafff",
    accent="#d7afff",
    foreground="#dadada",
    background="#121212",
    surface="#1c1c1c",
    panel="#303030",
    boost="#262626",
    dark=True,
    variables={
        **DARK.variables,
        "deck-load1": "#5f87af",
        "deck-load2": "#87afd7",
        "deck-load3": "#d7d7af",
        "deck-load4": "#ffd75f",
    },
)

THEMES: tuple[Theme, ...] = (DARK, LIGHT, SIXTEEN, COLOR_BLIND)
"""Our themes, for `App.register_theme`. Any theme of Textual's works too; `style_for` finds colours in it that fit."""

STYLES: dict[str, tuple[str, str, str]] = {
    "": ("foreground", "foreground", ""),
    "ok": ("success", "success", ""),
    "warn": ("warning", "warning", ""),
    "bad": ("error", "error", "bold"),
    "muted": ("deck-muted", "text-muted", ""),
    "accent": ("accent", "accent", ""),
    "stale": ("deck-stale", "warning", ""),
    "busy": ("deck-busy", "primary", ""),
    "idle": ("deck-idle", "text-muted", ""),
    "title": ("deck-title", "foreground", "bold"),
    "key": ("footer-key-foreground", "warning", "bold"),
    "simulated": ("deck-simulated", "accent", "bold"),
    "info": ("deck-info", "secondary", ""),
    "load1": ("deck-load1", "secondary", ""),
    "load2": ("deck-load2", "primary", ""),
    "load3": ("deck-load3", "success", ""),
    "load4": ("deck-load4", "success", "bold"),
    "match": ("deck-match", "warning", "reverse"),
}
"""Style name to its theme variable, the variable that stands in for it in a theme of Textual's own, and attributes."""

_variables: dict[str, dict[str, str]] = {}
_styles: dict[tuple[str, str], Style] = {}


def _variables_of(theme: Theme) -> dict[str, str]:
    known = _variables.get(theme.name)
    if known is None:
        known = _variables[theme.name] = {**theme.to_color_system().generate(), **theme.variables}
    return known


def _theme_named(name: str) -> Theme:
    for theme in THEMES:
        if theme.name == name:
            return theme
    return BUILTIN_THEMES.get(name, DARK)


def variable_for(name: str, theme: Theme | str) -> str:
    """The colour of a style name in a theme, as CSS says it. A name that is not in `STYLES` looks like plain text."""
    variables = _variables_of(_theme_named(theme) if isinstance(theme, str) else theme)
    ours, fallback, _ = STYLES.get(name, STYLES[""])
    return variables.get(ours) or variables[fallback]


def style_for(name: str, theme: Theme | str) -> Style:
    """The Rich style of a style name in a theme, without a background, made once.

    Args:
        name: One of `STYLES`. An unknown name looks like plain text.
        theme: A theme, such as ``app.current_theme``, or the name of one.
    """
    key = (name, theme if isinstance(theme, str) else theme.name)
    style = _styles.get(key)
    if style is None:
        style = Style.parse(STYLES.get(name, STYLES[""])[2] or "none")
        try:
            color = Color.parse(variable_for(name, theme))
        except ColorParseError:
            color = None  # such as "auto 60%" in a theme of Textual's own: the widget's colour is right there
        if color is not None and not color.is_transparent:
            style = Style(color=color.rich_color) + style
        _styles[key] = style
    return style


def choose_theme(environ: Mapping[str, str]) -> str:
    """The name of the theme that this terminal can show.

    True colour and 256 colours take the same themes. The background is taken for light only where the terminal says so
    (COLORFGBG). Everything else (the Linux console, a serial line, NO_COLOR) gets the sixteen colours of the terminal.
    """
    term = environ.get("TERM", "").lower()
    many = environ.get("COLORTERM", "").lower() in ("truecolor", "24bit") or any(
        word in term for word in ("256color", "truecolor", "direct", "kitty", "alacritty", "ghostty", "wezterm")
    )
    if environ.get("NO_COLOR") or not many:
        return SIXTEEN.name
    background = environ.get("COLORFGBG", "").rpartition(";")[2]
    return LIGHT.name if background in ("7", "15") else DARK.name


def wants_ascii(environ: Mapping[str, str], encoding: str | None) -> bool:
    """Does this terminal have to do without UTF-8?

    Args:
        environ: The process's environment; the locale's usual order LC_ALL, LC_CTYPE, LANG counts.
        encoding: What standard output says it writes; ``None`` if it does not say.
    """
    locale = environ.get("LC_ALL") or environ.get("LC_CTYPE") or environ.get("LANG") or ""
    named = locale.partition("@")[0].partition(".")[2] or (encoding or "")
    try:
        return codecs.lookup(named).name != "utf-8"
    except LookupError:
        return True
