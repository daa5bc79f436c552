"""What is told to users in one sentence instead of a traceback."""


class UserError(ValueError):
    """Something that the user can put right; its message is one sentence that says what is allowed."""
