import pytest

from training import report
from vaswani.errors import UserError


def test_the_page_of_one_run_lies_in_it(tmp_path, monkeypatch, capsys):
    given = []
    monkeypatch.setattr(report, "read_runs", lambda paths: paths)
    monkeypatch.setattr(report, "write_report", lambda runs, path: given.append((runs, path)))
    monkeypatch.chdir(tmp_path)
    report.main(["a"])
    report.main(["a", "b"])
    report.main(["a", "--output", "shown/here.html"])
    assert [str(path) for _, path in given] == ["a/report.html", "report.html", "shown/here.html"]
    assert capsys.readouterr().out.splitlines()[-1] == "Written: shown/here.html"
    assert (tmp_path / "shown").is_dir()


def test_what_cannot_be_is_one_sentence(tmp_path, monkeypatch):
    monkeypatch.setattr(report, "read_runs", lambda paths: paths)
    with pytest.raises(UserError, match=r"output='x\.pdf' must end in \.html"):
        report.main(["a", "--output", "x.pdf"])
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"output='.*page\.html' cannot be written: "):
        report.main(["a", "--output", str(tmp_path / "file" / "page.html")])
    with pytest.raises(UserError, match="RUN_DIR"):
        report.main([])
