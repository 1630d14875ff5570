"""The table of a workload in plain text, as the command prints it."""

from collections.abc import Iterator

from relive.bench import results


def table(row: results.Row) -> str:
    """Answers the lines about a workload: who was measured, then who was not."""
    return "\n".join(["", f"{row.name}: {row.title}, {row.unit}", *_lines(row)]) + "\n"


def _lines(row: results.Row) -> Iterator[str]:
    width = max(len(outcome.peer) for outcome in row.outcomes)
    yield f"  {'':{width}}   median        low       high    x relive"
    for outcome in sorted(row.measured, key=lambda one: (one.is_limit, one.value)):
        value, timing = outcome.value or 0.0, outcome.timing
        low, high = (timing.low * 1e6, timing.high * 1e6) if timing else (value, value)
        ratio = row.ratio(outcome, row.own)
        times = f"{ratio:10.2f}" if ratio is not None else f"{'':10}"
        words = "a limit" if outcome.is_limit else f"WRONG: {outcome.faults()}" if not outcome.is_right else ""
        yield f"  {outcome.peer:{width}}{value:10.2f} {low:10.2f} {high:10.2f} {times}  {words}".rstrip()
    reasons: dict[str, list[str]] = {}
    for outcome in row.outcomes:
        if outcome.value is None:
            reasons.setdefault(outcome.reason, []).append(outcome.peer)
    for reason, names in reasons.items():
        yield f"  not measured: {', '.join(names)}: {reason}"
