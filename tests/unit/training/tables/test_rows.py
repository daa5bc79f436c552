import json

from training.settings import ROOT
from training.tables.rows import ROWS, SERIES


# Of every row, all that its config has other than base's.
CHANGES = {
    **{f"A-h{h}": {"encoder_attention_heads": h, "decoder_attention_heads": h} for h in (1, 4, 16, 32)},
    **{f"B-k{k}": {"head_dim": k, "v_head_dim": 64} for k in (16, 32)},
    **{f"C-N{n}": {"encoder_layers": n, "decoder_layers": n} for n in (2, 4, 8)},
    **{f"C-d{d}": {"d_model": d} for d in (256, 1024)},
    **{f"C-ff{d}": {"encoder_ffn_dim": d, "decoder_ffn_dim": d} for d in (1024, 4096)},
    **{f"D-drop{p}": {"dropout": p} for p in (0.0, 0.2)},
    **{f"D-ls{e}": {} for e in (0.0, 0.2)},
    "E-learned": {"position_embedding_type": "learned", "max_position_embeddings": 1024},
}


# The table as the paper prints it: name, perplexity, BLEU, millions of parameters, and hours of training (Table 2).
TABLE_3 = [
    ("base", 4.92, 25.8, 65, 12),
    ("A-h1", 5.29, 24.9, None, None),
    ("A-h4", 5.00, 25.5, None, None),
    ("A-h16", 4.91, 25.8, None, None),
    ("A-h32", 5.01, 25.4, None, None),
    ("B-k16", 5.16, 25.1, 58, None),
    ("B-k32", 5.01, 25.4, 60, None),
    ("C-N2", 6.11, 23.7, 36, None),
    ("C-N4", 5.19, 25.3, 50, None),
    ("C-N8", 4.88, 25.5, 80, None),
    ("C-d256", 5.75, 24.5, 28, None),
    ("C-d1024", 4.66, 26.0, 168, None),
    ("C-ff1024", 5.12, 25.4, 53, None),
    ("C-ff4096", 4.75, 26.2, 90, None),
    ("D-drop0.0", 5.77, 24.6, None, None),
    ("D-drop0.2", 4.95, 25.5, None, None),
    ("D-ls0.0", 4.67, 25.3, None, None),
    ("D-ls0.2", 5.47, 25.7, None, None),
    ("E-learned", 4.92, 25.7, None, None),
    ("big", 4.33, 26.4, 213, 84),
]


def test_the_figures_are_those_that_the_paper_prints():
    assert [(row.name, row.perplexity, row.bleu, row.parameters, row.hours) for row in ROWS.values()] == TABLE_3
    assert list(ROWS) == [name for name, *_ in TABLE_3]


def test_each_series_holds_the_rows_that_vary_one_thing():
    assert SERIES == {
        "heads (A)": ("A-h1", "A-h4", "base", "A-h16", "A-h32"),
        "width of keys (B)": ("B-k16", "B-k32", "base"),
        "layers (C)": ("C-N2", "C-N4", "base", "C-N8"),
        "d_model (C)": ("C-d256", "base", "C-d1024"),
        "d_ff (C)": ("C-ff1024", "base", "C-ff4096"),
        "dropout (D)": ("D-drop0.0", "base", "D-drop0.2"),
        "label smoothing (D)": ("D-ls0.0", "base", "D-ls0.2"),
        "positions (E)": ("base", "E-learned"),
        "base and big": ("base", "big"),
    }


def declared(name: str) -> dict:
    return json.loads((ROOT / "hub_configs" / ROWS[name].config_name / "config.json").read_text())


def test_every_row_is_base_except_for_what_the_table_says():
    assert {*CHANGES, "base", "big"} == set(ROWS)
    for name, changes in CHANGES.items():
        assert declared(name) == declared("base") | changes
    stacks = {f"{stack}_ffn_dim": 4096 for stack in ("encoder", "decoder")}
    stacks |= {f"{stack}_attention_heads": 16 for stack in ("encoder", "decoder")}
    assert declared("big") == declared("base") | {"d_model": 1024, "dropout": 0.3} | stacks


def test_every_recipe_is_bases_except_for_what_the_table_says():
    base = ROWS["base"].settings().values()
    for name, row in ROWS.items():
        settings = row.settings().values()
        changed = {key: value for key, value in settings.items() if value != base[key] and key != "save_steps"}
        expected = {} if name == "base" else {"config_name": row.config_name, "output_dir": f"runs/{row.config_name}"}
        if name.startswith("D-ls"):
            expected["label_smoothing"] = float(name.removeprefix("D-ls"))
        if name == "big":
            expected["max_steps"] = 300_000
        assert changed == expected
        assert settings["average_checkpoints"] == 1


def test_every_row_has_a_recipe():
    assert len(ROWS) == 20
    assert all((ROOT / "training" / "recipes" / f"{row.config_name}.toml").exists() for row in ROWS.values())
