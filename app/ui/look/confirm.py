"""One question before something that can't be taken back: what it is, what follows, and two buttons."""

from __future__ import annotations

from PySide6.QtWidgets import QDialog, QHBoxLayout, QVBoxLayout, QWidget

from app.ui.look.small import button, label


class Confirm(QDialog):
    """Ask with `Confirm(...).exec()`; accepted means yes. Enter and Esc both mean no."""

    def __init__(self, parent: QWidget, question: str, consequence: str, yes: str) -> None:
        super().__init__(parent)
        self.setWindowTitle(yes)
        self.setModal(True)
        asked, follows = label(question, "strong", wrap=True), label(consequence, "2", wrap=True)
        cancel, self.yes = button("Cancel", "outline"), button(yes, "danger")
        cancel.setDefault(True)
        self.yes.setAutoDefault(False)
        cancel.clicked.connect(self.reject)
        self.yes.clicked.connect(self.accept)
        buttons = QHBoxLayout()
        buttons.setSpacing(8)
        buttons.addStretch()
        buttons.addWidget(cancel)
        buttons.addWidget(self.yes)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(24, 20, 24, 20)
        layout.setSpacing(8)
        layout.addWidget(asked)
        layout.addWidget(follows)
        layout.addSpacing(12)
        layout.addLayout(buttons)
        self.setFixedWidth(400)


def confirm(parent: QWidget, question: str, consequence: str, yes: str) -> bool:
    """Whether the person pressed the button named `yes`."""
    return Confirm(parent, question, consequence, yes).exec() == QDialog.DialogCode.Accepted
