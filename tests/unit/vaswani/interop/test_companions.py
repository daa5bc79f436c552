from vaswani.interop.companions import CONFIG, load_config, save_beside


def test_a_search_finds_config_settings_and_tokenizer_beside_the_model(model, tokenizer, tmp_path):
    save_beside(model, tokenizer, tmp_path)
    assert load_config(tmp_path).to_dict() == model.config.to_dict()
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {CONFIG, "generation_config.json", "tokenizer.json", "tokenizer_config.json"}
