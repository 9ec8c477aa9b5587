"""The right side: what all chats hold, how much of the budget that is, and each chat's share, live."""

from __future__ import annotations

from functools import partial

from PySide6.QtCore import QEvent, Qt, Signal
from PySide6.QtGui import QEnterEvent
from PySide6.QtWidgets import QBoxLayout, QFrame, QGridLayout, QHBoxLayout, QLabel, QSizePolicy, QVBoxLayout, QWidget

from app.engine.messages import ChatMemory, PoolReport
from app.ui.look import words
from app.ui.look.quiet_line import speak
from app.ui.look.small import Dot, ElidedLabel, IconButton, ScrollArea, ThinBar, button, label, rule, set_tip
from app.ui.memory.pool_gauge import PoolGauge, Share
from app.ui.session.controller import Controller
from app.ui.session.state import Chat

WIDTH = 328
MARGIN = 20
SCROLL_BAR = 11  # its width and the panel's border
INDENT = 16  # of what stands below a chat's title: the dot and the space behind it
NEARLY_FULL = 0.9

FRAGMENTATION = (
    "Fragmentation is the part of the pool's blocks that hold some tokens but are not full: a chat's last blocks have "
    "room left, which no other chat can use."
)

# Two sums that are nearly the same, which is why only one is shown as bytes; the tips say what each counts.
CACHE_MEMORY = (
    "What the caches of all chats take: every array in them, with the room they keep ready for the next tokens. What "
    "forks share counts once."
)
BUDGET = "The budget counts whole blocks, but not the room that caches keep ready, which the cache memory above does."


class HolderRow(QWidget):
    """One chat (or lane): what it holds, and a bar of that against the uncompressed size."""

    free_asked = Signal()

    def __init__(self) -> None:
        super().__init__()
        self._dot = Dot()
        self._title = ElidedLabel("", "figure")
        self._bytes = label("", "figure")
        self._method = ElidedLabel("", "3")
        self._counts = ElidedLabel("", "3")
        self._counts.setSizePolicy(QSizePolicy.Policy.Preferred, QSizePolicy.Policy.Preferred)
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
        self._below = QBoxLayout(QBoxLayout.Direction.LeftToRight)
        self._below.setContentsMargins(INDENT, 0, 0, 0)
        self._below.setSpacing(2)
        self._below.addWidget(self._method, 1)
        self._below.addWidget(self._counts)
        bar = QHBoxLayout()
        bar.setContentsMargins(INDENT, 0, 0, 0)
        bar.addWidget(self._bar)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.setSpacing(4)
        layout.addLayout(head)
        layout.addLayout(self._below)
        layout.addLayout(bar)

    def show_holder(self, title: str, method: str, colour: int, memory: ChatMemory, can_free: bool) -> None:
        self._dot.set_colour(colour)
        self._title.set_full(title)
        self._bytes.setText(words.size(memory.memory_bytes))
        waits = memory.state == "waiting"
        speak(self._method, waits)
        self._method.set_full("waiting for memory" if waits else method)
        shared = f" ({memory.shared_blocks:,} shared)" if memory.shared_blocks else ""
        blocks = f"{words.count(memory.blocks_held, 'block')}{shared}"
        self._counts.set_full(f"{blocks} · {words.count(memory.tokens, 'token')}")
        self._arrange()
        whole = max(memory.uncompressed_bytes, memory.memory_bytes, 1)
        self._bar.show_fraction(memory.memory_bytes / whole, colour)
        against = f"{words.size(memory.memory_bytes)} of {words.size(memory.uncompressed_bytes)} uncompressed"
        forks = f". {words.size(memory.shared_bytes)} of it other forks hold, too" if memory.shared_bytes else ""
        set_tip(self, f"{against}{forks}")
        self._can_free = can_free
        self._reveal()

    def _arrange(self) -> None:
        """Method and counts side by side where they fit, or below each other: neither may be cut off."""
        together = self._method.sizeHint().width() + 12 + self._counts.sizeHint().width()
        # Not by its own width, which comes after it is laid out and would lay it out again before one's eyes.
        fits = together <= WIDTH - 2 * MARGIN - SCROLL_BAR - INDENT
        self._below.setDirection(QBoxLayout.Direction.LeftToRight if fits else QBoxLayout.Direction.TopToBottom)
        side = Qt.AlignmentFlag.AlignRight if fits else Qt.AlignmentFlag.AlignLeft
        self._counts.setAlignment(side | Qt.AlignmentFlag.AlignVCenter)

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
        self._names: dict[str, QLabel] = {}
        self._values: dict[str, QLabel] = {}
        for row, (name, explained) in enumerate(names.items()):
            named, value = label(name, "2"), label("–", "figure")
            for made in (named, value):
                set_tip(made, explained)
            value.setAlignment(Qt.AlignmentFlag.AlignRight)
            grid.addWidget(named, row, 0)
            grid.addWidget(value, row, 1)
            self._names[name], self._values[name] = named, value
        grid.setColumnStretch(1, 1)

    def show_value(self, name: str, value: str) -> None:
        self._values[name].setText(value)
        self._values[name].setAccessibleName(f"{name}: {value}")

    def reveal(self, name: str, shown: bool) -> None:
        self._names[name].setVisible(shown)
        self._values[name].setVisible(shown)


class MemoryPanel(QFrame):
    budget_asked = Signal()

    def __init__(self, controller: Controller) -> None:
        super().__init__()
        self.setObjectName("memory")
        self.setFixedWidth(WIDTH)
        self._controller = controller
        self._total = label("0 B", "display")
        self._total.setAccessibleName("Cache memory of all chats")
        set_tip(self._total, CACHE_MEMORY)
        self._against = label("No chat holds memory yet.", "2", wrap=True)
        self._gauge = PoolGauge()
        self._in_use = ElidedLabel("", "3")
        self._budget = button("Budget…", "link")
        self._budget.clicked.connect(self.budget_asked)
        self._figures = Figures(
            {
                "Fragmentation": FRAGMENTATION,
                "Peak": "The most blocks that were in use at one time.",
                "Blocks handed out": "How often a block was taken from the pool since the app started.",
                "Of these reused": "How many of them a chat, this one or another, had given back before.",
                "Shared blocks": "Blocks that forks of one conversation hold together; each counts once.",
                "MLX memory": "What MLX holds in all: the model's weights, every cache, and work space.",
            }
        )
        self._figures.reveal("Shared blocks", False)  # until a chat is forked
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
            from app.ui.memory.memory_chart import MemoryChart

            self._chart = MemoryChart(
                lambda: self._controller.memory.history, lambda chat_id: self._controller.colours.get(chat_id, 0)
            )
            self._chart.setFixedHeight(128)
            self._chart_box.addWidget(self._chart)

    def _lay_out(self) -> None:
        inside = QWidget()
        layout = QVBoxLayout(inside)
        layout.setContentsMargins(MARGIN, 16, MARGIN, 20)
        layout.setSpacing(0)
        top = QHBoxLayout()
        named = label("Cache memory", "caption")
        set_tip(named, CACHE_MEMORY)
        top.addWidget(named)
        top.addStretch()
        top.addWidget(self._budget)
        layout.addLayout(top)
        layout.addWidget(self._total)
        layout.addWidget(self._against)
        layout.addSpacing(20)
        layout.addWidget(self._gauge)
        layout.addSpacing(6)
        layout.addWidget(self._in_use)
        layout.addSpacing(20)
        head = QHBoxLayout()
        held = label("Blocks held", "caption")
        set_tip(held, "By each chat. What forks of one conversation share is drawn for each of them.")
        head.addWidget(held)
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
        holders = [h for h in memory.holders if h.state == "waiting" or h.tokens or h.blocks_held or h.memory_bytes]
        self._draw_total(holders)
        self._budget.setEnabled(self._controller.model.info is not None and memory.pool is not None)
        self._draw_pool(holders)
        self._draw_rows(holders)

    def _draw_total(self, holders: list[ChatMemory]) -> None:
        """What all chats hold, and against it what they would hold uncompressed, each with a copy of its own."""
        memory = self._controller.memory
        held, whole = memory.total_bytes, memory.uncompressed_bytes
        # What forks share counts once where the pool says how much that is.
        total = memory.pool.cache_bytes if memory.pool is not None and memory.pool.cache_bytes else held
        self._total.setText(words.size(total))
        if not held:
            self._against.setText("No chat holds memory yet.")
            set_tip(self._against, "")
            return
        full, explained = f"uncompressed {words.size(whole)}", "What all chats would hold in the method fp16"
        saved = words.smaller(whole / held)
        said = full if "uncompressed" in saved else f"{full} · {saved}"
        shared = held - total if any(h.shared_bytes for h in holders) else 0
        if shared > 0:
            # A line of its own: the three never fit on one.
            said += f"\n{words.size(shared)} shared by forks"
            explained += ", each with a copy of its own. Forks of one conversation share a part, which counts once"
        self._against.setText(said)
        set_tip(self._against, f"{explained}.")

    def _draw_pool(self, holders: list[ChatMemory]) -> None:
        pool = self._controller.memory.pool
        if pool is None:
            self._gauge.show_shares([], 0)
            self._in_use.set_full("No pool yet")
            return
        self._draw_gauge(pool, holders)
        self._figures.show_value("Shared blocks", f"{pool.shared_blocks:,}")
        if pool.shared_blocks:
            self._figures.reveal("Shared blocks", True)  # and it stays, so that nothing jumps
        self._figures.show_value("Fragmentation", words.percent(pool.fragmentation))
        self._figures.show_value("Peak", words.count(pool.peak_blocks_in_use, "block"))
        self._figures.show_value("Blocks handed out", f"{pool.allocations:,}")
        self._figures.show_value("Of these reused", f"{pool.reused:,}")
        self._figures.show_value("MLX memory", words.size(pool.active_bytes))

    def _draw_gauge(self, pool: PoolReport, holders: list[ChatMemory]) -> None:
        in_use, budget = pool.bytes_in_use, pool.max_bytes
        held = max(sum(h.memory_bytes for h in holders), 1)
        colours = self._controller.colours
        shares = [Share(colours.get(h.chat_id, 0), in_use * h.memory_bytes / held) for h in holders if h.memory_bytes]
        self._gauge.show_shares(shares, in_use if budget is None else budget)
        blocks = words.count(pool.blocks_in_use, "block")
        counted = f"{blocks} of {pool.block_size} tokens"
        visible = "Every chat is drawn at least 3 pixels wide, so that it can be seen."
        if budget is None:
            speak(self._in_use, warn=False)
            self._in_use.set_full(f"No budget · {counted}", f"{words.size(in_use)} in blocks. {BUDGET}")
            set_tip(self._gauge, f"There is no budget: the bar is what is in use, by chat. {visible}")
            return
        full = in_use >= NEARLY_FULL * budget
        speak(self._in_use, warn=full)
        used = words.percent(in_use / max(budget, 1))
        self._in_use.set_full(
            f"{used} of the {words.size(budget)} budget · {blocks}",
            f"{part_of(in_use, budget)} in {counted}. {BUDGET}",
        )
        waits = "Chats that find no memory wait until some is freed. " if full else ""
        set_tip(self._gauge, f"{used} of the budget is in use. {waits}{visible}")

    def _draw_rows(self, holders: list[ChatMemory]) -> None:
        seen: set[int] = set()
        for memory in holders:
            holder = self._controller.state.holder(memory.chat_id)
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


def part_of(part: int, whole: int) -> str:
    """41.2 of 400 MB, or 950 KB of 400 MB."""
    said, of = words.size(part), words.size(whole)
    number, unit = said.split(" ")
    return f"{number if of.endswith(f' {unit}') else said} of {of}"
