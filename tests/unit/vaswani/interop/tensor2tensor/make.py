"""Make the .npz files beside this one: small models of random weights, and what tensor2tensor computes with them.

Nothing imports this. It ran once, on 2026-11-23, with Python 3.11, in an environment of its own:

  pip install "tensorflow-cpu==2.15.*" "tensorflow-probability<0.24" tf-slim==1.1.0
  pip install six sympy scipy future tqdm gin-config pillow
  pip install --no-deps tensor2tensor==1.15.7
  python make.py

tensor2tensor imports much that the Transformer does not need; `Anything` takes the place of that.
"""

import importlib.abc
import importlib.machinery
import sys
import types
from pathlib import Path

import numpy as np


HERE = Path(__file__).parent
UNNEEDED = (
    "cv2", "dopamine", "flask", "gevent", "googleapiclient", "gunicorn", "gym", "kfac", "matplotlib",
    "mesh_tensorflow", "oauth2client", "tensorflow_addons", "tensorflow_datasets", "tensorflow_gan", "tensorflow_hub",
)  # fmt: skip
VOCABULARY, TARGET_SPACE, STEPS = 24, 8, 10
CASES = {
    "tied": {},
    "untied": {
        "shared_embedding_and_softmax_weights": False,
        "attention_key_channels": 4,
        "attention_value_channels": 12,
        "num_decoder_layers": 1,
        "norm_epsilon": 0.1,
    },
    "without_target_space": {"use_target_space_embedding": False, "symbol_modality_num_shards": 1},
}


class Anything(types.ModuleType):
    """A module, or whatever is in it."""

    __path__ = []

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {"__init__": lambda *args, **kwargs: None}) if name[0].isupper() else Anything(name)

    def __call__(self, *args, **kwargs):
        return self


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Gives `Anything` for the packages that are not needed."""

    def find_spec(self, name, path, target=None):
        if name.partition(".")[0] in UNNEEDED:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        return Anything(spec.name)

    def exec_module(self, module):
        pass


def make(case, changes):
    """Write the file of one case."""
    import tensorflow.compat.v1 as tf
    from tensor2tensor.layers.modalities import ModalityType
    from tensor2tensor.models import transformer
    from tensor2tensor.utils.hparam import HParams

    tf.reset_default_graph()
    rng = np.random.RandomState(len(case))
    hparams = transformer.transformer_base_v1()
    sizes = {"hidden_size": 8, "filter_size": 12, "num_heads": 2, "num_hidden_layers": 2}
    for name, value in ({"symbol_modality_num_shards": 3} | sizes | changes).items():
        setattr(hparams, name, value)
    settings = hparams.to_json()
    sides = ("inputs", "targets")
    problem = HParams(
        modality=dict.fromkeys(sides, ModalityType.SYMBOL), vocab_size=dict.fromkeys(sides, VOCABULARY), vocabulary={},
        input_space_id=3, target_space_id=TARGET_SPACE, loss_multiplier=1.0, batch_size_multiplier=1,
        stop_at_eos=False, was_reversed=False, was_copy=False,
    )  # fmt: skip
    hparams.add_hparam("problem", None)
    hparams.problem_hparams = problem
    model = transformer.Transformer(hparams, tf.estimator.ModeKeys.EVAL, problem)
    inputs = {side: tf.placeholder(tf.int32, [None, None, 1, 1]) for side in sides}
    logits, _ = model({**inputs, "target_space_id": tf.constant(TARGET_SPACE)})
    source = np.array([[5, 6, 7, 8, 9, 1], [10, 11, 12, 1, 0, 0], [3, 23, 20, 21, 1, 0]])
    target = np.array([[13, 14, 15, 1, 0], [16, 17, 18, 19, 1], [22, 2, 9, 1, 0]])
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        for variable in tf.global_variables():
            drawn = session.run(variable)
            variable.load((drawn + rng.normal(0, 0.3, drawn.shape)).astype(np.float32), session)

        def run(targets):
            fed = {inputs["inputs"]: source[:, :, None, None], inputs["targets"]: targets[:, :, None, None]}
            return session.run(logits, fed)[:, :, 0, 0]

        greedy = np.zeros((len(source), 0), int)
        for _ in range(STEPS):
            step = run(np.pad(greedy, [(0, 0), (0, 1)]))[:, -1]
            greedy = np.concatenate([greedy, 1 + step[:, 1:].argmax(1)[:, None]], 1)  # anything but padding
        variables = {variable.op.name: session.run(variable) for variable in tf.global_variables()}
        np.savez_compressed(
            HERE / f"{case}.npz",
            source=source, target=target, logits=run(target), greedy=greedy, hparams=np.array(settings), **variables,
        )  # fmt: skip


if __name__ == "__main__":
    sys.meta_path.insert(0, Finder())
    import tensorflow.compat.v1

    tensorflow.compat.v1.disable_v2_behavior()
    for each in CASES.items():
        make(*each)
