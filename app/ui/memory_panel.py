"""The right side: what all chats hold, the pool they hold it from, and each chat's share, live."""

from __future__ import annotations

from functools import partial

from PySide6.QtCore import QEvent, Qt, Signal
from PySide6.QtGui import QEnterEvent
from PySide6.QtWidgets import QFrame, QGridLayout, QHBoxLayout, QLabel, QVBoxLayout, QWidget

from app.engine.messages import ChatMemory
from app.ui import words
from app.ui.controller import Controller
from app.ui.pool_gauge import PoolGauge, Share
from app.ui.small import Dot, ElidedLabel, IconButton, ScrollArea, ThinBar, button, label, rule, set_tip
from app.ui.state import Chat

WIDTH = 328

FRAGMENTATION = (
    "Fragmentation is the part of the pool's blocks that hold some tokens but are not full: a chat's last blocks have "
    "room left, which no other chat can use."
)


class HolderRow(QWidget):
    """One chat (or lane): what it holds, and a bar of that against the uncompressed size."""

    free_asked = Signal()

    def __init__(self) -> None:
        super().__init__()
        self._dot = Dot()
        self._title = ElidedLabel("", "figure")
        self._bytes = label("", "figure")
        self._method = label("", "3")
        self._counts = label("", "3")
        self._bar = ThinBar(4)
        self._can_free = False
        self._free = IconButton("eject", "Free its memory. Its messages stay, and are read again when you go on", 20)
        self._free.clicked.connect(self.free_asked)
        head = QHBoxLayout()
        head.setSpacing(8)
        head.addWidget(self._dot)
        head.addWidget(self._title, 1)
        head.addWidget(self._free)
        head.addWidget(self._bytes)
        below = QHBoxLayout()
        below.setContentsMargins(16, 0, 0, 0)
        below.addWidget(self._method)
        below.addStretch()
        below.addWidget(self._counts)
        bar = QHBoxLayout()
        bar.setContentsMargins(16, 0, 0, 0)
        bar.addWidget(self._bar)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.setSpacing(4)
        layout.addLayout(head)
        layout.addLayout(below)
        layout.addLayout(bar)

    def show_holder(self, title: str, method: str, colour: int, memory: ChatMemory, can_free: bool) -> None:
        self._dot.set_colour(colour)
        self._title.set_full(title)
        self._bytes.setText(words.size(memory.memory_bytes))
        self._method.setText(method)
        self._counts.setText(f"{words.count(memory.blocks_held, 'block')} · {words.count(memory.tokens, 'token')}")
        whole = max(memory.uncompressed_bytes, memory.memory_bytes, 1)
        self._bar.show_fraction(memory.memory_bytes / whole, colour)
        set_tip(self, f"{words.size(memory.memory_bytes)} of {words.size(memory.uncompressed_bytes)} uncompressed")
        self._can_free = can_free
        self._reveal()

    def enterEvent(self, event: QEnterEvent) -> None:
        self._reveal()
        super().enterEvent(event)

    def leaveEvent(self, event: QEvent) -> None:
        self._reveal()
        super().leaveEvent(event)

    def _reveal(self) -> None:
        self._free.setEnabled(self._can_free)
        self._free.reveal(self._can_free and self.underMouse())


class Figures(QWidget):
    """Labels on the left, numbers on the right."""

    def __init__(self, names: dict[str, str]) -> None:
        super().__init__()
        grid = QGridLayout(self)
        grid.setContentsMargins(0, 0, 0, 0)
        grid.setVerticalSpacing(6)
        self._values: dict[str, QLabel] = {}
        for row, (name, explained) in enumerate(names.items()):
            named, value = label(name, "2"), label("–", "figure")
            for made in (named, value):
                set_tip(made, explained)
            value.setAlignment(Qt.AlignmentFlag.AlignRight)
            grid.addWidget(named, row, 0)
            grid.addWidget(value, row, 1)
            self._values[name] = value
        grid.setColumnStretch(1, 1)

    def show_value(self, name: str, value: str) -> None:
        self._values[name].setText(value)
        self._values[name].setAccessibleName(f"{name}: {value}")


class MemoryPanel(QFrame):
    pool_size_asked = Signal()

    def __init__(self, controller: Controller) -> None:
        super().__init__()
        self.setObjectName("memory")
        self.setFixedWidth(WIDTH)
        self._controller = controller
        self._total = label("0 B", "display")
        self._total.setAccessibleName("Cache memory of all chats")
        self._against = label("No chat holds memory yet.", "2", wrap=True)
        self._gauge = PoolGauge()
        self._blocks = label("", "3")
        self._pool_size = button("Pool size…", "link")
        self._pool_size.clicked.connect(self.pool_size_asked)
        self._figures = Figures(
            {
                "Fragmentation": FRAGMENTATION,
                "Peak": "The most blocks that were in use at one time.",
                "Blocks handed out": "How often a block was taken from the pool since the app started.",
                "Of these reused": "How many of them a chat, this one or another, had given back before.",
                "MLX memory": "What MLX holds in all: the model's weights, every cache, and work space.",
            }
        )
        self._chart_box = QVBoxLayout()
        self._chart: QWidget | None = None
        self._rows_box = QVBoxLayout()
        self._rows_box.setSpacing(16)
        self._rows: dict[int, HolderRow] = {}
        self._rows_title = label("By chat", "caption")
        self._lay_out()
        controller.memory_changed.connect(self._draw)
        controller.chats_changed.connect(self._draw)
        controller.lanes_changed.connect(self._draw)
        controller.model_changed.connect(self._draw)
        self._draw()

    def add_chart(self) -> None:
        """Make the chart once the worker is done with loading, not before.

        Its library takes 0.2 seconds to import, which the window's first appearance can do without. It imports NumPy,
        too, and on a processor that OpenBLAS did not know, MLX ran six times slower where NumPy came first (1.6 tokens
        per second instead of 9.5, three chats on two cores); `blas.py` now picks kernels with which it does not matter.
        """
        if self._chart is None and self._controller.model.phase != "loading":
            from app.ui.memory_chart import MemoryChart

            self._chart = MemoryChart(
                lambda: self._controller.memory.history, lambda chat_id: self._controller.colours.get(chat_id, 0)
            )
            self._chart.setFixedHeight(128)
            self._chart_box.addWidget(self._chart)

    def _lay_out(self) -> None:
        inside = QWidget()
        layout = QVBoxLayout(inside)
        layout.setContentsMargins(20, 16, 20, 20)
        layout.setSpacing(0)
        top = QHBoxLayout()
        top.addWidget(label("Cache memory", "caption"))
        top.addStretch()
        top.addWidget(self._pool_size)
        layout.addLayout(top)
        layout.addWidget(self._total)
        layout.addWidget(self._against)
        layout.addSpacing(20)
        layout.addWidget(self._gauge)
        layout.addSpacing(6)
        layout.addWidget(self._blocks)
        layout.addSpacing(20)
        head = QHBoxLayout()
        head.addWidget(label("Blocks in use", "caption"))
        head.addStretch()
        head.addWidget(label("last 2 minutes", "3"))
        layout.addLayout(head)
        layout.addSpacing(4)
        holder = QWidget()
        holder.setFixedHeight(128)
        holder.setLayout(self._chart_box)
        self._chart_box.setContentsMargins(0, 0, 0, 0)
        layout.addWidget(holder)
        layout.addSpacing(20)
        layout.addWidget(self._figures)
        layout.addSpacing(20)
        layout.addWidget(rule())
        layout.addSpacing(16)
        layout.addWidget(self._rows_title)
        layout.addSpacing(12)
        layout.addLayout(self._rows_box)
        layout.addStretch(1)
        scroll = ScrollArea()
        scroll.setWidget(inside)
        outer = QVBoxLayout(self)
        outer.setContentsMargins(0, 0, 0, 0)
        outer.addWidget(scroll)

    # ------------------------------------------------------------ drawing
    def _draw(self) -> None:
        self.add_chart()
        memory = self._controller.memory
        self._total.setText(words.size(memory.total_bytes))
        if memory.total_bytes:
            saved = words.smaller(memory.uncompressed_bytes / memory.total_bytes)
            full = f"uncompressed {words.size(memory.uncompressed_bytes)}"
            self._against.setText(f"{full} · {saved}" if "uncompressed" not in saved else full)
        else:
            self._against.setText("No chat holds memory yet.")
        info = self._controller.model.info
        self._pool_size.setEnabled(info is not None and memory.pool is not None)
        holders = [h for h in memory.holders if h.tokens or h.blocks_held or h.memory_bytes]
        self._draw_pool(holders)
        self._draw_rows(holders)

    def _draw_pool(self, holders: list[ChatMemory]) -> None:
        pool = self._controller.memory.pool
        if pool is None:
            self._gauge.show_shares([], 0)
            self._blocks.setText("No pool yet")
            return
        shares = [Share(self._controller.colours.get(h.chat_id, 0), h.blocks_held) for h in holders if h.blocks_held]
        self._gauge.show_shares(shares, pool.n_blocks)
        self._blocks.setText(f"{pool.blocks_in_use:,} of {pool.n_blocks:,} blocks of {pool.block_size} tokens")
        exact = f"{words.percent(pool.blocks_in_use / max(pool.n_blocks, 1))} of the pool is in use"
        set_tip(self._gauge, f"{exact}. Every chat is drawn at least 3 pixels wide, so that it can be seen.")
        self._figures.show_value("Fragmentation", words.percent(pool.fragmentation))
        self._figures.show_value("Peak", words.count(pool.peak_blocks_in_use, "block"))
        self._figures.show_value("Blocks handed out", f"{pool.allocations:,}")
        self._figures.show_value("Of these reused", f"{pool.reused:,}")
        self._figures.show_value("MLX memory", words.size(pool.active_bytes))

    def _draw_rows(self, holders: list[ChatMemory]) -> None:
        seen: set[int] = set()
        for memory in holders:
            holder = self._controller.holder(memory.chat_id)
            if holder is None:  # closed a moment ago
                continue
            seen.add(memory.chat_id)
            row = self._rows.get(memory.chat_id)
            if row is None:
                row = self._rows[memory.chat_id] = HolderRow()
                row.free_asked.connect(partial(self._controller.free_memory, memory.chat_id))
                self._rows_box.addWidget(row)
            can_free = isinstance(holder, Chat) and holder.can_free
            row.show_holder(holder.title, holder.choice.label, holder.colour, memory, can_free)
        for chat_id in [i for i in self._rows if i not in seen]:
            gone = self._rows.pop(chat_id)
            self._rows_box.removeWidget(gone)
            gone.setParent(None)
            gone.deleteLater()
        self._rows_title.setText("By chat" if seen else "Chats appear here once they hold memory.")
