"""The themes: every style can be read on every surface, also when the terminal rounds colours to 256 or has 16."""

from itertools import combinations

import pytest
from rich.color import Color as RichColor
from rich.color import ColorSystem
from textual.color import Color
from textual.theme import BUILTIN_THEMES, Theme

from console.render.cells import STATE_GLYPHS, STYLE_NAMES
from console.theme import STYLES, THEMES, choose_theme, style_for, variable_for, wants_ascii

TRUE_COLOR = [theme for theme in THEMES if not theme.ansi]
SURFACES = ("background", "surface", "panel")


def in_256(color: str) -> RichColor:
    """The colour that a terminal with 256 of them shows."""
    return RichColor.parse(Color.parse(color).hex[:7]).downgrade(ColorSystem.EIGHT_BIT)


def luminance(color: RichColor) -> float:
    triplet = color.get_truecolor()

    def linear(part: int) -> float:
        share = part / 255
        return share / 12.92 if share <= 0.03928 else ((share + 0.055) / 1.055) ** 2.4

    return 0.2126 * linear(triplet.red) + 0.7152 * linear(triplet.green) + 0.0722 * linear(triplet.blue)


def contrast(one: RichColor, other: RichColor) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_every_style_name_has_a_look() -> None:
    assert set(STYLE_NAMES) <= set(STYLES)
    assert {style for _, _, style in STATE_GLYPHS.values()} <= set(STYLES)


@pytest.mark.parametrize("theme", TRUE_COLOR, ids=lambda theme: theme.name)
def test_surfaces_stay_apart_and_off_black_with_256_colours(theme: Theme) -> None:
    variables = {**theme.to_color_system().generate(), **theme.variables}
    surfaces = {name: in_256(variables[name]) for name in (*SURFACES, "block-cursor-background")}
    for one, other in combinations(surfaces, 2):
        assert surfaces[one].number != surfaces[other].number, (one, other)
    for name, color in surfaces.items():
        assert color.number != 16, f"{name} turned black"
        red, green, blue = color.get_truecolor()
        wanted = Color.parse(variables[name])
        assert max(abs(red - wanted.r), abs(green - wanted.g), abs(blue - wanted.b)) <= 10, f"{name} changed its colour"


@pytest.mark.parametrize("theme", TRUE_COLOR, ids=lambda theme: theme.name)
@pytest.mark.parametrize("surface", SURFACES)
def test_every_style_can_be_read_with_256_colours(theme: Theme, surface: str) -> None:
    variables = {**theme.to_color_system().generate(), **theme.variables}
    under = in_256(variables[surface])
    for name in STYLES:
        least = 1.5 if name in ("match", "idle") else 2.5
        assert contrast(in_256(variable_for(name, theme)), under) >= least, name


@pytest.mark.parametrize("theme", TRUE_COLOR, ids=lambda theme: theme.name)
def test_the_cursors_bar_can_be_read(theme: Theme) -> None:
    for which in ("block-cursor", "block-cursor-blurred"):
        front, back = theme.variables[f"{which}-foreground"], theme.variables[f"{which}-background"]
        assert contrast(in_256(front), in_256(back)) >= 4.5


def test_the_theme_for_16_colours_uses_no_other() -> None:
    theme = next(theme for theme in THEMES if theme.ansi)
    for name in STYLES:
        color = style_for(name, theme).color
        assert color is not None
        assert color.is_default or (color.number is not None and color.number < 16), name
    for value in theme.variables.values():
        assert value.startswith("ansi_") or value == "none"


def test_styles_are_made_once_and_unknown_names_are_plain() -> None:
    assert style_for("ok", THEMES[0]) is style_for("ok", THEMES[0])
    assert style_for("never heard of", THEMES[0]) == style_for("", THEMES[0])
    assert style_for("ok", "raydeck-dark") == style_for("ok", THEMES[0])


@pytest.mark.parametrize("name", BUILTIN_THEMES)
def test_textuals_own_themes_work_too(name: str) -> None:
    for style in STYLES:
        style_for(style, name)
    assert style_for("bad", name) != style_for("ok", name)


@pytest.mark.parametrize(
    ("environ", "name"),
    [
        ({"TERM": "xterm-256color", "COLORTERM": "truecolor"}, "raydeck-dark"),
        ({"TERM": "xterm-256color"}, "raydeck-dark"),
        ({"TERM": "tmux-256color", "COLORFGBG": "0;15"}, "raydeck-light"),
        ({"TERM": "linux"}, "raydeck-16"),
        ({"TERM": "vt100"}, "raydeck-16"),
        ({"TERM": "screen"}, "raydeck-16"),
        ({"TERM": "xterm-256color", "NO_COLOR": "1"}, "raydeck-16"),
        ({}, "raydeck-16"),
    ],
)
def test_the_theme_follows_the_terminal(environ: dict[str, str], name: str) -> None:
    assert choose_theme(environ) == name


@pytest.mark.parametrize(
    ("environ", "encoding", "ascii_only"),
    [
        ({"LANG": "en_US.UTF-8"}, "utf-8", False),
        ({"LANG": "de_DE.utf8@euro"}, "utf-8", False),
        ({"LANG": "en_US.ISO-8859-1"}, "utf-8", True),
        ({"LC_ALL": "C.UTF-8", "LANG": "en_US.ISO-8859-1"}, None, False),
        ({"LANG": "C"}, "ascii", True),
        ({}, "utf-8", False),
        ({}, None, True),
    ],
)
def test_ascii_follows_the_locale(environ: dict[str, str], encoding: str | None, ascii_only: bool) -> None:
    assert wants_ascii(environ, encoding) is ascii_only
