"""What tells that a chat's context is filling up, and that the model no longer reads its beginning."""

from __future__ import annotations

from PySide6.QtCore import Signal
from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import QBoxLayout, QFrame, QHBoxLayout, QSizePolicy, QVBoxLayout, QWidget

from app.ui.look.small import button, label, rule
from app.ui.session.state import Chat

CHOOSE = "When full, leave out the oldest messages"
GO_ON = "Leave out the oldest and go on"
CHOSEN = "When it is full, the oldest messages are left out."
DROPPED = "The model no longer reads what is above"


class ContextBar(QWidget):
    """A quiet bar above the input, there only while the chat's context is nearly full."""

    chosen = Signal(bool)  # whether the oldest messages are to be left out

    def __init__(self) -> None:
        super().__init__()
        self._asked = False
        self._drops = False
        self._words = label("", "2", wrap=True)
        self._does = button(CHOOSE, "link")
        self._does.setSizePolicy(QSizePolicy.Policy.Fixed, QSizePolicy.Policy.Fixed)
        self._does.clicked.connect(lambda: self.chosen.emit(not self._drops))
        ground = QFrame()
        ground.setObjectName("contextBar")
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 8)
        layout.addWidget(ground)
        self._line = QBoxLayout(QBoxLayout.Direction.LeftToRight, ground)
        self._line.setContentsMargins(16, 7, 9, 7)
        self._line.addWidget(self._words, 1)
        self._line.addWidget(self._does)
        self.hide()

    @property
    def focus_order(self) -> list[QWidget]:
        return [self._does]

    def show_chat(self, chat: Chat | None, model_limit: int) -> None:
        shown = chat is not None and (chat.context is not None or chat.asks_room)
        self.setVisible(shown)
        if chat is None or not shown:
            self._asked = False
            return
        self._drops = chat.settings.drop_oldest
        asks = chat.asks_room and not self._drops
        says = context_words(chat, model_limit)
        self._words.setText(f"{says} {CHOSEN}" if self._drops else says)
        self._does.setText("Undo" if self._drops else GO_ON if asks else CHOOSE)
        self._arrange()
        if asks and not self._asked:
            self._does.setFocus()
        self._asked = asks

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._arrange()

    def _arrange(self) -> None:
        """The button below the words where both have no room on one line."""
        beside = self.width() - self._does.sizeHint().width() >= 280
        self._line.setDirection(QBoxLayout.Direction.LeftToRight if beside else QBoxLayout.Direction.TopToBottom)
        self._line.setSpacing(12 if beside else 2)
        # Below the words the button's own padding would set it off from them.
        self._line.setContentsMargins(16 if beside else 10, 7, 9, 7)
        self._words.setContentsMargins(0 if beside else 6, 0, 0, 0)


def context_words(chat: Chat, model_limit: int) -> str:
    """How much of its context the chat takes."""
    if chat.context is None:
        return "The last answer ended because the context was full."
    used, limit = chat.context.used, chat.context.limit
    may = "it may have" if limit < model_limit else "the model reads"
    if used > limit:
        return f"This chat takes {used:,} tokens, more than the {limit:,} {may}."
    return f"This chat takes {'all' if used == limit else f'{used:,}'} of the {limit:,} tokens {may}."


class DroppedLine(QWidget):
    """A thin line between two messages."""

    def __init__(self) -> None:
        super().__init__()
        layout = QHBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.setSpacing(12)
        layout.addWidget(rule(), 1)
        layout.addWidget(label(DROPPED, "3"))
        layout.addWidget(rule(), 1)
