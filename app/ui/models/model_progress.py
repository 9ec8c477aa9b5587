"""The line at the top of the window that says how far a GGUF file is, and then that its model can be used."""

from __future__ import annotations

from PySide6.QtCore import Qt
from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import QFrame, QHBoxLayout, QSizePolicy, QVBoxLayout, QWidget

from app.ui.look.small import ElidedLabel, IconButton, ThinBar, button, label
from app.ui.session.controller import Controller
from app.ui.session.opening import Import, Offer

MARGINS = (24, 10, 16, 10)


class _Running(QFrame):
    """A file that is being converted: its name, what is done with it, how much of it is done, and Cancel."""

    def __init__(self) -> None:
        super().__init__()
        self.setObjectName("opening")
        self._name = ElidedLabel("", "strong")
        self._stage = ElidedLabel("", "2")
        self._bar = ThinBar(6)
        self._percent = label("", "figure")
        self._percent.setAlignment(Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter)
        self._percent.setFixedWidth(self._percent.fontMetrics().horizontalAdvance("100 %") + 8)
        self.cancel = button("Cancel", "outline")
        words = QVBoxLayout()
        words.setSpacing(1)
        words.addWidget(self._name)
        words.addWidget(self._stage)
        layout = QHBoxLayout(self)
        layout.setContentsMargins(*MARGINS)
        layout.setSpacing(12)
        layout.addLayout(words, 1)
        layout.addWidget(self._bar)
        layout.addWidget(self._percent)
        layout.addWidget(self.cancel)

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._bar.setFixedWidth(max(72, min(200, self.width() // 7)))  # the file's name needs the room

    def show_import(self, running: Import) -> None:
        self._name.set_full(f"Opening {running.name}", running.path)
        stage = running.stage.rstrip(". …")
        self._stage.set_full("Cancelling…" if running.cancelling else f"{stage}…")
        self._bar.show_fraction(running.fraction)
        self._percent.setText("" if running.fraction is None else f"{int(running.fraction * 100)} %")
        self.cancel.setEnabled(not running.cancelling)
        self.cancel.setAccessibleName(f"Cancel opening {running.name}")


class _Ready(QFrame):
    """A model that waits for the person's word."""

    def __init__(self) -> None:
        super().__init__()
        self.setObjectName("opening")
        self._name = ElidedLabel("", "strong")
        self._why = label("", "2", wrap=True)
        self.use = button("Use it now", "primary")
        self.away = IconButton("close", "Keep the model that is in use", 24, icon_size=14)
        words = QVBoxLayout()
        words.setSpacing(1)
        words.addWidget(self._name)
        words.addWidget(self._why)
        layout = QHBoxLayout(self)
        layout.setContentsMargins(*MARGINS)
        layout.setSpacing(12)
        layout.addLayout(words, 1)
        layout.addWidget(self.use)
        layout.addWidget(self.away)

    def show_offer(self, offer: Offer, answering: bool) -> None:
        self._name.set_full(offer.name, offer.folder or "")
        self._why.setText(
            "Ready to use. Chats are answering; changing the model ends their answers."
            if answering
            else "Ready to use."
        )
        self.use.setAccessibleName(f"Use {offer.name} now")


class ModelProgressBar(QWidget):
    """Both of them, each only while there is something to say."""

    def __init__(self, controller: Controller) -> None:
        super().__init__()
        self._controller = controller
        self.setSizePolicy(QSizePolicy.Policy.Preferred, QSizePolicy.Policy.Maximum)
        self._running, self._ready = _Running(), _Ready()
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.setSpacing(0)
        layout.addWidget(self._running)
        layout.addWidget(self._ready)
        opening = controller.opening
        self._running.cancel.clicked.connect(opening.cancel)
        self._ready.use.clicked.connect(opening.use_offered)
        self._ready.away.clicked.connect(opening.decline)
        opening.changed.connect(self._draw)
        controller.chat_changed.connect(self._draw_offer)
        controller.lane_changed.connect(self._draw_offer)
        self._draw()

    def _draw(self) -> None:
        running = self._controller.opening.running
        self._running.setVisible(running is not None)
        if running is not None:
            self._running.show_import(running)
        self._draw_offer()
        self.setVisible(running is not None or self._controller.opening.offer is not None)

    def _draw_offer(self) -> None:
        offer = self._controller.opening.offer
        self._ready.setVisible(offer is not None)
        if offer is not None:
            self._ready.show_offer(offer, self._controller.opening.would_end_answers)
