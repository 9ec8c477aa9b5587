"""The dialog that sets how much memory the caches of all chats may take together, in megabytes."""

from __future__ import annotations

from math import ceil, floor, log10

from PySide6.QtCore import QLocale, QPoint, QPointF, QRectF, QSize, Qt
from PySide6.QtGui import QColor, QIntValidator, QPainter, QPaintEvent, QPen
from PySide6.QtWidgets import QCheckBox, QDialog, QHBoxLayout, QLineEdit, QVBoxLayout, QWidget

from app.engine.messages import ModelInfo, PoolReport
from app.ui import words
from app.ui.quiet_line import speak
from app.ui.small import button, label
from app.ui.theme import theme

MB = 1_000_000
MOST_MB = 1_000_000
WIDTH = 400
WHICH = "The chat used least recently first. Its messages stay and are read again when you go on with it."
GRADUALLY = "Memory is taken as it is needed, never all at once."


class Tick(QCheckBox):
    """A check box in the window's colours; the style's own can hardly be seen on a dark ground."""

    SIZE = 16
    INDENT = SIZE + 8  # where its words begin

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.setCursor(Qt.CursorShape.PointingHandCursor)
        theme().changed.connect(self.update)

    def sizeHint(self) -> QSize:
        words_size = self.fontMetrics().size(Qt.TextFlag.TextShowMnemonic, self.text())
        return QSize(self.INDENT + words_size.width() + 2, max(self.SIZE + 4, words_size.height() + 4))

    def hitButton(self, pos: QPoint) -> bool:
        return self.rect().contains(pos)

    def paintEvent(self, event: QPaintEvent) -> None:
        tokens, checked = theme().tokens, self.isChecked()
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        box = QRectF(1, (self.height() - self.SIZE) / 2 + 1, self.SIZE - 2, self.SIZE - 2)
        painter.setPen(QPen(QColor(tokens.accent if checked else tokens.text3), 1.2))
        painter.setBrush(QColor(tokens.accent if checked else tokens.raised))
        painter.drawRoundedRect(box, 4, 4)
        if checked:
            corner = box.topLeft()
            hook = [corner + QPointF(x, y) for x, y in ((3.3, 7.3), (5.9, 9.9), (10.7, 4.4))]
            pen = QPen(QColor(tokens.on_accent), 1.8, Qt.PenStyle.SolidLine, Qt.PenCapStyle.RoundCap)
            pen.setJoinStyle(Qt.PenJoinStyle.RoundJoin)
            painter.setPen(pen)
            painter.drawPolyline(hook)
        painter.setPen(QColor(tokens.text))
        where = self.rect().adjusted(self.INDENT, 0, 0, 0)
        painter.drawText(where, Qt.AlignmentFlag.AlignVCenter | Qt.TextFlag.TextShowMnemonic, self.text())
        if self.hasFocus():
            painter.setPen(QPen(QColor(tokens.accent), 2))
            painter.setBrush(Qt.BrushStyle.NoBrush)
            painter.drawRoundedRect(QRectF(self.rect()).adjusted(1, 1, -1, -1), 5, 5)


class BudgetDialog(QDialog):
    """Ask with `exec()`; once it is accepted, `max_bytes` and `drop_idle` are what the person wants."""

    def __init__(self, info: ModelInfo, pool: PoolReport, drop_idle: bool, parent: QWidget) -> None:
        super().__init__(parent)
        self.setWindowTitle("Memory budget")
        self._info, self._pool = info, pool
        # What is typed is whole megabytes, so a budget that is not changed must not be read back from them.
        self._now = "" if pool.max_bytes is None else str(max(1, round(pool.max_bytes / MB)))
        self._size = QLineEdit(self._now)
        self._size.setAccessibleName("Memory budget in megabytes")
        self._size.setPlaceholderText("no limit")
        self._size.setValidator(self._whole_megabytes())
        self._size.setFixedWidth(120)
        # Qt's own, half of the text's colour, is too faint for words that say something.
        self._size.setStyleSheet(f"placeholder-text-color: {theme().tokens.text3};")
        self._size.selectAll()
        self._size.textChanged.connect(self._explain)
        self._explained = label("", "3", wrap=True)
        # Two lines, used or not, so that nothing moves while one types.
        speak(self._explained, warn=False)
        self._explained.setMinimumHeight(2 * self._explained.fontMetrics().lineSpacing() + 4)
        self._explained.setAlignment(Qt.AlignmentFlag.AlignTop)
        self._drops = Tick("When memory is short, free idle chats")
        self._drops.setChecked(drop_idle)
        self._drops.toggled.connect(self._explain)
        self._apply = button("Set budget", "primary")
        self._lay_out()
        self._explain()

    def _whole_megabytes(self) -> QIntValidator:
        made = QIntValidator(1, MOST_MB, self)
        # Some languages write 1,000 or 1.000, which would be let in and then be no number.
        plain = QLocale.c()
        plain.setNumberOptions(QLocale.NumberOption.RejectGroupSeparator)
        made.setLocale(plain)
        return made

    def _lay_out(self) -> None:
        cancel = button("Cancel", "outline")
        which = label(WHICH, "3", wrap=True)
        which.setContentsMargins(Tick.INDENT, 0, 0, 0)
        self._apply.setDefault(True)
        cancel.clicked.connect(self.reject)
        self._apply.clicked.connect(self.accept)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(24, 24, 24, 20)
        layout.setSpacing(8)
        layout.addWidget(label("Memory budget", "title"))
        layout.addWidget(label("What all chats together may take for what they have read and written.", "2", True))
        layout.addSpacing(8)
        line = QHBoxLayout()
        line.addWidget(self._size)
        line.addWidget(label("MB", "2"))
        line.addStretch()
        layout.addLayout(line)
        layout.addWidget(self._explained)
        layout.addSpacing(8)
        ticked = QVBoxLayout()
        ticked.setSpacing(4)
        ticked.addWidget(self._drops)
        ticked.addWidget(which)
        layout.addLayout(ticked)
        layout.addSpacing(16)
        buttons = QHBoxLayout()
        buttons.setSpacing(8)
        buttons.addStretch()
        buttons.addWidget(cancel)
        buttons.addWidget(self._apply)
        layout.addLayout(buttons)

    @property
    def max_bytes(self) -> int | None:
        """The budget asked for, None for no limit; the pool's own where it was not changed."""
        typed = self._size.text()
        if typed == self._now:
            return self._pool.max_bytes
        return int(typed) * MB if typed else None

    @property
    def drop_idle(self) -> bool:
        """Whether chats that are not answering may lose their caches to those that are."""
        return self._drops.isChecked()

    def _explain(self) -> None:
        possible = not self._size.text() or self._size.hasAcceptableInput()
        self._apply.setEnabled(possible)
        if not possible:
            self._say(f"Write a size from 1 to {MOST_MB:,} MB, or nothing for no limit.")
        elif self.max_bytes is None:
            self._say(f"No limit: chats may take as much as this computer has.\n{GRADUALLY}")
        elif self.max_bytes < self._pool.bytes_in_use:
            # Rounded up, or it would not be more than what was typed.
            in_use = f"{ceil(self._pool.bytes_in_use / MB * 10) / 10:,.1f}".removesuffix(".0")
            dropped = "; idle chats are dropped" if self.drop_idle else ""
            waits = "chats that answer wait until some is freed, or end where they alone hold more than this"
            self._say(f"{in_use} MB are in use now: {waits}{dropped}.", warn=True)
        else:
            tokens = words.count(about(self.max_bytes / self._info.bytes_per_token), "token")
            self._say(f"About {tokens} uncompressed, more when compressed.\n{GRADUALLY}")

    def _say(self, text: str, warn: bool = False) -> None:
        speak(self._explained, warn)
        self._explained.setText(text)
        # Wrapped lines make the dialog higher than Qt expects, which would take that from the buttons.
        needed = self.heightForWidth(WIDTH)
        self.setFixedSize(WIDTH, max(needed, self.minimumHeight()))


def about(number: float) -> int:
    """A number as one says it: three figures, the rest zeros, never more than it is."""
    if number < 1000:
        return int(number)
    scale = int(10 ** (floor(log10(number)) - 2))
    return int(number / scale) * scale
