"""The error that users read as one sentence, without a traceback."""


class UserError(ValueError):
    """Something that the user can put right; its message is one sentence that says what is allowed."""
