"""Shortlists: which tokens a translation may be made of, given the tokens of its source."""
