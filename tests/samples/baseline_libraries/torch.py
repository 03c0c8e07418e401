"""A torch that knows no GPU, and of tensors only their shape."""

import contextlib

__version__ = "2.0+fake"


class cuda:  # noqa: N801
    @staticmethod
    def is_available():
        return False


class Tensor:
    def __init__(self, rows):
        self.rows = rows
        self.shape = (len(rows), len(rows[0]))


def tensor(rows, device):
    return Tensor(rows)


def ones_like(other):
    return Tensor([[1] * other.shape[1]] * other.shape[0])


def get_num_threads():
    return 3


inference_mode = contextlib.nullcontext
