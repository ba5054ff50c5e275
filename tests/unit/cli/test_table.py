"""Tables of text: alignment, nulls, widths, and what is left out when there is no room."""

from __future__ import annotations

from headwater.cli.table import cell_width, column, lay_out, render


def test_numbers_stand_right_and_nulls_are_visible() -> None:
    columns = [column("name", ["a", None]), column("n", ["1", "20"], right=True)]
    assert render(lay_out(columns, None)) == [" name │  n", "──────┼────", " a    │  1", " NULL │ 20"]


def test_the_widest_columns_are_cut_first() -> None:
    columns = [column("id", ["1"], right=True), column("a", ["x" * 50]), column("b", ["y" * 80])]
    lines = render(lay_out(columns, 40))
    assert max(map(cell_width, lines)) <= 40
    assert lines[2].startswith("  1 │ xxxxxxxxxxxxxx")
    assert lines[2].count("…") == 2


def test_columns_are_left_out_when_cutting_does_not_help() -> None:
    columns = [column(f"column_{number}", ["value"]) for number in range(20)]
    layout = lay_out(columns, 40)
    assert layout.left_out == 20 - len(layout.columns)
    assert max(map(cell_width, render(layout))) <= 40
    assert len(layout.columns) >= 4


def test_a_single_column_is_cut_to_any_width() -> None:
    lines = render(lay_out([column("text", ["x" * 500])], 20))
    assert max(map(cell_width, lines)) <= 20


def test_wide_characters_count_twice_and_are_never_halved() -> None:
    columns = [column("k", ["日本語日本語", "ab"]), column("v", ["1", "2"], right=True)]
    lines = render(lay_out(columns, None))
    assert cell_width(lines[2].split("│")[0]) == cell_width(lines[3].split("│")[0])
    cut = render(lay_out([column("k", ["日本語日本語日本語"])], 10))
    assert cell_width(cut[2].strip()) <= 9


def test_values_cannot_steer_the_terminal() -> None:
    (line,) = render(lay_out([column("x", ["a\x1b[31m\nb\tc"])], None))[2:]
    assert "\x1b" not in line
    assert "⏎b c" in line


def test_no_rows_and_no_columns() -> None:
    assert render(lay_out([column("a", [])], 80)) == [" a", "───"]
    assert render(lay_out([], 80)) == ["", ""]
