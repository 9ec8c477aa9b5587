"""Where one writes: a box that grows with its text, and the button that sends or stops."""

from __future__ import annotations

from PySide6.QtCore import Qt, Signal
from PySide6.QtGui import QMouseEvent
from PySide6.QtWidgets import QFrame, QHBoxLayout, QWidget

from app.ui.look.growing_edit import GrowingEdit
from app.ui.look.small import IconButton, restyle
from app.ui.look.theme import theme


class InputBox(QFrame):
    """The editor in its rounded frame with the send button; sends text, or asks to stop."""

    sent = Signal(str)
    stop_asked = Signal()

    def __init__(self, placeholder: str, says: str, send_says: str = "Send (Enter)") -> None:
        super().__init__()
        self.setObjectName("inputBox")
        self.setCursor(Qt.CursorShape.IBeamCursor)
        self._send_says = send_says
        self._can_send, self._answering, self._why_not = True, False, ""
        self.edit = GrowingEdit(placeholder, says)
        self.edit.submitted.connect(self._send)
        self.edit.focused.connect(self._show_focus)
        self.edit.textChanged.connect(self._refresh)
        self.action = RoundButton(send_says)
        self.action.clicked.connect(self._act)
        layout = QHBoxLayout(self)
        layout.setContentsMargins(16, 8, 8, 8)
        layout.setSpacing(8)
        layout.addWidget(self.edit, 1, Qt.AlignmentFlag.AlignVCenter)
        layout.addWidget(self.action, 0, Qt.AlignmentFlag.AlignBottom)
        self._refresh()

    @property
    def text(self) -> str:
        return self.edit.text

    @property
    def focus_order(self) -> list[QWidget]:
        return [self.edit, self.action]

    def set_text(self, text: str) -> None:
        self.edit.setPlainText(text)

    def show_state(self, can_send: bool, answering: bool, why_not: str = "") -> None:
        """Whether the button sends, can't (and why not), or stops."""
        self._can_send, self._answering, self._why_not = can_send, answering, why_not
        self._refresh()

    def mousePressEvent(self, event: QMouseEvent) -> None:
        self.edit.setFocus()
        super().mousePressEvent(event)

    def _send(self) -> None:
        if self._can_send and not self._answering and self.edit.has_words:
            self.sent.emit(self.text)

    def _act(self) -> None:
        if self._answering:
            self.stop_asked.emit()
        else:
            self._send()

    def _show_focus(self, focused: bool) -> None:
        self.setProperty("focused", focused)
        restyle(self)

    def _refresh(self) -> None:
        if self._answering:
            self.action.show_action("stop", "Stop (Esc)", True)
        else:
            ready = self._can_send and self.edit.has_words
            self.action.show_action("send", self._why_not or self._send_says, ready)


class RoundButton(IconButton):
    """The filled round button of the input box."""

    def __init__(self, says: str) -> None:
        super().__init__("send", says, size=32, role="on_accent", icon_size=18)
        self._dress_up()

    def show_action(self, name: str, says: str, enabled: bool) -> None:
        self._role = "on_accent" if enabled else "disabled"
        self.setEnabled(enabled)
        self.set_icon(name, says)
        self._dress_up()

    def _dress_up(self) -> None:
        tokens = theme().tokens
        ground = tokens.accent if self.isEnabled() else tokens.hover
        sheet = (
            f"QToolButton {{ background: {ground}; border-radius: 16px; border: 2px solid {ground}; padding: 0; }}"
            f"QToolButton:hover {{ background: {tokens.accent_hover}; }}"
            f"QToolButton:focus {{ border-color: {tokens.text}; }}"
        )
        if sheet != self.styleSheet():
            self.setStyleSheet(sheet)

    def _tint(self) -> None:
        super()._tint()
        self._dress_up()


class Footer(QWidget):
    """A column as wide as the messages, centred."""

    def __init__(self, inside: QWidget, width: int) -> None:
        super().__init__()
        inside.setMaximumWidth(width)
        layout = QHBoxLayout(self)
        layout.setContentsMargins(24, 8, 24, 16)
        layout.addStretch(1)
        layout.addWidget(inside, 1000)
        layout.addStretch(1)
