from training.tables.complexity.rows import ROWS, Size


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
