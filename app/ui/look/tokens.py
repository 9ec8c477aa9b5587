"""The design's tokens: every colour the window uses, for light and for dark. Qt-free, so contrast can be tested."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Tokens:
    """Colours by the part they play, as #rrggbb.

    text, text2 and text3 are the three voices: what one reads, what explains it, what only labels it.
    """

    dark: bool
    window: str
    sidebar: str
    panel: str
    raised: str
    hover: str
    selected: str
    pressed: str
    hairline: str
    border: str
    text: str
    text2: str
    text3: str
    disabled: str
    accent: str
    accent_hover: str
    on_accent: str
    accent_soft: str
    link: str
    warn_bg: str
    warn_text: str
    notice_bg: str
    notice_text: str
    differs_bg: str
    track: str
    code_bg: str
    code_text: str
    code_comment: str
    code_string: str
    code_number: str
    code_keyword: str
    code_name: str
    chats: tuple[str, ...]
    mono: str = "monospace"  # the family code is set in, found at start


LIGHT = Tokens(
    dark=False,
    window="#ffffff",
    sidebar="#f5f5f8",
    panel="#fafafc",
    raised="#ffffff",
    hover="#ececf1",
    selected="#e4e4ec",
    pressed="#dcdce5",
    hairline="#e8e8ee",
    border="#d5d6df",
    text="#1b1c22",
    text2="#545767",
    text3="#626575",
    disabled="#a3a5b1",
    accent="#524fd1",
    accent_hover="#4543b8",
    on_accent="#ffffff",
    accent_soft="#edecfc",
    link="#4845c4",
    warn_bg="#fdf1e7",
    warn_text="#8a3d06",
    notice_bg="#f0f0f6",
    notice_text="#454857",
    differs_bg="#fdeecb",
    track="#e6e6ed",
    code_bg="#f5f5f8",
    code_text="#23252d",
    code_comment="#63677a",
    code_string="#1d6b3c",
    code_number="#9a4a06",
    code_keyword="#7a2fb8",
    code_name="#1a5fb0",
    chats=("#5a57da", "#0c9488", "#d26a10", "#c93d86", "#2a7fd4", "#4b9636", "#9a50cf", "#8a7558"),
)

DARK = Tokens(
    dark=True,
    window="#17181c",
    sidebar="#1d1e24",
    panel="#1a1b20",
    raised="#212329",
    hover="#282a32",
    selected="#30323c",
    pressed="#383b46",
    hairline="#292b33",
    border="#3c3f4b",
    text="#ecedf2",
    text2="#abaebb",
    text3="#979aa8",
    disabled="#646877",
    accent="#8d8aff",
    accent_hover="#a3a1ff",
    on_accent="#14141c",
    accent_soft="#2c2b4c",
    link="#a6a4ff",
    warn_bg="#3a2415",
    warn_text="#fbbf8c",
    notice_bg="#24262e",
    notice_text="#c5c8d4",
    differs_bg="#4a3a12",
    track="#2d2f38",
    code_bg="#1f2127",
    code_text="#e2e4ea",
    code_comment="#959aab",
    code_string="#8fd6a3",
    code_number="#f2b27a",
    code_keyword="#cfa6f5",
    code_name="#86bdf7",
    chats=("#8d8aff", "#33c3b4", "#f0a04b", "#f27ab6", "#63b0f5", "#86cc6e", "#c795f2", "#c4b299"),
)

# Pairs of (text, background) that are set on each other somewhere; the tests hold each to WCAG AA.
PAIRS: tuple[tuple[str, str], ...] = (
    *((text, ground) for text in ("text", "text2", "text3") for ground in ("window", "sidebar", "panel", "raised")),
    *((text, ground) for text in ("text", "text2", "text3") for ground in ("hover", "selected")),
    ("text", "accent_soft"),
    ("text2", "accent_soft"),
    ("on_accent", "accent"),
    ("on_accent", "accent_hover"),
    ("link", "window"),
    ("link", "panel"),
    ("link", "sidebar"),
    ("warn_text", "warn_bg"),
    ("warn_text", "window"),
    ("notice_text", "notice_bg"),
    ("text", "differs_bg"),
    *((code, "code_bg") for code in ("code_text", "code_comment", "code_string", "code_number")),
    *((code, "code_bg") for code in ("code_keyword", "code_name")),
)


def _luminance(colour: str) -> float:
    def linear(channel: int) -> float:
        value = channel / 255
        return value / 12.92 if value <= 0.04045 else float(((value + 0.055) / 1.055) ** 2.4)

    red, green, blue = (linear(int(colour[i : i + 2], 16)) for i in (1, 3, 5))
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(first: str, second: str) -> float:
    """WCAG 2 contrast ratio of two colours, 1 to 21."""
    lighter, darker = sorted((_luminance(first), _luminance(second)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


def blend(top: str, ground: str, share: float) -> str:
    """`share` of one colour laid over another."""
    mixed = (round(int(top[i : i + 2], 16) * share + int(ground[i : i + 2], 16) * (1 - share)) for i in (1, 3, 5))
    return "#" + "".join(f"{channel:02x}" for channel in mixed)
