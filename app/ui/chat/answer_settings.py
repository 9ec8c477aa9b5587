"""The dialog that sets how one chat is answered: how words are chosen, when an answer ends, how much is read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QDialog, QGridLayout, QHBoxLayout, QLineEdit, QTextEdit, QVBoxLayout, QWidget

from app.engine.messages import Sampling
from app.engine.values import SAMPLING_LIMITS
from app.ui.look.quiet_line import speak
from app.ui.look.small import ScrollArea, button, label, rule
from app.ui.look.theme import theme
from app.ui.look.tick import Tick
from app.ui.session.settings import ChatSettings

WIDTH = 520
LEAST_CONTEXT = 64
MOST_CONTEXT = 10_000_000
MOST_SEED = 2**63 - 1

# Names of Sampling, with what they are called and what they do.
NUMBERS: dict[str, tuple[str, str]] = {
    "temperature": ("Temperature", "0 always takes the likeliest word; more is more varied."),
    "top_p": ("Top-p", "The likeliest words up to this probability; 1 is all."),
    "top_k": ("Top-k", "So many of the likeliest words; 0 is all."),
    "min_p": ("Min-p", "Words with this part of the likeliest one’s chance; 0 is all."),
    "repetition_penalty": ("Repetition penalty", "Above 1, words just used come less often; 1 is off."),
    "max_tokens": ("Longest answer", "In tokens, which are a little shorter than words."),
}


class Refused(Exception):  # noqa: N818  # the person's input, not the program, is at fault
    """What was typed can't be used; the message says what can."""


def read_number(text: str, least: float, most: float, whole: bool, empty: str = "") -> float:
    """The number in `text`, written with a point or a comma. `empty` says what an empty field means, where it may be.

    Raises:
        Refused: It is no number, or outside the limits.
    """
    kind = "a whole number" if whole else "a number"
    limits = f"from {least:,} to {most:,}" if most < MOST_SEED else f"of at least {least:,}"
    allowed = f"Write {kind} {limits}{f', or nothing for {empty}' if empty else ''}."
    typed = "".join(text.split())
    try:
        number: float = int(typed.replace(",", "")) if whole else float(typed.replace(",", "."))
    except ValueError:
        raise Refused(allowed) from None
    if not least <= number <= most:
        raise Refused(allowed)
    return number


class Field:
    """One line of the form: a name, what it does or what is wrong with it, and where one types."""

    def __init__(self, name: str, explained: str, read: Callable[[str], object], placeholder: str = "") -> None:
        self._explained, self._read = explained, read
        self.name = label(name)
        self.says = label(explained, wrap=True)
        self.edit = QLineEdit()
        self.edit.setAccessibleName(name)
        self.edit.setFixedWidth(112)
        self.edit.setPlaceholderText(placeholder)
        # Qt's own, half of the text's colour, is too faint for words that say something.
        self.edit.setStyleSheet(f"placeholder-text-color: {theme().tokens.text3};")
        self.edit.textChanged.connect(lambda _: self.check())
        speak(self.says, warn=False)
        self.check()

    @property
    def value(self) -> object:
        return self._read(self.edit.text())

    def check(self) -> bool:
        """Whether what is typed can be used; says why not in place of what the field does."""
        try:
            self._read(self.edit.text())
        except Refused as refused:
            says, warn = str(refused), True
        else:
            says, warn = self._explained, False
        speak(self.says, warn)
        self.says.setText(says)
        self.edit.setAccessibleDescription(says)
        return not warn


class AnswerSettings(QDialog):
    """Ask with `exec()`; once it is accepted, `chosen` is what the person wants."""

    def __init__(
        self, chosen: ChatSettings, default: Sampling, model_limit: int | None, parent: QWidget | None = None
    ) -> None:
        super().__init__(parent)
        self.setWindowTitle("Answer settings")
        self.chosen = chosen
        self._before, self._default = chosen, default
        self.fields = {name: _number_field(name) for name in NUMBERS}
        self.fields["seed"] = Field(
            "Seed",
            "With one, the same question is answered the same.",
            lambda text: _read_or_none(text, 0, MOST_SEED, "a new one each time"),
            "new each time",
        )
        reads = f"{model_limit:,}" if model_limit else "all it can"
        self.fields["context_limit"] = Field(
            "Context limit",
            "Tokens of the chat the model reads at most.",
            lambda text: _read_or_none(text, LEAST_CONTEXT, MOST_CONTEXT, "as many as the model reads"),
            reads,
        )
        self.drops = Tick("When the context is full, leave out the oldest messages")
        self.stop = QTextEdit()
        self.stop.setAcceptRichText(False)
        self.stop.setTabChangesFocus(True)
        self.stop.setAccessibleName("Stop texts, one per line")
        self.stop.setFixedHeight(3 * self.stop.fontMetrics().lineSpacing() + 16)
        self._lay_out()
        self._fill(chosen.sampling or default, chosen)

    def _lay_out(self) -> None:
        form = QWidget()
        grid = QGridLayout(form)
        grid.setContentsMargins(24, 16, 24, 16)
        grid.setHorizontalSpacing(16)
        grid.setVerticalSpacing(2)
        grid.setColumnStretch(0, 1)
        order = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "seed", "max_tokens", "stop")
        for name in (*order, "context_limit"):
            row = grid.rowCount()
            if name == "stop":
                self._add_stop(grid, row)
                continue
            field = self.fields[name]
            field.name.setBuddy(field.edit)
            grid.addWidget(field.name, row, 0)
            grid.addWidget(field.says, row + 1, 0, Qt.AlignmentFlag.AlignTop)
            grid.addWidget(field.edit, row, 1, 2, 1, Qt.AlignmentFlag.AlignTop)
            grid.setRowMinimumHeight(row + 2, 12)
        grid.addWidget(self.drops, grid.rowCount(), 0, 1, 2)
        scroll = ScrollArea()
        scroll.setWidget(form)
        reset, cancel, self.apply = (
            button("Reset to defaults", "link"),
            button("Cancel", "outline"),
            button("Save", "primary"),
        )
        self.apply.setDefault(True)
        reset.setAutoDefault(False)
        cancel.setAutoDefault(False)
        reset.clicked.connect(lambda: self._fill(self._default, ChatSettings()))
        cancel.clicked.connect(self.reject)
        self.apply.clicked.connect(self._save)
        buttons = QHBoxLayout()
        buttons.setContentsMargins(17, 12, 24, 20)  # the link has some of its own
        buttons.setSpacing(8)
        buttons.addWidget(reset)
        buttons.addStretch()
        buttons.addWidget(cancel)
        buttons.addWidget(self.apply)
        head = QVBoxLayout()
        head.setContentsMargins(24, 24, 24, 12)
        head.setSpacing(4)
        head.addWidget(label("Answer settings", "title"))
        head.addWidget(label("For this chat, from its next answer on.", "2"))
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.setSpacing(0)
        layout.addLayout(head)
        layout.addWidget(rule())
        layout.addWidget(scroll, 1)
        layout.addWidget(rule())
        layout.addLayout(buttons)
        self.setFixedWidth(WIDTH)
        room = self.screen().availableGeometry().height() - 64
        wanted = form.sizeHint().height() + self.sizeHint().height() - scroll.sizeHint().height()
        self.resize(WIDTH, min(wanted, room))

    def _add_stop(self, grid: QGridLayout, row: int) -> None:
        named = label("Stop texts")
        named.setBuddy(self.stop)
        says = label("An answer ends before any of these; one per line.", wrap=True)
        speak(says, warn=False)
        grid.addWidget(named, row, 0)
        grid.addWidget(says, row + 1, 0)
        grid.setRowMinimumHeight(row + 2, 4)
        grid.addWidget(self.stop, row + 3, 0, 1, 2)
        grid.setRowMinimumHeight(row + 4, 12)

    def _fill(self, sampling: Sampling, chosen: ChatSettings) -> None:
        for name in (*NUMBERS, "seed"):
            value = getattr(sampling, name)
            self.fields[name].edit.setText("" if value is None else f"{value}".removesuffix(".0"))
        self.stop.setPlainText("\n".join(sampling.stop))
        self.fields["context_limit"].edit.setText("" if chosen.context_limit is None else f"{chosen.context_limit}")
        self.drops.setChecked(chosen.drop_oldest)

    def _save(self) -> None:
        wrong = [field for field in self.fields.values() if not field.check()]
        if wrong:
            wrong[0].edit.setFocus()
            wrong[0].edit.selectAll()
            return
        values: dict[str, object] = {name: field.value for name, field in self.fields.items()}
        limit = values.pop("context_limit")
        values["stop"] = tuple(line for line in self.stop.toPlainText().split("\n") if line.strip())
        sampling = replace(self._before.sampling or self._default, **values)  # type: ignore[arg-type]
        self.chosen = ChatSettings(
            None if sampling == self._default else sampling,
            self.drops.isChecked(),
            limit if isinstance(limit, int) else None,
        )
        self.accept()


def _number_field(name: str) -> Field:
    called, explained = NUMBERS[name]
    least, most, whole = SAMPLING_LIMITS[name]
    return Field(called, explained, lambda text: read_number(text, least, most, whole))


def _read_or_none(text: str, least: int, most: int, empty: str) -> float | None:
    return read_number(text, least, most, True, empty) if text.strip() else None
