"""Light and dark: follows the system or a choice, and dresses the application in palette and style sheet."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from string import Template

from PySide6.QtCore import QObject, Qt, Signal
from PySide6.QtGui import QColor, QPalette
from PySide6.QtWidgets import QApplication

from app.ui.look import fonts
from app.ui.look.assets import resource
from app.ui.look.tokens import DARK, LIGHT, Tokens

NAMES = ("system", "light", "dark")


class Theme(QObject):
    """The one theme of the application; widgets that paint for themselves listen to `changed`."""

    changed = Signal()

    def __init__(self, app: QApplication) -> None:
        super().__init__(app)
        self._app = app
        self._name = "system"
        app.setStyle("Fusion")
        app.setFont(fonts.interface_font())
        self.base = fonts.base_px()
        self._mono = fonts.monospaced_family()
        self.tokens: Tokens = replace(LIGHT, mono=self._mono)
        self._dressed = False
        app.styleHints().colorSchemeChanged.connect(self._system_changed)
        self._dress()

    @property
    def name(self) -> str:
        return self._name

    def set_name(self, name: str) -> None:
        """Choose "light", "dark" or "system" (follow it, as it changes)."""
        if name not in NAMES:
            raise ValueError(f"There is no theme {name!r}; choose one of: {', '.join(NAMES)}.")
        self._name = name
        self._dress()

    @contextmanager
    def dressed_once(self) -> Iterator[None]:
        """Dress the widgets made inside at the end, once: else each is dressed anew with every parent it gets.

        That was half of the time it took to make the window.
        """
        sheet = self._app.styleSheet()
        self._app.setStyleSheet("")
        try:
            yield
        finally:
            self._app.setStyleSheet(sheet)

    def chat_colour(self, index: int) -> QColor:
        return QColor(self.tokens.chats[index % len(self.tokens.chats)])

    def _system_changed(self) -> None:
        if self._name == "system":
            self._dress()

    def _dress(self) -> None:
        dark = self._name == "dark" or (
            self._name == "system" and self._app.styleHints().colorScheme() == Qt.ColorScheme.Dark
        )
        tokens = replace(DARK if dark else LIGHT, mono=self._mono)
        if self._dressed and tokens == self.tokens:
            return  # restyling every widget for nothing would be felt
        self.tokens, self._dressed = tokens, True
        self._app.setPalette(_palette(self.tokens))
        self._app.setStyleSheet(style_sheet(self.tokens, self.base))
        self.changed.emit()


def _palette(tokens: Tokens) -> QPalette:
    palette = QPalette()
    roles = {
        QPalette.ColorRole.Window: tokens.window,
        QPalette.ColorRole.WindowText: tokens.text,
        QPalette.ColorRole.Base: tokens.raised,
        QPalette.ColorRole.AlternateBase: tokens.panel,
        QPalette.ColorRole.Text: tokens.text,
        QPalette.ColorRole.Button: tokens.raised,
        QPalette.ColorRole.ButtonText: tokens.text,
        QPalette.ColorRole.BrightText: tokens.on_accent,
        QPalette.ColorRole.ToolTipBase: tokens.raised,
        QPalette.ColorRole.ToolTipText: tokens.text,
        QPalette.ColorRole.PlaceholderText: tokens.text3,
        QPalette.ColorRole.Highlight: tokens.accent,
        QPalette.ColorRole.HighlightedText: tokens.on_accent,
        QPalette.ColorRole.Link: tokens.link,
        QPalette.ColorRole.Mid: tokens.border,
        QPalette.ColorRole.Accent: tokens.accent,
    }
    for role, colour in roles.items():
        palette.setColor(role, QColor(colour))
    for role in (QPalette.ColorRole.Text, QPalette.ColorRole.WindowText, QPalette.ColorRole.ButtonText):
        palette.setColor(QPalette.ColorGroup.Disabled, role, QColor(tokens.disabled))
    return palette


def style_sheet(tokens: Tokens, base: int) -> str:
    """resources/style.qss with the tokens filled in. An unknown token there is a KeyError."""
    values: dict[str, object] = {key: value for key, value in asdict(tokens).items() if isinstance(value, str)}
    values |= {"base": base, "small": base - 1, "tiny": base - 2, "reading": base + 2, "title": base + 2}
    values |= {"large": base + 9, "display": base + 17}
    return Template(resource("style.qss").read_text(encoding="utf-8")).substitute(values)


def theme() -> Theme:
    """The application's theme, made when first asked for."""
    app = QApplication.instance()
    assert isinstance(app, QApplication), "make the QApplication before any widget"
    found = app.findChild(Theme)
    return found if isinstance(found, Theme) else Theme(app)
