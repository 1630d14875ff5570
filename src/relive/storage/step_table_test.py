import numpy as np

import relive
from relive.kernels import append
from relive.storage import finals as finals_lib
from relive.storage import step_table


def test_keys_are_looked_up_among_those_that_are_stored() -> None:
    table = step_table.StepTable(5, 1)
    for count in range(13):
        stored = {key: key % 5 for key in range(max(count - 5, 0), count)}
        for keys in ([], [count - 1], [count - 5, count - 1], [0, count, 3], [count - 6, count - 5], [7, 7, 1]):
            slots, alive = table.lookup(np.array(keys, np.int64))
            assert slots.tolist() == [stored[key] for key in keys if key in stored]
            assert np.array(keys)[alive].tolist() == [key for key in keys if key in stored]
        append.append(table.views, [0], bytes(1), 1)


def test_rows_that_are_gone_are_counted_as_evicted_or_cleared() -> None:
    table = step_table.StepTable(5, 1)
    for _ in range(7):
        append.append(table.views, [0], bytes(1), 1)
    table.clear()
    assert (table.num_evicted, table.oldest_key, len(table)) == (2, 7, 0)
    table.set_num_evicted(6)
    assert (table.num_evicted, table.oldest_key, len(table)) == (6, 7, 0)


def test_final_observations_stay_where_there_is_more_room() -> None:
    field = relive.Field(2, ">i2")
    finals = finals_lib.FinalObservations({"observation": field}, 2)
    finals.columns["observation"][:] = [[1, 2], [3, 4]]
    finals.grow(1)
    assert finals.room == 2
    finals.grow(4)
    wider = finals.with_fields({"observation": field, "more": relive.Field((), "f4")}, 5)
    assert finals.take(np.array([1, 3]))["observation"].tolist() == [[3, 4], [0, 0]]
    assert [column.tolist() for column in wider.take(np.array([0, 4])).values()] == [[[1, 2], [0, 0]], [0.0, 0.0]]
    assert finals.is_same(1, [np.array([9, 9, 3, 4], ">i2").tobytes()], 1)
    assert not finals.is_same(1, [np.array([3, 4, 3, 5], ">i2").tobytes()], 1)
