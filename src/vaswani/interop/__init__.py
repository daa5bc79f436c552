"""Models of other libraries: ours become theirs, theirs become ours."""
