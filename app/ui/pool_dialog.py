"""The dialog that sets how large the block pool is, in megabytes."""

from __future__ import annotations

from math import ceil

from PySide6.QtCore import Qt
from PySide6.QtGui import QIntValidator
from PySide6.QtWidgets import QDialog, QHBoxLayout, QLineEdit, QVBoxLayout, QWidget

from app.engine.messages import ModelInfo, PoolReport
from app.ui import words
from app.ui.small import button, label, restyle

MB = 1_000_000
MOST_MB = 1_000_000


def block_bytes(info: ModelInfo, block_size: int) -> float:
    """What one block takes uncompressed: block_size tokens of one layer's keys, or of its values."""
    return info.bytes_per_token / (2 * info.n_layers) * block_size


class PoolDialog(QDialog):
    def __init__(self, info: ModelInfo, pool: PoolReport, parent: QWidget) -> None:
        super().__init__(parent)
        self.setWindowTitle("Pool size")
        self._info, self._pool = info, pool
        self._block = block_bytes(info, pool.block_size)
        # What is typed is whole megabytes, so a size that is not changed must not be read back from them.
        self._now_mb = max(1, round(pool.n_blocks * self._block / MB))
        self._least_mb = ceil(pool.blocks_in_use * self._block / MB)
        self._size = QLineEdit(str(self._now_mb))
        self._size.setAccessibleName("Pool size in megabytes")
        self._size.setValidator(QIntValidator(1, MOST_MB, self))
        self._size.setFixedWidth(120)
        self._size.selectAll()
        self._size.textChanged.connect(self._explain)
        self._explained = label("", "3", wrap=True)
        # Three lines, used or not, so that nothing moves while one types.
        self._explained.setMinimumHeight(3 * self._explained.fontMetrics().lineSpacing() + 4)
        self._explained.setAlignment(Qt.AlignmentFlag.AlignTop)
        cancel, apply = button("Cancel", "outline"), button("Set size", "primary")
        self._apply = apply
        apply.setDefault(True)
        cancel.clicked.connect(self.reject)
        apply.clicked.connect(self.accept)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(24, 24, 24, 20)
        layout.setSpacing(8)
        layout.addWidget(label("Pool size", "title"))
        layout.addWidget(
            label("All chats take the memory for what they have read and written from one pool of blocks.", "2", True)
        )
        layout.addSpacing(8)
        line = QHBoxLayout()
        line.addWidget(self._size)
        line.addWidget(label("MB", "2"))
        line.addStretch()
        layout.addLayout(line)
        layout.addWidget(self._explained)
        layout.addSpacing(16)
        buttons = QHBoxLayout()
        buttons.addStretch()
        buttons.addWidget(cancel)
        buttons.addWidget(apply)
        layout.addLayout(buttons)
        self.setFixedWidth(400)
        self._explain()

    @property
    def n_blocks(self) -> int:
        """The size asked for; the pool's own where it was not changed."""
        wanted = int(self._size.text() or 0)
        return self._pool.n_blocks if wanted == self._now_mb else max(1, round(wanted * MB / self._block))

    def _explain(self) -> None:
        typed = self._size.hasAcceptableInput()
        fits = typed and self.n_blocks >= self._pool.blocks_in_use
        self._apply.setEnabled(fits)
        if not typed:
            self._say(f"Write a size from 1 to {MOST_MB:,} MB.")
            return
        if not fits:
            in_use = f"{self._least_mb:,} MB are in use"
            self._say(f"{in_use}; the pool can't be smaller until chats free memory.", warn=True)
            return
        tokens = int(self.n_blocks / (2 * self._info.n_layers) * self._pool.block_size)
        self._say(
            f"{self.n_blocks:,} blocks: room for about {words.count(tokens, 'token')} of all chats together. "
            f"Memory is taken as it is needed, never all at once; blocks in use are never taken away."
        )

    def _say(self, text: str, warn: bool = False) -> None:
        self._explained.setProperty("voice", "warn" if warn else "3")
        restyle(self._explained)
        self._explained.setText(text)
