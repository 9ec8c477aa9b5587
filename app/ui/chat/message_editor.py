"""A message of one's own, to be written again in its place."""

from __future__ import annotations

from PySide6.QtCore import QEvent, Qt, Signal
from PySide6.QtGui import QKeyEvent, QKeySequence
from PySide6.QtWidgets import QFrame, QHBoxLayout, QVBoxLayout, QWidget

from app.ui.look.growing_edit import GrowingEdit
from app.ui.look.small import ElidedLabel, button, restyle, set_tip

MAX_LINES = 16


class MessageEditor(QFrame):
    """An editor in a frame. Ctrl+Enter (Cmd+Enter on a Mac) sends, Enter makes a line, Esc cancels."""

    sent = Signal(str)
    cancelled = Signal()

    def __init__(self, text: str) -> None:
        super().__init__()
        self.setObjectName("inputBox")
        self._can_send = True
        self.edit = GrowingEdit("", "Edit message", enter_sends=False, max_lines=MAX_LINES)
        self.edit.setPlainText(text)
        self.edit.submitted.connect(self._submit)
        self.edit.focused.connect(self._show_focus)
        self.edit.textChanged.connect(self._refresh)
        self._drops = ElidedLabel("", "3")
        cancel, self.send = button("Cancel", "outline"), button("Send", "primary")
        self.focus_order: list[QWidget] = [self.edit, cancel, self.send]
        cancel.clicked.connect(self.cancelled)
        self.send.clicked.connect(self._submit)
        buttons = QHBoxLayout()
        buttons.setSpacing(8)
        buttons.addWidget(self._drops, 1)
        buttons.addWidget(cancel)
        buttons.addWidget(self.send)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(14, 10, 8, 8)
        layout.setSpacing(8)
        layout.addWidget(self.edit)
        layout.addLayout(buttons)
        self._refresh()

    @property
    def text(self) -> str:
        return self.edit.text

    def show_state(self, can_send: bool, has_later: bool) -> None:
        """Whether it can be sent now, and whether messages come after it, which would go."""
        self._can_send = can_send
        self._drops.set_full("The messages after it will be deleted." if has_later else "")
        self._refresh()

    def event(self, event: QEvent) -> bool:
        # Esc means this editor, not the window, which would stop the answer with it.
        overrides = event.type() == QEvent.Type.ShortcutOverride
        if overrides and isinstance(event, QKeyEvent) and event.key() == Qt.Key.Key_Escape:
            event.accept()
            return True
        return super().event(event)

    def keyPressEvent(self, event: QKeyEvent) -> None:
        if event.key() == Qt.Key.Key_Escape:
            self.cancelled.emit()
        else:
            super().keyPressEvent(event)

    def _submit(self) -> None:
        if self.send.isEnabled():
            self.sent.emit(self.text)

    def _refresh(self) -> None:
        self.send.setEnabled(self._can_send and self.edit.has_words)
        keys = QKeySequence("Ctrl+Return").toString(QKeySequence.SequenceFormat.NativeText)
        set_tip(self.send, f"Send ({keys})" if self._can_send else "Not possible just now")

    def _show_focus(self, focused: bool) -> None:
        self.setProperty("focused", focused)
        restyle(self)
