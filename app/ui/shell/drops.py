"""What is dragged over the window: one model may be dropped, and while it is dragged the window says so."""

from __future__ import annotations

import re

from PySide6.QtCore import QEvent, QObject, QRectF, Qt, Signal
from PySide6.QtGui import QColor, QDragEnterEvent, QDragMoveEvent, QDropEvent, QPainter, QPaintEvent, QPen
from PySide6.QtWidgets import QFrame, QLabel, QVBoxLayout, QWidget

from app.ui.look.icons import pixmap
from app.ui.look.input_box import Footer
from app.ui.look.small import ElidedLabel, label
from app.ui.look.theme import theme
from app.ui.session.model_paths import dragged

INSET = 14
RADIUS = 18
ICON = 28
WIDEST = 560  # of a sentence


class DropZone(QFrame):
    """Lies over `over` while files are dragged there. Text that is dragged is none of its business."""

    dropped = Signal(str)  # the path of what can be opened
    refused = Signal(str)  # why it can't

    def __init__(self, over: QWidget) -> None:
        super().__init__(over)
        self._over = over
        self.setObjectName("dropZone")
        self.setAttribute(Qt.WidgetAttribute.WA_TransparentForMouseEvents)
        self._why_not = ""
        self._mark = QLabel()
        self._title = label("", "large")
        self._about = label("", "2", wrap=True)
        self._name = ElidedLabel("", "2")
        layout = QVBoxLayout(self)
        layout.setContentsMargins(64, 48, 64, 48)
        layout.setSpacing(6)
        layout.addStretch(1)
        for part in (self._mark, self._title, self._name):
            part.setAlignment(Qt.AlignmentFlag.AlignHCenter)
            layout.addWidget(part)
        self._about.setAlignment(Qt.AlignmentFlag.AlignHCenter)
        layout.addWidget(Footer(self._about, WIDEST))
        layout.addStretch(1)
        over.installEventFilter(self)
        self.hide()

    # ------------------------------------------------------------ the drag, as the window hears of it
    def enter(self, event: QDragEnterEvent) -> None:
        path, self._why_not = dragged(event.mimeData())
        if not path and not self._why_not:
            event.ignore()
            return
        # Taken even where it is refused: only then is it heard when the drag leaves again. Moving says no.
        event.setDropAction(Qt.DropAction.CopyAction)
        event.accept()
        self._say(path)
        self.setGeometry(self._over.rect())
        self.raise_()
        self.show()

    def move_over(self, event: QDragMoveEvent) -> None:
        event.setDropAction(Qt.DropAction.CopyAction)
        event.setAccepted(not self._why_not)

    def leave(self) -> None:
        self.hide()

    def drop(self, event: QDropEvent) -> None:
        self.hide()
        path, why_not = dragged(event.mimeData())
        event.setDropAction(Qt.DropAction.CopyAction)
        if why_not:
            event.ignore()
            self.refused.emit(why_not)
        elif path:
            event.accept()
            self.dropped.emit(path)

    # ------------------------------------------------------------ how it looks
    def _say(self, path: str) -> None:
        tokens, refuses = theme().tokens, bool(self._why_not)
        self._mark.setPixmap(
            pixmap("alert" if refuses else "open", tokens.warn_text if refuses else tokens.accent, ICON)
        )
        self._title.setText("This can't be opened" if refuses else "Drop to open this model")
        self._name.setVisible(not refuses)
        self._name.set_full(path.rpartition("/")[2] or path)
        self._about.setVisible(refuses)
        # A long path has nowhere to break but where it is told to.
        self._about.setText(re.sub(r"([/_.-])", "\\1\u200b", self._why_not))

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        if event.type() == QEvent.Type.Resize and self.isVisible():
            self.setGeometry(self._over.rect())
        return False

    def paintEvent(self, event: QPaintEvent) -> None:
        tokens = theme().tokens
        ground = QColor(tokens.window)
        ground.setAlphaF(0.94)
        painter = QPainter(self)
        painter.fillRect(self.rect(), ground)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        edge = QPen(QColor(tokens.warn_text if self._why_not else tokens.accent), 2, Qt.PenStyle.DashLine)
        edge.setDashPattern([4, 3])
        painter.setPen(edge)
        painter.setBrush(QColor(tokens.warn_bg if self._why_not else tokens.accent_soft))
        inside = QRectF(self.rect()).adjusted(INSET, INSET, -INSET, -INSET)
        painter.setOpacity(0.9)
        painter.drawRoundedRect(inside, RADIUS, RADIUS)
