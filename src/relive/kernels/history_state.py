"""What a checkpoint keeps of a history: the timeline, the columns of its rows, and the observations behind them."""

from collections.abc import Mapping
import dataclasses

from relive import errors
from relive.common import arrays
from relive.kernels import timeline_state
from relive.persistence import state
from relive.schema import schema as schema_lib


@dataclasses.dataclass(frozen=True, kw_only=True)
class HistoryState:
    """The rows of a history, oldest first [N].

    Attributes:
        timeline: Which of them follow which.
        rows: Their fields by path [N, ...]; none if they are in the storage already.
        final: The fields of the observation after the newest step, of each episode that has one [F, ...].
    """

    timeline: timeline_state.TimelineState
    rows: Mapping[str, state.Column]
    final: Mapping[str, arrays.Array]

    @classmethod
    def of(
        cls,
        given: state.Given,
        schema: schema_lib.Schema | None,
        capacity: int,
        streams: int,
        *,
        has_rows: bool = True,
    ) -> "HistoryState":
        """Answers what was given, for a history of that capacity and so many streams, whose rows are of that schema.

        Without `has_rows` they are in the storage already.

        Raises:
            CheckpointError: No history can be in such a state.
        """
        timeline = timeline_state.TimelineState.of(given, capacity, streams)
        if schema is None:
            if timeline.next_key or len(timeline.stream):
                raise errors.CheckpointError("schema must be there where a row was written")
            return cls(timeline=timeline, rows={}, final={})
        count, with_tail = len(timeline), int(timeline.has_tail.sum())
        rows, final = {}, {}
        for path, field in schema.fields.items() if has_rows else ():
            rows[path] = given.column(f"rows/{path}", field.dtype, (count, *field.shape))
        for path in schema.observation_paths:
            field = schema.fields[path]
            final[path] = given.array(f"final/{path}", field.dtype, (with_tail, *field.shape))
        return cls(timeline=timeline, rows=rows, final=final)
