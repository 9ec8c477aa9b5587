"""What is known of a message while nothing of it is laid out, and how high it will be about."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from app.ui.chat.message_view import MessageView
from app.ui.look.theme import theme
from app.ui.session.state import Turn

FOOT = 36  # what stands below an answer's words


@dataclass(eq=False, slots=True)
class Row:
    """A message: what its height is estimated from, and its widget while there is one.

    Attributes:
        scale: How many times higher than estimated it turned out to be.
    """

    role: str
    n_characters: int = 0
    n_newlines: int = 0
    scale: float = 1.0
    view: MessageView | None = None

    def measure(self, turn: Turn) -> None:
        self.n_characters, self.n_newlines = len(turn.content), turn.content.count("\n")

    def compare(self, height: int, width: int) -> None:
        """It turned out to be so high at a width: the next guess is nearer."""
        self.scale = 1.0
        self.scale = max(0.2, min((height - FOOT) / max(guess_rows([self], width)[0] - FOOT, 1), 5.0))


def guess_rows(rows: Sequence[Row], width: int) -> list[int]:
    """About how high messages are. There may be thousands, and each step of a resize asks for all of them anew."""
    text_px = theme().base + 2
    line = text_px * 1.54
    asked, said = (line / max(part * width / (text_px * 0.5), 8.0) for part in (0.65, 1.0))
    return [
        int(
            (row.n_characters * (asked if row.role == "user" else said) + (0.6 * row.n_newlines + 0.7) * line)
            * row.scale
        )
        + FOOT
        for row in rows
    ]
