"""Where the parts of a column begin, whatever changes in between."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from app.ui.chat.heights import Heights

HEIGHT = st.integers(0, 50)


@given(st.lists(HEIGHT, max_size=30), st.data())
def test_a_column_adds_up_after_any_changes(start: list[int], data: st.DataObject) -> None:
    heights, known = Heights(start), list(start)
    for _ in range(data.draw(st.integers(0, 12))):
        if known and data.draw(st.sampled_from(("set", "replace"))) == "set":
            index, height = data.draw(st.integers(0, len(known) - 1)), data.draw(HEIGHT)
            assert heights.set(index, height) == (known[index] != height)
            known[index] = height
        else:
            index, new = data.draw(st.integers(0, len(known))), data.draw(st.lists(HEIGHT, max_size=5))
            heights.replace_from(index, new)
            known[index:] = new
        at = data.draw(st.integers(0, len(known)))
        assert heights.y(at) == sum(known[:at])
    assert (len(heights), heights.total) == (len(known), sum(known))
    y = data.draw(st.integers(-5, sum(known) + 5))
    if known:
        found = heights.at(y)
        assert 0 <= found < len(known)
        if 0 <= y < sum(known):
            assert heights.y(found) <= y < heights.y(found + 1)
