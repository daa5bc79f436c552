from training.explaining.learning_rate import CHOICES, UPDATES, draw
from training.objective.schedule import learning_rate


def test_each_line_is_the_schedule_and_peaks_at_the_end_of_the_warm_up():
    lines = draw().axes[0].get_lines()
    for line, (d_model, warmup_steps) in zip(lines, CHOICES, strict=True):
        rates = line.get_ydata().tolist()
        assert rates == [learning_rate(update, d_model, warmup_steps) for update in UPDATES]
        [marked] = line.get_markevery()
        assert UPDATES[marked] == UPDATES[rates.index(max(rates))] == warmup_steps


def test_lines_differ_by_more_than_colour():
    figure = draw()
    lines = figure.axes[0].get_lines()
    assert len({line.get_linestyle() for line in lines}) == len({line.get_color() for line in lines}) == len(lines)
    assert [text.get_text() for text in figure.legends[0].get_texts()] == list(CHOICES.values())
