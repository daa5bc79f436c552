"""Training on a GPU: sentences stand one after another, without padding."""
