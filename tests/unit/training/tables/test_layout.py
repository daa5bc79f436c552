from training.tables.layout import WIDTH, align, for_terminal, markdown, write_csv


TITLES, ROWS = ["row", "parameters (paper)", "N"], [["base", "65", "6"], ["big", "213", ""]]


def test_columns_are_aligned_and_long_titles_stand_on_the_cells_in_several_lines():
    assert align(TITLES, ROWS).splitlines() == [
        "      parameters",
        "row      (paper)  N",
        "base          65  6",
        "big          213",
    ]
    assert align(["a"], []) == "a"


def test_words_are_flush_left_and_numbers_flush_right():
    assert align(["row", "positions", "N"], [["base", "sinusoidal", "6"], ["E", "learned", "12"]]).splitlines() == [
        "row   positions    N",
        "base  sinusoidal   6",
        "E     learned     12",
    ]


def test_columns_that_do_not_fit_stand_below_beside_the_first_one():
    titles, rows = ["row", *(f"title {number}" for number in range(20))], [["base", *["1,000,000"] * 20], ["big"] * 21]
    parts = [part.splitlines() for part in align(titles, rows).split("\n\n")]
    assert len(parts) == 3
    assert all(len(line) <= WIDTH for part in parts for line in part)
    assert [part[-2].split()[0] for part in parts] == ["base"] * 3
    assert " ".join(line for part in parts for line in part).count("1,000,000") == 20
    assert align(["a", "b"], [["1" * 90, "2" * 90]]).count("2") == 90  # as wide as it must be


def test_markdown_is_laid_out_for_a_terminal():
    table = markdown(["row", "p", "BLEU"], [["base", "", "25.8"], ["big", "0.01", ""]])
    assert for_terminal(f"# Table\n\n{'word ' * 30}\n\n{table}\n").split("\n\n") == [
        "# Table",
        " ".join(["word"] * 20) + "\n" + " ".join(["word"] * 10),
        "row      p  BLEU\nbase        25.8\nbig   0.01",
    ]


def test_markdown_writes_a_title_in_one_line():
    assert markdown(TITLES, ROWS).splitlines() == [
        "| row | parameters (paper) | N |",
        "| --- | --- | --- |",
        "| base | 65 | 6 |",
        "| big | 213 |  |",
    ]


def test_a_file_has_the_columns_of_all_rows(tmp_path):
    write_csv(tmp_path / "rows.csv", [{"row": "base", "N": 6}, {"row": "E, learned", "BLEU": 25.7}])
    assert (tmp_path / "rows.csv").read_text() == 'row,N,BLEU\nbase,6,\n"E, learned",,25.7\n'
