"""Serve a model as a web page: translate text and files, with alternatives, scores and attention; with an API.

  vaswani demo --model runs/demo/model
  vaswani demo --model me/my-model --server_name 0.0.0.0 --server_port 8080
  vaswani demo --model demo-ct2 --engine ctranslate2
  vaswani demo --model runs/demo/model --space my-space

Another engine takes what `vaswani export` wrote, and shows no attention. The last writes a folder that is a ready
Space of the Hugging Face Hub: it holds the model, and runs with `pip install -r requirements.txt && python app.py`
anywhere.
"""

import argparse
from contextlib import suppress
from pathlib import Path

from transformers.utils.logging import disable_progress_bar

from vaswani.demo.app import serve
from vaswani.demo.interpreter import Interpreter
from vaswani.demo.space import write_space
from vaswani.errors import UserError
from vaswani.interruption import Interrupted

from .shared.flags import add_engine_flag, add_model_flags
from .shared.loading import load_model


THIS_MACHINE = "127.0.0.1"
SERVING = ("server_name", "server_port", "tokenizer", "device", "dtype", "engine")


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add all flags of the command."""
    parser.add_argument("--model", required=True, metavar="DIR_OR_HUB_ID", help="a published model that translates")
    parser.add_argument("--space", type=Path, metavar="DIR", help="write a Space for --model, a folder, instead")
    serving = parser.add_argument_group("serving")
    serving.add_argument(
        "--server_name",
        metavar="ADDRESS",
        help=f"0.0.0.0 for all of a network (default: {THIS_MACHINE})",
    )
    serving.add_argument("--server_port", type=int, metavar="PORT", help="default: the first free one from 7860 on")
    add_model_flags(serving)
    add_engine_flag(serving)


def run(options: argparse.Namespace) -> int:
    """Serve until interrupted, or write a Space, and return the exit status.

    Raises
    ------
    UserError
        If the model cannot be loaded or does not translate, the port is not free, or the folder cannot be written.
    """
    disable_progress_bar()  # transformers' own, at loading
    if options.space is not None:
        if ignored := [name for name in SERVING if getattr(options, name) not in (None, "auto", "torch")]:
            raise UserError(f"{ignored[0]} is for serving: space only writes a folder")
        write_space(Path(options.model), options.space)
        print(f"Written: {options.space}")
        return 0
    port = options.server_port
    if port is not None and not 1 <= port <= 65535:
        raise UserError(f"server_port={port} must be from 1 to 65535")
    interpreter = Interpreter(*load_model(options))
    address = options.server_name or THIS_MACHINE
    try:
        with suppress(Interrupted):  # which is how serving ends
            serve(interpreter, server_name=address, server_port=port)
    except OSError as error:
        raise UserError(
            f"server_name={address!r}, server_port={port} cannot be served on: another program may use "
            "that port; choose another, or leave it out"
        ) from error
    return 0
