import json

import pytest

from training.data.grammar.corpus import write_corpus
from training.evaluation import main
from vaswani.errors import UserError


def test_the_grammar_is_scored_by_its_name(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    lines = (write_corpus(tmp_path / "corpus", train=1) / "test.tsv").read_text(encoding="utf-8").splitlines()[1:6]
    (tmp_path / "out.de").write_text("".join(line.split("\t")[1] + "\n" for line in lines), encoding="utf-8")
    dataset = ["--dataset_name", "grammar", "--source_lang", "en", "--target_lang", "de", "--max_samples", "5"]
    main(["--hypothesis", "out.de", *dataset, "--json"])
    row = json.loads(capsys.readouterr().out)
    assert (row["test_set"], row["split"], row["sentences"], row["exact_match"]) == ("grammar", "test", 5, 100.0)


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--dataset_name", "grammar", "--split", "x"], "the dataset 'grammar' has no split 'x'"),
        (["--dataset_name", "grammar", "--dataset_config_name", "x"], "dataset_config_name='x' is for other datasets"),
        (["--reference", "test.de", "--beams"], "unrecognized arguments: --beams"),
    ],
)
def test_it_refuses_as_the_console_command_does(flags, sentence):
    with pytest.raises(UserError, match=sentence):
        main(["--hypothesis", "good.de", "--target_lang", "de", "--source_lang", "en", *flags])
