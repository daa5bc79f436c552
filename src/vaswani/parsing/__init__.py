"""Constituency parsing (section 6.3): treebanks, their trees as symbols and back, and EVALB's scores."""
