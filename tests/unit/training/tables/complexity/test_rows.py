import pytest

from training.tables.complexity.rows import ROWS, Size, choose_rows
from vaswani.errors import UserError


def test_rows_are_chosen_by_name_in_the_order_of_the_table():
    assert [row.name for row in choose_rows(" lstm,self-attention, lstm,")] == ["self-attention", "lstm"]
    assert choose_rows("all") == list(ROWS.values())


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (
            "self-attention,convolutions",
            "unknown layer 'convolutions': the nearest known one is 'convolution'; known are",
        ),
        ("Recurrent", "unknown layer 'Recurrent': the nearest known one is 'recurrent'"),
        (" , ", "layers must name at least one of self-attention, projected"),
    ],
)
def test_unknown_names_are_refused_with_the_nearest_known_one(names, message):
    with pytest.raises(UserError, match=message):
        choose_rows(names)


def test_a_size_has_only_the_numbers_that_the_layer_has():
    assert ROWS["recurrent"].size(1, 2, 3, 4) == Size(1, 2)
    assert ROWS["dilated"].size(1, 2, 3, 4) == Size(1, 2, k=3)
    assert ROWS["blocks"].size(1, 2, 3, 4) == Size(1, 2, r=4)


def test_the_papers_four_rows_are_as_it_prints_them():
    printed = {
        "self-attention": ("O(n² d)", "O(1)", "O(1)"),
        "recurrent": ("O(n d²)", "O(n)", "O(n)"),
        "dilated": ("O(k n d²)", "O(1)", "O(log_k n)"),
        "restricted": ("O(r n d)", "O(1)", "O(n/r)"),
    }
    for name, claims in printed.items():
        row = ROWS[name]
        assert (row.complexity, row.sequential, row.path) == claims
