"""Which row request k takes: by seed, without repetition, without memory."""

import numpy as np

from loadgen.datasets.order import InFileOrder, Shuffled


def drawn(order: Shuffled, level: int, count: int) -> list[int]:
    return [order.row(level, k) for k in range(count)]


def test_the_order_is_the_seeds() -> None:
    assert drawn(Shuffled(1000, 7), 0, 1000) == drawn(Shuffled(1000, 7), 0, 1000)
    assert drawn(Shuffled(1000, 7), 0, 50) != drawn(Shuffled(1000, 8), 0, 50)
    assert drawn(Shuffled(1000, 7), 0, 50) != drawn(Shuffled(1000, 7, run=1), 0, 50)


def test_three_workers_together_send_what_one_sends() -> None:
    order = Shuffled(10_000, 3)
    shares = [[order.row(2, k) for k in range(worker, 300, 3)] for worker in range(3)]
    together = [shares[k % 3][k // 3] for k in range(300)]
    assert together == drawn(order, 2, 300)


def test_levels_share_no_row_while_there_are_enough_of_them() -> None:
    order = Shuffled(90_000, 11)
    rows = [row for level in range(8) for row in drawn(order, level, 5_000)]
    assert len(set(rows)) == len(rows)


def test_a_shuffled_file_is_well_mixed() -> None:
    rows = 20_000
    found = np.array(drawn(Shuffled(rows, 5), 0, rows))
    # Neighbours in the file are not neighbours in the order, and no part of the file comes early.
    assert abs(np.corrcoef(found[:-1], found[1:])[0, 1]) < 0.03
    assert abs(np.corrcoef(np.arange(rows), found)[0, 1]) < 0.03
    for part in np.array_split(found, 20):
        assert abs(part.mean() - rows / 2) < 5 * rows / np.sqrt(12 * len(part))


def test_ten_million_rows_are_shuffled_without_a_table_of_them() -> None:
    order = Shuffled(10_000_000, 1)
    found = drawn(order, 0, 2_000)
    assert len(set(found)) == 2_000 and max(found) < 10_000_000
    assert order.row(0, 10_000_000) == order.row(0, 0)


def test_one_row_is_taken_again_and_again() -> None:
    assert drawn(Shuffled(1, 7), 3, 4) == [0, 0, 0, 0]


def test_file_order_begins_with_the_first_row_in_every_level() -> None:
    order = InFileOrder(3)
    assert [order.row(level, k) for level in (0, 5) for k in range(4)] == [0, 1, 2, 0, 0, 1, 2, 0]
