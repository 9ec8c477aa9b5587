"""The small parts everything else is made of: labels in a voice, icon buttons, dots, thin bars, segment switches."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from itertools import pairwise

from PySide6.QtCore import QRectF, QSize, Qt, Signal
from PySide6.QtGui import QColor, QFontMetrics, QPainter, QPaintEvent, QResizeEvent
from PySide6.QtGui import Qt as GuiQt
from PySide6.QtWidgets import (
    QButtonGroup,
    QFrame,
    QHBoxLayout,
    QLabel,
    QLayout,
    QPushButton,
    QScrollArea,
    QSizePolicy,
    QToolButton,
    QWidget,
)

from app.ui.look.icons import icon
from app.ui.look.theme import theme
from app.ui.look.words import split_number


def label(text: str = "", voice: str = "", wrap: bool = False) -> QLabel:
    """A plain-text label; `voice` is one of the style sheet's: 2, 3, caption, title, large, display, chip..."""
    made = QLabel(text)
    made.setTextFormat(Qt.TextFormat.PlainText)
    made.setWordWrap(wrap)
    if voice:
        made.setProperty("voice", voice)
    return made


def button(text: str, kind: str = "") -> QPushButton:
    made = QPushButton(text)
    made.setCursor(Qt.CursorShape.PointingHandCursor)
    # Clicking a button leaves the keyboard where it is; Tab reaches it and shows the focus ring.
    made.setFocusPolicy(Qt.FocusPolicy.TabFocus)
    if kind:
        made.setProperty("kind", kind)
    return made


def plain_tip(text: str) -> str:
    """A tooltip that shows `text` as it is.

    Qt takes a text that looks like HTML for HTML, and then loads whatever files it names, so a chat's words must not.
    """
    if not GuiQt.mightBeRichText(text):
        return text
    return f"<qt>{escape(text).replace(chr(10), '<br>')}</qt>"


def set_tip(widget: QWidget, text: str) -> None:
    """Give a widget a tooltip; the window's only way to, because any text may hold words of a chat."""
    widget.setToolTip(plain_tip(text))
    widget.setAccessibleDescription(text)  # or a screen reader would read the tooltip's markup


def restyle(widget: QWidget) -> None:
    """Let a changed property reach the style sheet."""
    widget.style().unpolish(widget)
    widget.style().polish(widget)


def chain_focus(widgets: Sequence[QWidget]) -> None:
    """Let Tab go from each to the next."""
    for first, second in pairwise(widgets):
        QWidget.setTabOrder(first, second)


def clear_layout(layout: QLayout) -> None:
    """Take everything out of a layout and let it go."""
    while (item := layout.takeAt(0)) is not None:
        if (inner := item.widget()) is not None:
            inner.setParent(None)
            inner.deleteLater()


def elided(metrics: QFontMetrics, text: str, width: int) -> str:
    """As much of the text as fits, then "…"; the number of a fork stays, by which one tells it from its parent."""
    start, number = split_number(text)
    if metrics.horizontalAdvance(text) <= width or not number:
        return metrics.elidedText(text, Qt.TextElideMode.ElideRight, width)
    return metrics.elidedText(start, Qt.TextElideMode.ElideRight, width - metrics.horizontalAdvance(number)) + number


class ElidedLabel(QLabel):
    """One line that ends in "…" where it doesn't fit, and says all of it in its tooltip then.

    A tip of its own stands there, too.
    """

    def __init__(self, text: str = "", voice: str = "") -> None:
        super().__init__()
        self.setTextFormat(Qt.TextFormat.PlainText)
        self._full, self._tip = text, ""
        if voice:
            self.setProperty("voice", voice)
        self.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Preferred)
        self.set_full(text)

    def set_full(self, text: str, tip: str = "") -> None:
        self._full, self._tip = text, tip
        self.updateGeometry()
        self._fit()

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._fit()

    def sizeHint(self) -> QSize:
        hint = super().sizeHint()
        self.ensurePolished()
        return QSize(self.fontMetrics().horizontalAdvance(self._full) + 2, hint.height())

    def minimumSizeHint(self) -> QSize:
        return QSize(24, super().minimumSizeHint().height())

    def _fit(self) -> None:
        self.ensurePolished()
        shown = elided(self.fontMetrics(), self._full, max(self.width(), 1))
        if shown != self.text():
            super().setText(shown)
        set_tip(self, "\n".join(part for part in (self._full if shown != self._full else "", self._tip) if part))
        self.setAccessibleName(self._full)


class IconButton(QToolButton):
    """A square button with one of our icons, tinted by the theme.

    One that is not `revealed` keeps its place but is drawn only while it has the keyboard.
    """

    def __init__(self, name: str, says: str, size: int = 28, role: str = "text2", icon_size: int = 16) -> None:
        super().__init__()
        self._icon_name, self._role, self._icon_size = name, role, icon_size
        self.revealed = True
        self.setProperty("kind", "icon")
        self.setFixedSize(size, size)
        self.setIconSize(QSize(icon_size, icon_size))
        self.setCursor(Qt.CursorShape.PointingHandCursor)
        self.setFocusPolicy(Qt.FocusPolicy.TabFocus)
        set_tip(self, says)
        self.setAccessibleName(says)
        theme().changed.connect(self._tint)
        self._tint()

    def set_icon(self, name: str, says: str) -> None:
        self._icon_name = name
        set_tip(self, says)
        self.setAccessibleName(says)
        self._tint()

    def reveal(self, revealed: bool) -> None:
        if revealed != self.revealed:
            self.revealed = revealed
            self.update()

    def paintEvent(self, event: QPaintEvent) -> None:
        if self.revealed or self.hasFocus():
            super().paintEvent(event)

    def _tint(self) -> None:
        self.setIcon(icon(self._icon_name, getattr(theme().tokens, self._role), self._icon_size))


class Dot(QWidget):
    """A chat's colour."""

    def __init__(self, colour_index: int = 0, size: int = 8) -> None:
        super().__init__()
        self._index, self._size = colour_index, size
        self.setFixedSize(size, size)
        theme().changed.connect(self.update)

    def set_colour(self, index: int) -> None:
        self._index = index
        self.update()

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        painter.setPen(Qt.PenStyle.NoPen)
        painter.setBrush(theme().chat_colour(self._index))
        painter.drawEllipse(QRectF(0, 0, self._size, self._size))


class ThinBar(QWidget):
    """A slim rounded bar, `fraction` full; None draws it as a waiting third."""

    def __init__(self, height: int = 4) -> None:
        super().__init__()
        self._fraction: float | None = 0.0
        self._colour_index: int | None = None
        self.setFixedHeight(height)
        theme().changed.connect(self.update)

    def show_fraction(self, fraction: float | None, colour_index: int | None = None) -> None:
        self._fraction, self._colour_index = fraction, colour_index
        self.update()

    def paintEvent(self, event: QPaintEvent) -> None:
        tokens = theme().tokens
        colour = QColor(tokens.accent) if self._colour_index is None else theme().chat_colour(self._colour_index)
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        painter.setPen(Qt.PenStyle.NoPen)
        radius = self.height() / 2
        painter.setBrush(QColor(tokens.track))
        painter.drawRoundedRect(QRectF(self.rect()), radius, radius)
        full = self.width() * min(max(self._fraction if self._fraction is not None else 0.33, 0.0), 1.0)
        if full > 0:
            painter.setBrush(colour)
            # Never narrower than it is high: a rounded bar can't be drawn thinner.
            painter.drawRoundedRect(QRectF(0, 0, max(full, self.height()), self.height()), radius, radius)


class Segments(QFrame):
    """A row of choices of which one is taken."""

    chosen = Signal(int)

    def __init__(self, names: Sequence[str], says: str, height: int = 30) -> None:
        super().__init__()
        self.setObjectName("segments")
        self.setAccessibleName(says)
        self.setFixedHeight(height)
        layout = QHBoxLayout(self)
        layout.setContentsMargins(2, 2, 2, 2)
        layout.setSpacing(2)
        self._group = QButtonGroup(self)
        self._group.setExclusive(True)
        for index, name in enumerate(names):
            part = button(name)
            part.setCheckable(True)
            part.setAccessibleName(f"{says}: {name}")
            part.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Expanding)
            part.setMinimumWidth(20)
            self._group.addButton(part, index)
            layout.addWidget(part, 1)
        self._group.idClicked.connect(self.chosen)

    def choose(self, index: int) -> None:
        """Take a choice without saying so."""
        if (part := self._group.button(index)) is not None:
            part.setChecked(True)

    @property
    def current(self) -> int:
        return self._group.checkedId()


class ScrollArea(QScrollArea):
    """A frameless area that fits what it shows to its own size one way and scrolls the other."""

    def __init__(self, along: Qt.Orientation = Qt.Orientation.Vertical) -> None:
        super().__init__()
        self.setWidgetResizable(True)
        self.setFrameShape(QFrame.Shape.NoFrame)
        self.setFocusPolicy(Qt.FocusPolicy.NoFocus)
        if along == Qt.Orientation.Vertical:
            self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        else:
            self.setVerticalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)


def rule() -> QFrame:
    """A hairline."""
    line = QFrame()
    line.setProperty("rule", True)
    line.setFixedHeight(1)
    return line
