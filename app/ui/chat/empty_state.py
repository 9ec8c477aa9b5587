"""What an empty chat shows: a greeting with the model's name, and three prompts to start from."""

from __future__ import annotations

from PySide6.QtCore import QSize, Qt, Signal
from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import QBoxLayout, QPushButton, QSizePolicy, QVBoxLayout, QWidget

from app.ui.look.assets import SamplePrompt, sample_prompts
from app.ui.look.small import button, label
from app.ui.session.state import Model

NARROW = 560  # below this width the prompts stand below each other
MARGIN = 24
GAP = 12


class PromptCard(QPushButton):
    """A prompt one can click."""

    def __init__(self, sample: SamplePrompt) -> None:
        super().__init__()
        plain = button("")
        self.setCursor(plain.cursor())
        self.setFocusPolicy(plain.focusPolicy())
        self.setProperty("kind", "card")
        self.setAccessibleName(f"{sample.title}: {sample.prompt}")
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Preferred)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(16, 12, 16, 14)
        layout.setSpacing(4)
        for made in (label(sample.title, "strong"), label(sample.prompt, "2", wrap=True)):
            made.setAttribute(Qt.WidgetAttribute.WA_TransparentForMouseEvents)
            layout.addWidget(made, 0, Qt.AlignmentFlag.AlignTop)
        layout.addStretch(1)

    def sizeHint(self) -> QSize:
        return QSize(160, self.minimumHeight())

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        # A button's height doesn't follow its width by itself; its wrapped text needs that.
        self.setMinimumHeight(self.height_for(self.width()))

    def height_for(self, width: int) -> int:
        layout = self.layout()
        return layout.totalHeightForWidth(width) if layout is not None else 0


class EmptyState(QWidget):
    picked = Signal(str)

    def __init__(self) -> None:
        super().__init__()
        self._title = label("What would you like to ask?", "large")
        self._below = label("", "2", wrap=True)
        for made in (self._title, self._below):
            made.setAlignment(Qt.AlignmentFlag.AlignHCenter)
        self._cards = QBoxLayout(QBoxLayout.Direction.LeftToRight)
        self._cards.setSpacing(GAP)
        self._prompts = [PromptCard(sample) for sample in sample_prompts()]
        for sample, card in zip(sample_prompts(), self._prompts, strict=True):
            card.clicked.connect(lambda _=False, prompt=sample.prompt: self.picked.emit(prompt))
            self._cards.addWidget(card, 1)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, MARGIN, 0, MARGIN)
        layout.addStretch(4)
        layout.addWidget(self._title)
        layout.addSpacing(4)
        layout.addWidget(self._below)
        layout.addSpacing(32)
        layout.addLayout(self._cards)
        layout.addStretch(5)

    def show_state(self, model: Model, method: str) -> None:
        who = f"You're talking to {model.name}, on this computer.\n" if model.name else ""
        whose = "Its memory of this chat" if who else "The model's memory of a new chat"
        self._below.setText(f"{who}{whose} is kept as {method}.")

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        narrow = self.width() < NARROW
        self._cards.setDirection(QBoxLayout.Direction.TopToBottom if narrow else QBoxLayout.Direction.LeftToRight)
        # Below each other they may need more height than there is. One whole card says more than three halves.
        room = self.height() - 2 * MARGIN - 4 - 32 - self._title.height() - self._below.heightForWidth(self.width())
        for index, card in enumerate(self._prompts):
            room -= card.height_for(self.width()) + (GAP if index else 0)
            card.setVisible(not narrow or index == 0 or room >= 0)
