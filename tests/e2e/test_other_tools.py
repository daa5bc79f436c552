"""Tools that nobody here wrote, on our model, and beside it on transformers' Marian with the same weights."""

import copy
import subprocess
import sys
from contextlib import ExitStack
from unittest import mock

import accelerate
import peft
import pytest
import torch
from marian_twin import marian_twin
from packaging.version import Version
from peft import (
    IA3Config,
    LoraConfig,
    PrefixTuningConfig,
    PromptEncoderConfig,
    PromptTuningConfig,
    TaskType,
    get_peft_model,
)
from torch.nn.modules.module import register_module_forward_hook
from torch.testing import assert_close
from transformers import (
    AttentionInterface,
    AttentionMaskInterface,
    AutoConfig,
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    DataCollatorForSeq2Seq,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
)
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from training.settings import ROOT
from vaswani import ConvolutionalConfig, RecurrentConfig, VaswaniConfig, VaswaniForConditionalGeneration
from vaswani.models.cache_vaswani import CACHE
from vaswani.models.search_vaswani import length_penalty


pytestmark = pytest.mark.smoke
PAD = 22
SOURCE = {
    "input_ids": torch.tensor([[5, 9, 14, 3, 7], [8, 2, 11, PAD, PAD], [20, 1, 1, 6, PAD]]),
    "attention_mask": torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0], [1, 1, 1, 1, 0]]),
}
LENGTH = 8


@pytest.fixture(scope="module")
def learned() -> VaswaniForConditionalGeneration:
    """Return a model that has begun to learn to say sentences backwards: so it says something of each."""
    torch.manual_seed(1)
    sizes = {"layers": 2, "attention_heads": 2, "ffn_dim": 32}
    sizes = {f"{stack}_{name}": size for stack in ("encoder", "decoder") for name, size in sizes.items()}
    config = VaswaniConfig(vocab_size=PAD + 1, d_model=16, dropout=0.0, max_position_embeddings=80, **sizes)
    model = VaswaniForConditionalGeneration(config)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(200):
        source = torch.randint(1, PAD, (32, int(torch.randint(2, 6, ()))))
        model(source, labels=torch.cat([source.flip(1), torch.zeros(32, 1, dtype=torch.int64)], dim=1)).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    with torch.no_grad():
        model.model.shared.weight[PAD] = 0  # as our training keeps it: Marian looks it up
    assert len(set(translate(model.eval(), num_beams=1).flatten().tolist())) > 5
    return model


def both(learned) -> dict:
    """Return a model and its twin."""
    return {"ours": copy.deepcopy(learned), "marian": marian_twin(learned)}


@pytest.fixture(params=["ours", "marian"])
def kind(request) -> str:
    return request.param


@pytest.fixture
def model(kind, learned):
    return both(learned)[kind]


def translate(model, **settings) -> torch.Tensor:
    return model.generate(**SOURCE, max_new_tokens=LENGTH, **settings)


def pairs(count: int) -> list[dict[str, list[int]]]:
    """Return sources of random length, whose targets say them backwards."""
    sources = [torch.randint(1, PAD, (int(length),)).tolist() for length in torch.randint(3, 8, (count,))]
    return [
        {"input_ids": [*ids, 0], "attention_mask": [1] * (len(ids) + 1), "labels": [*ids[::-1], 0]} for ids in sources
    ]


def collate(rows: list[dict[str, list[int]]]) -> dict[str, torch.Tensor]:
    """Pad as transformers' collator does, without a tokenizer."""
    fillers = {"input_ids": PAD, "attention_mask": 0, "labels": -100}
    return {
        name: torch.nn.utils.rnn.pad_sequence(
            [torch.tensor(row[name]) for row in rows], batch_first=True, padding_value=filler
        )
        for name, filler in fillers.items()
    }


def trainer_for(model, folder, train, evaluation, collator, **settings) -> Seq2SeqTrainer:
    arguments = Seq2SeqTrainingArguments(
        str(folder),
        predict_with_generate=True,
        max_steps=2,
        eval_strategy="steps",
        eval_steps=1,
        save_steps=1,
        per_device_eval_batch_size=3,  # several batches: the trainer fills the generation config after each
        load_best_model_at_end=True,
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
        **settings,
    )
    return Seq2SeqTrainer(model, arguments, train_dataset=train, eval_dataset=evaluation, data_collator=collator)


@pytest.mark.parametrize(
    "settings",
    [{}, {"generation_num_beams": 4}, {"generation_max_length": 7}],
    ids=str,
)
def test_seq2seq_trainer_trains_evaluates_predicts_saves_and_loads(settings, kind, model, tmp_path):
    trainer = trainer_for(model, tmp_path, pairs(8), pairs(10), collate, **settings)
    trainer.train()
    assert trainer.state.log_history[-2]["eval_loss"] > 0
    predictions = trainer.predict(pairs(10)).predictions
    trainer.save_model(tmp_path / "saved")
    loaded = type(model).from_pretrained(tmp_path / "saved").eval()
    model = model.eval()
    if kind == "ours":  # Marian loads without the positions that it borrowed
        for beams in (1, 4):
            assert torch.equal(translate(loaded, num_beams=beams), translate(model, num_beams=beams))
        longest = predictions.shape[1] if "generation_max_length" in settings else 0
        assert longest <= 20  # to which the trainer pads
        assert lengths_without_an_end(loaded) == [55, 53, 54]
        paper = translate(loaded, num_beams=4, length_penalty_alpha=0.6)
        assert torch.equal(translate(loaded, num_beams=4), paper)


def lengths_without_an_end(model) -> list[int]:
    """Return how many tokens translations may have."""
    tokens = model.generate(**SOURCE, suppress_tokens=[0])
    return (tokens[:, 1:] != PAD).sum(1).tolist()


def test_seq2seq_trainer_leaves_a_published_model_what_it_was(finished_run, tmp_path):
    folder = finished_run / "model"
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModelForSeq2SeqLM.from_pretrained(folder)
    rows = [
        tokenizer(source, text_target=target)
        for source, target in [("one two", "zwei eins"), ("six ten", "zehn sechs"), ("four one", "eins vier")]
    ]
    trainer = trainer_for(
        model, tmp_path, rows * 3, rows * 3, DataCollatorForSeq2Seq(tokenizer, model=model), learning_rate=1e-6
    )
    trainer.train()
    assert trainer.evaluate()["eval_loss"] < 0.5
    trainer.save_model(tmp_path / "saved")
    again = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "saved")
    inputs = tokenizer(["ten nine", "four seven one"], padding=True, return_tensors="pt")
    assert tokenizer.batch_decode(again.generate(**inputs), skip_special_tokens=True) == [
        "neun zehn",
        "eins sieben vier",
    ]
    limited = again.generate(**inputs, suppress_tokens=[0])
    assert limited.shape[1] == 1 + inputs["input_ids"].shape[1] + 50


SIZES = {"vocab_size": PAD + 1, "pad_token_id": PAD, "decoder_start_token_id": PAD}
KINDS = {
    "vaswani": lambda: AutoConfig.from_pretrained(ROOT / "hub_configs" / "demo", **SIZES),
    "recurrent": lambda: RecurrentConfig(**SIZES, d_model=16, attention="scaled_dot"),
    "convolutional": lambda: ConvolutionalConfig(
        **SIZES,
        d_model=16,
        encoder_channels=[16, 32],
        encoder_kernel_sizes=[3, 3],
        decoder_channels=[16],
        decoder_kernel_sizes=[3],
    ),
}


@pytest.mark.parametrize("name", KINDS)
def test_seq2seq_trainer_takes_a_fresh_model(name, tmp_path):
    model = AutoModelForSeq2SeqLM.from_config(KINDS[name]())
    trainer = trainer_for(model, tmp_path, pairs(4), pairs(4), collate)
    trainer.train()
    assert lengths_without_an_end(model.eval()) == [55, 53, 54]
    assert torch.equal(translate(model, num_beams=4), translate(model, num_beams=4, length_penalty_alpha=0.6))
    trainer.save_model(tmp_path / "saved")
    loaded = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "saved").eval()
    assert torch.equal(translate(loaded, num_beams=4), translate(model, num_beams=4))


@pytest.mark.parametrize(("name", "layer"), [("recurrent", "combine"), ("convolutional", "embed_positions")])
@torch.no_grad()
def test_a_predecessor_takes_an_adapter(name, layer):
    torch.manual_seed(0)
    model = AutoModelForSeq2SeqLM.from_config(KINDS[name]()).eval()
    plain = translate(model, num_beams=3)
    adapted = get_peft_model(model, LoraConfig(task_type=TaskType.SEQ_2_SEQ_LM, target_modules=[layer])).eval()
    for weight in (weight for key, weight in adapted.named_parameters() if "lora" in key):
        weight.normal_(0, 1.5)
    translations = translate(adapted, num_beams=3)
    assert translations.shape != plain.shape or not torch.equal(translations, plain)
    with adapted.disable_adapter():
        assert torch.equal(translate(adapted, num_beams=3), plain)
    assert torch.equal(translate(adapted.merge_and_unload(), num_beams=3), translations)


WITHOUT_THE_PACKAGE = """
import sys
sys.modules["vaswani"] = sys.modules["training"] = None  # as if it were not installed
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, DataCollatorForSeq2Seq
from transformers import Seq2SeqTrainer, Seq2SeqTrainingArguments
folder, output = sys.argv[1:]
tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
model = AutoModelForSeq2SeqLM.from_pretrained(folder, trust_remote_code=True)
rows = [tokenizer("one two", text_target="zwei eins")] * 6
arguments = Seq2SeqTrainingArguments(
    output, predict_with_generate=True, max_steps=1, learning_rate=1e-6, eval_strategy="steps", eval_steps=1,
    per_device_eval_batch_size=2, report_to="none", use_cpu=True)
trainer = Seq2SeqTrainer(
    model, arguments, train_dataset=rows, eval_dataset=rows, data_collator=DataCollatorForSeq2Seq(tokenizer, model))
trainer.train()
trainer.save_model(output)
model = AutoModelForSeq2SeqLM.from_pretrained(output, trust_remote_code=True)
print(tokenizer.decode(model.generate(**tokenizer("ten nine", return_tensors="pt"))[0], skip_special_tokens=True))
"""


def test_seq2seq_trainer_works_with_the_published_code_alone(finished_run, tmp_path):
    command = [sys.executable, "-c", WITHOUT_THE_PACKAGE, str(finished_run / "model"), str(tmp_path / "run")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "neun zehn"


VIRTUAL = {"task_type": TaskType.SEQ_2_SEQ_LM, "num_virtual_tokens": 4}
ADAPTERS = {
    "prefix tuning": PrefixTuningConfig(**VIRTUAL),
    "prompt tuning": PromptTuningConfig(**VIRTUAL),
    "p-tuning": PromptEncoderConfig(**VIRTUAL, encoder_hidden_size=8),
    "LoRA": LoraConfig(task_type=TaskType.SEQ_2_SEQ_LM, target_modules=["q_proj", "v_proj"], init_lora_weights=False),
    "IA3": IA3Config(task_type=TaskType.SEQ_2_SEQ_LM, target_modules=["k_proj"], feedforward_modules=[]),
}


@pytest.mark.parametrize("name", ADAPTERS)
@torch.no_grad()
def test_translations_follow_an_adapter(name, kind, model):
    plain = translate(model, num_beams=1)
    adapted = get_peft_model(model, ADAPTERS[name]).eval()
    for parameter in (weight for key, weight in adapted.named_parameters() if "default" in key or "prompt" in key):
        parameter.normal_(0, 1.5)
    if name == "prefix tuning" and CACHE == "cache" and Version(peft.__version__) <= Version("0.21.2"):
        if kind == "ours":
            with pytest.raises(ValueError, match="cache and past_key_values are two names of one argument"):
                translate(adapted, num_beams=1)
        pytest.skip("this PEFT hands its prefix over by the name that transformers had until 5.23")
    theirs = translate(adapted, num_beams=1, return_dict_in_generate=True).sequences
    assert torch.equal(translate(adapted, num_beams=1), theirs)
    assert theirs.shape != plain.shape or not torch.equal(theirs, plain)
    if name not in ("prompt tuning", "p-tuning"):  # which ask for embeddings in place of ids
        check_scores(adapted, kind)


def check_scores(model, kind: str) -> None:
    """Compare the scores of a beam search with the likelihood that the model itself gives to what it found."""
    output = translate(model, num_beams=3, return_dict_in_generate=True, output_scores=True)
    tokens, targets = output.sequences[:, :-1], output.sequences[:, 1:]
    log_probs = model(**SOURCE, decoder_input_ids=tokens).logits.log_softmax(-1).gather(2, targets[..., None])[..., 0]
    counts = (targets != PAD).sum(1)
    totals = log_probs.masked_fill(targets == PAD, 0).sum(1)
    penalty = length_penalty(counts, 0.6) if kind == "ours" else counts
    assert_close(totals / penalty, output.sequences_scores, rtol=1e-4, atol=1e-4)


def test_adapters_can_be_switched_off_and_merged(model):
    plain = translate(model, num_beams=3)
    adapted = get_peft_model(model, ADAPTERS["LoRA"]).eval()
    with adapted.disable_adapter():
        assert torch.equal(translate(adapted, num_beams=3), plain)
    translations = translate(adapted, num_beams=3)
    assert torch.equal(translate(adapted.merge_and_unload(), num_beams=3), translations)


# Ways to change what a model says, each of which moves its logits by BIAS or turns its decoder's output round.
BIAS = torch.linspace(-9, 9, PAD + 1)
BUT_FIRST = torch.arange(1, 5)


def move_logits(module, arguments, output):
    output.logits = output.logits + BIAS


def turn_output_round(module, arguments, output):
    output.last_hidden_state = -output.last_hidden_state


def of_another_class(model, **methods):
    model.__class__ = type("Other", (type(model),), methods)


def biased(forward):
    def changed(*arguments, **keywords):
        output = forward(*arguments, **keywords)
        output.logits = output.logits + BIAS
        return output

    return changed


def hook_on_the_model(model, stack):
    model.register_forward_hook(move_logits)


def hook_on_the_base_model(model, stack):
    model.model.register_forward_hook(turn_output_round)


def hook_on_the_decoder(model, stack):
    model.model.decoder.register_forward_hook(turn_output_round)


def pre_hook_on_the_output_layer(model, stack):
    model.lm_head.register_forward_pre_hook(lambda module, arguments: (-arguments[0],))


def hook_on_everything(model, stack):
    handle = register_module_forward_hook(
        lambda module, arguments, output: output + BIAS if module is model.lm_head else None
    )
    stack.callback(handle.remove)


def forward_of_the_object(model, stack):
    model.forward = biased(model.forward)


def forward_of_the_base_model(model, stack):
    forward = model.model.forward

    def changed(*arguments, **keywords):
        output = forward(*arguments, **keywords)
        output.last_hidden_state = -output.last_hidden_state
        return output

    model.model.forward = changed


def forward_of_a_layer(model, stack):
    model.model.decoder.layers[1].fc2.forward = lambda states: states.new_ones(*states.shape[:-1], 16)


def forward_of_the_class(model, stack):
    forward = type(model).forward

    def changed(self, *arguments, **keywords):
        return biased(forward)(self, *arguments, **keywords)

    stack.enter_context(mock.patch.object(type(model), "forward", changed))


def forward_of_a_subclass(model, stack):
    forward = type(model).forward

    def changed(self, *arguments, **keywords):
        return biased(forward)(self, *arguments, **keywords)

    of_another_class(model, forward=changed)


def inputs_of_a_subclass(model, stack):
    prepare = type(model).prepare_inputs_for_generation

    def changed(self, input_ids, **keywords):
        inputs = prepare(self, input_ids, **keywords)
        return inputs | {"decoder_input_ids": (inputs["decoder_input_ids"] + 1) % PAD}

    of_another_class(model, prepare_inputs_for_generation=changed)


def state_of_a_subclass(model, stack):
    update = type(model)._update_model_kwargs_for_generation

    def changed(self, outputs, model_kwargs, **keywords):
        model_kwargs = update(self, outputs, model_kwargs, **keywords)
        return model_kwargs | {"attention_mask": model_kwargs["attention_mask"].clone().index_fill_(1, BUT_FIRST, 0)}

    of_another_class(model, _update_model_kwargs_for_generation=changed)


def attention_of_ones_own(model, stack):
    def backwards(module, query, key, value, mask, **keywords):
        return sdpa_attention_forward(module, -query, key, value, mask, **keywords)

    AttentionInterface.register("backwards", backwards)
    AttentionMaskInterface.register("backwards", sdpa_mask)
    model.set_attn_implementation("backwards")


CHANGES = [
    hook_on_the_model,
    hook_on_the_base_model,
    hook_on_the_decoder,
    pre_hook_on_the_output_layer,
    hook_on_everything,
    forward_of_the_object,
    forward_of_the_base_model,
    forward_of_a_layer,
    forward_of_the_class,
    forward_of_a_subclass,
    inputs_of_a_subclass,
    state_of_a_subclass,
    attention_of_ones_own,
]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_whoever_changes_the_model_is_heard(change, learned):
    models = both(learned)
    plain, beams = translate(models["ours"], num_beams=1), translate(models["ours"], num_beams=3)
    assert torch.equal(translate(models["marian"], num_beams=1), plain)
    with ExitStack() as stack:
        for model in models.values():
            change(model, stack)
        changed = [translate(model, num_beams=1) for model in models.values()]
        assert torch.equal(*changed)
        assert not torch.equal(changed[0], plain)
        assert not torch.equal(translate(models["ours"], num_beams=3), beams)
        if change not in (inputs_of_a_subclass, state_of_a_subclass):  # which only generate() asks
            check_scores(models["ours"], "ours")


def test_an_output_layer_with_a_bias_is_heard(learned):
    model = both(learned)["ours"]
    model.lm_head = torch.nn.Linear(16, PAD + 1)
    check_scores(model, "ours")
    theirs = translate(model, num_beams=1, return_dict_in_generate=True).sequences
    assert torch.equal(translate(model, num_beams=1), theirs)


# Parts of transformers' loops, which ours are not.
@pytest.mark.parametrize("name", ["_sample", "_beam_search", "_prefill", "_get_stopping_criteria"])
def test_whoever_changes_transformers_loops_gets_these(name, learned):
    model, calls = both(learned)["ours"], []
    theirs = getattr(type(model), name)

    def noted(self, *arguments, **keywords):
        calls.append(name)
        return theirs(self, *arguments, **keywords)

    of_another_class(model, **{name: noted})
    translate(model, num_beams=3 if name == "_beam_search" else 1)
    assert calls


@pytest.mark.parametrize("beams", [1, 3])
def test_hooks_fire_at_every_step(beams, learned):
    seen = {}
    for kind, model in both(learned).items():
        calls = seen[kind] = []
        for name in ("", "model", "model.encoder", "model.decoder", "model.decoder.layers.1", "lm_head"):
            module = model.get_submodule(name)
            module.register_forward_pre_hook(lambda *given, calls=calls, name=name: calls.append(f"before {name}"))
            module.register_forward_hook(lambda *given, calls=calls, name=name: calls.append(f"after {name}"))
        translate(model, num_beams=beams, suppress_tokens=[0, PAD])
    assert seen["ours"] == seen["marian"]
    assert seen["ours"].count("before model") == LENGTH


@pytest.mark.parametrize("settings", [{}, {"do_sample": True, "top_k": 1}], ids=str)
def test_an_assistant_changes_no_translation(settings, kind, learned):
    model, assistant = both(learned)[kind], both(learned)[kind]
    source = {name: tensor[:1] for name, tensor in SOURCE.items()}
    plain = model.generate(**source, num_beams=1, max_new_tokens=LENGTH)
    assisted = {"assistant_model": assistant}, {"prompt_lookup_num_tokens": 2}
    for helped in assisted:
        assert torch.equal(model.generate(**source, num_beams=1, max_new_tokens=LENGTH, **settings, **helped), plain)
    if kind == "ours":
        unlimited = model.generate(**source, num_beams=1, assistant_model=assistant, suppress_tokens=[0])
        assert unlimited.shape[1] == 1 + 5 + 50


@pytest.mark.parametrize("where", ["cpu_offload", "disk_offload", "device_map"])
def test_weights_may_lie_elsewhere(where, learned, tmp_path):
    model = both(learned)["ours"]
    expected = [translate(model, num_beams=beams) for beams in (1, 3)]
    if where == "cpu_offload":
        accelerate.cpu_offload(model)
    elif where == "disk_offload":
        accelerate.disk_offload(model, tmp_path / "offloaded")
    else:
        model.save_pretrained(tmp_path / "model")
        model = type(model).from_pretrained(
            tmp_path / "model", device_map="auto", max_memory={"cpu": 18_000}, offload_folder=tmp_path / "offloaded"
        )
        assert set(model.hf_device_map.values()) == {"cpu", "disk"}
    for beams, tokens in zip((1, 3), expected, strict=True):
        assert torch.equal(translate(model, num_beams=beams), tokens)


def test_what_is_compiled_is_used(learned):
    model, calls = both(learned)["ours"], []
    expected = [translate(model, num_beams=beams) for beams in (1, 3)]
    assert torch.equal(torch.compile(model.generate)(**SOURCE, num_beams=1, max_new_tokens=LENGTH), expected[0])

    def backend(graph, inputs):
        return lambda *given: calls.append(1) or graph(*given)

    model.compile(backend=backend)
    for beams, tokens in zip((1, 3), expected, strict=True):
        calls.clear()
        assert torch.equal(translate(model, num_beams=beams), tokens)
        assert calls
