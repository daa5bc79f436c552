"""To the Hub: a repository before the run, its files after it."""

import shlex
from pathlib import Path

from huggingface_hub import HfApi

from vaswani.errors import UserError, first_line


def open_repository(name: str) -> str:
    """Make the repository, or see that it is there and may be written to, before a run that would end with it.

    Parameters
    ----------
    name : str
        Such as "me/model"; without an owner, that of the token is meant.

    Returns
    -------
    str
        Its full name.

    Raises
    ------
    UserError
        If that is not possible.
    """
    try:
        return HfApi().create_repo(name, exist_ok=True).repo_id
    except Exception as error:  # of Python, of the Hub's client or of its HTTP client
        raise UserError(
            f"hub_model_id={name!r} must be a repository that may be written to, after `hf auth login`: "
            f"{first_line(error)}"
        ) from error


def push(folder: Path, name: str) -> str:
    """Send a model folder to its repository, and return the address of the commit.

    What arrived before a line broke is not sent again: a file of weights is kept by its content, and the commit is the
    last step.

    Raises
    ------
    UserError
        If it did not all arrive, with the command that sends the rest.
    """
    try:
        commit = HfApi().upload_folder(repo_id=name, folder_path=folder, commit_message="Publish the trained model")
    except Exception as error:  # as above
        raise UserError(
            f"the model is whole in {folder}, but not on the Hub: {first_line(error)}; to send the rest: "
            f"{shlex.join(['hf', 'upload', name, str(folder)])}"
        ) from error
    return str(commit)
