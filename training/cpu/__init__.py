"""Training on a CPU: what lies between the matrix products, as kernels in C."""
