"""The popover that picks how a chat's memory is compressed: a method, and its bits."""

from __future__ import annotations

from PySide6.QtCore import QPoint, QRect, QSize, Qt, Signal
from PySide6.QtGui import QColor, QKeyEvent, QMouseEvent, QPainter, QPaintEvent
from PySide6.QtWidgets import QFrame, QHBoxLayout, QPushButton, QSizePolicy, QVBoxLayout, QWidget

from app.engine.messages import METHODS, CacheChoice
from app.ui.look.icons import pixmap
from app.ui.look.small import ScrollArea, Segments, button, label, set_tip
from app.ui.look.theme import theme

WIDTH = 336
PAD = 6  # left and right of a method button's words


class MethodCard(QFrame):
    """One method: its name, what it does, and which bits it can use."""

    picked = Signal(object)  # CacheChoice

    def __init__(self, method: str, chosen: CacheChoice) -> None:
        super().__init__()
        self.setObjectName("methodCard")
        self.setCursor(Qt.CursorShape.PointingHandCursor)
        self.setFocusPolicy(Qt.FocusPolicy.TabFocus)
        row = METHODS[method]
        self._method = method
        self.is_chosen = method == chosen.method
        self._bits = row.bits
        self.setAccessibleName(f"{row.title}: {row.summary}")
        layout = QVBoxLayout(self)
        layout.setContentsMargins(36, 8, 12, 9)
        layout.setSpacing(2)
        layout.addWidget(label(row.title, "strong"))
        layout.addWidget(label(row.summary, "3", wrap=True))
        self._segments: Segments | None = None
        self._bits_line = QWidget()
        layout.addWidget(self._bits_line)
        if row.bits:
            bits = chosen.key_bits if self.is_chosen and chosen.key_bits in row.bits else _default_bits(row.bits)
            self._segments = Segments([str(b) for b in row.bits], "Bits")
            self._segments.choose(row.bits.index(bits))
            self._segments.chosen.connect(lambda _: self.pick())
            line = QHBoxLayout(self._bits_line)
            line.setContentsMargins(0, 6, 0, 2)
            line.setSpacing(10)
            line.addWidget(label("Bits", "3"))
            line.addWidget(self._segments, 1)
        self.show_chosen(self.is_chosen)

    @property
    def choice(self) -> CacheChoice:
        bits = self._bits[self._segments.current] if self._segments else 4
        return CacheChoice(self._method, bits, bits)

    def show_chosen(self, is_chosen: bool) -> None:
        """Mark it as the one in use or not. Only that one shows its bits, or the list would be too long to read."""
        self.is_chosen = is_chosen
        self._bits_line.setVisible(is_chosen and self._segments is not None)
        self.update()

    def pick(self) -> None:
        self.picked.emit(self.choice)

    def mouseReleaseEvent(self, event: QMouseEvent) -> None:
        if self.rect().contains(event.position().toPoint()):
            self.pick()

    def keyPressEvent(self, event: QKeyEvent) -> None:
        if event.key() in (Qt.Key.Key_Return, Qt.Key.Key_Space):
            self.pick()
        else:
            super().keyPressEvent(event)

    def paintEvent(self, event: QPaintEvent) -> None:
        tokens = theme().tokens
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        if self.underMouse() or self.hasFocus():
            painter.setPen(Qt.PenStyle.NoPen)
            painter.setBrush(QColor(tokens.hover))
            painter.drawRoundedRect(self.rect(), 8, 8)
        if self.is_chosen:
            painter.drawPixmap(QPoint(12, 11), pixmap("check", tokens.accent))


class MethodPopover(QFrame):
    """Shown below a button; tells what was picked and stays open, so that bits can be tried."""

    picked = Signal(object)  # CacheChoice

    def __init__(self, chosen: CacheChoice, parent: QWidget) -> None:
        super().__init__(parent, Qt.WindowType.Popup | Qt.WindowType.FramelessWindowHint)
        self.setAttribute(Qt.WidgetAttribute.WA_TranslucentBackground)
        self.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        frame = QFrame(self)
        frame.setObjectName("popover")
        outer = QVBoxLayout(self)
        outer.setContentsMargins(0, 0, 0, 0)
        outer.addWidget(frame)
        # On a low screen the methods scroll.
        scrolled = ScrollArea()
        around = QVBoxLayout(frame)
        around.setContentsMargins(6, 6, 6, 6)
        around.addWidget(scrolled)
        inside = QWidget()
        scrolled.setWidget(inside)
        self._list = layout = QVBoxLayout(inside)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.setSpacing(2)
        self._cards = [MethodCard(method, chosen) for method in METHODS]
        for card in self._cards:
            card.picked.connect(self._pick)
            layout.addWidget(card)
        self.setFixedWidth(WIDTH)

    def show_below(self, anchor: QWidget) -> None:
        self._anchor = anchor
        self._fit()
        self.show()

    def _fit(self) -> None:
        """Be as high as the methods are, below the button or where there is room."""
        anchor = self._anchor
        place = anchor.mapToGlobal(QPoint(0, anchor.height() + 4))
        screen = anchor.screen().availableGeometry() if anchor.screen() else QRect(place, QSize(WIDTH, 1000))
        wanted = self._list.totalHeightForWidth(WIDTH - 12 - 2) + 12 + 2  # margins and frame
        height = min(wanted, screen.height() - 16)
        self.setFixedHeight(height)
        x = max(screen.left() + 8, min(place.x(), screen.right() - WIDTH - 8))
        y = max(screen.top() + 8, min(place.y(), screen.bottom() - height - 8))
        self.move(x, y)

    def _pick(self, choice: CacheChoice) -> None:
        for card in self._cards:
            card.show_chosen(card is self.sender())
        if self.isVisible():
            self._fit()
        self.picked.emit(choice)


class MethodButton(QPushButton):
    """Shows a choice, opens the popover to change it."""

    picked = Signal(object)  # CacheChoice

    def __init__(self, choice: CacheChoice, says: str, prefix: str = "") -> None:
        super().__init__()
        template = button("", "quiet")
        self.setCursor(template.cursor())
        self.setFocusPolicy(template.focusPolicy())
        self.setProperty("kind", "quiet")
        self._says, self._prefix = says, prefix
        self.choice = choice
        self.clicked.connect(self._open)
        self.setSizePolicy(QSizePolicy.Policy.Preferred, QSizePolicy.Policy.Fixed)
        theme().changed.connect(self.update)
        self.show_choice(choice)

    def show_choice(self, choice: CacheChoice) -> None:
        self.choice = choice
        self._words = f"{self._prefix}{choice.label}"
        self.setAccessibleName(f"{self._says}: {choice.label}")
        set_tip(self, METHODS[choice.method].summary)
        self.updateGeometry()
        self.update()

    def sizeHint(self) -> QSize:
        self.ensurePolished()
        return QSize(self.fontMetrics().horizontalAdvance(self._words) + 2 * PAD + 16, 28)

    def minimumSizeHint(self) -> QSize:
        return QSize(64, 28)

    def paintEvent(self, event: QPaintEvent) -> None:
        # The style draws ground and focus ring; words and arrow are ours, so that the words can end in "…".
        super().paintEvent(event)
        tokens = theme().tokens
        painter = QPainter(self)
        painter.setPen(QColor(tokens.text2))
        room = self.width() - 2 * PAD - 16
        words = self.fontMetrics().elidedText(self._words, Qt.TextElideMode.ElideRight, room)
        painter.drawText(QRect(PAD, 0, room, self.height()), Qt.AlignmentFlag.AlignVCenter, words)
        arrow = PAD + self.fontMetrics().horizontalAdvance(words) + 4
        painter.drawPixmap(QPoint(arrow, (self.height() - 12) // 2 + 1), pixmap("down", tokens.text3, 12))

    def _open(self) -> None:
        popover = MethodPopover(self.choice, self)
        popover.picked.connect(self._pick)
        popover.show_below(self)

    def _pick(self, choice: CacheChoice) -> None:
        self.show_choice(choice)
        self.picked.emit(choice)


def _default_bits(bits: tuple[int, ...]) -> int:
    return 4 if 4 in bits else bits[-1]
