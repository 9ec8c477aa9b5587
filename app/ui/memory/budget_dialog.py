"""The dialog that sets how much memory the caches of all chats may take together, in megabytes."""

from __future__ import annotations

from math import ceil, floor, log10

from PySide6.QtCore import QLocale, Qt
from PySide6.QtGui import QIntValidator
from PySide6.QtWidgets import QDialog, QHBoxLayout, QLineEdit, QVBoxLayout, QWidget

from app.engine.messages import ModelInfo, PoolReport
from app.ui.look import words
from app.ui.look.quiet_line import speak
from app.ui.look.small import button, label
from app.ui.look.theme import theme
from app.ui.look.tick import Tick

MB = 1_000_000
MOST_MB = 1_000_000
WIDTH = 400
WHICH = "The chat used least recently first. Its messages stay and are read again when you go on with it."
GRADUALLY = "Memory is taken as it is needed, never all at once."


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
            self._say(f"{in_use} MB of blocks are in use now: {waits}{dropped}.", warn=True)
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
