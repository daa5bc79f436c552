import pytest

from training.tables.metrics import logged_evaluations, logged_updates, seconds_of_training, tokens_until


def test_rows_are_read_except_one_that_is_not_whole_yet(tmp_path):
    assert logged_updates(tmp_path) == []
    rows = [
        '{"step": 1, "target_tokens_per_second": 5}',
        '{"step": 1, "split": "test"}',
        '{"step": 2, "split": "validation"}',
        '{"step": 2, "split": "test"}',
        '{"step": 9, "split": "test", "test_set": "evaluated later"}',
    ]
    (tmp_path / "metrics.jsonl").write_text("\n".join([*rows, '{"step": 3, "split": "test"']))
    assert [row["step"] for row in logged_updates(tmp_path)] == [1]
    assert [row["step"] for row in logged_evaluations(tmp_path, "test")] == [1, 2]


def test_the_seconds_of_updates_add_up_even_at_a_rate_that_was_rounded_to_nothing():
    rows = [{"target_tokens": tokens, "target_tokens_per_second": rate} for tokens, rate in ((50, 10.0), (60, 20.0))]
    assert seconds_of_training(rows) == 8
    for tokens in (0, 500):  # the latter before a run was resumed, which then skipped updates
        rows.append({"target_tokens": tokens, "target_tokens_per_second": 0.0})
    assert seconds_of_training(rows) == 8


@pytest.mark.parametrize(("step", "tokens"), [(2, 100), (4, 200), (5, 500), (6, 800), (9, 800)])
def test_tokens_are_counted_up_to_an_update_between_two_rows(step, tokens):
    assert tokens_until(step, [{"step": 4, "target_tokens": 200}, {"step": 6, "target_tokens": 600}]) == tokens
