from training.tables.layout import align, markdown


TITLES, ROWS = ["row", "parameters\n(paper)", "N"], [["base", "65", "6"], ["big", "213", ""]]


def test_columns_are_aligned_and_titles_stand_on_the_cells():
    assert align(TITLES, ROWS).splitlines() == [
        "      parameters",
        "row      (paper)  N",
        "base          65  6",
        "big          213",
    ]
    assert align(["a"], []) == "a"


def test_markdown_writes_a_title_in_one_line():
    assert markdown(TITLES, ROWS).splitlines() == [
        "| row | parameters (paper) | N |",
        "| --- | --- | --- |",
        "| base | 65 | 6 |",
        "| big | 213 |  |",
    ]
