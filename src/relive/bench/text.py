"""The tables of a workload and of a curve in plain text, as the command prints them."""

from collections.abc import Iterator

from relive.bench import results


def table(row: results.Row) -> str:
    """Return the lines about a workload: who was measured, then who was not."""
    return "\n".join(["", f"{row.name}: {row.title}, {row.unit}", *_lines(row)]) + "\n"


def curve_table(curve: results.Curve) -> str:
    """Return the lines about a curve, the sizes of one peer after those of the other."""
    return "\n".join(["", f"{curve.name}: {curve.title}, {curve.unit}", *_curve_lines(curve)]) + "\n"


def _curve_lines(curve: results.Curve) -> Iterator[str]:
    if not curve.lines:
        yield "  not measured: none of the peers has such a curve"
        return
    width = max(map(len, curve.lines))
    yield f"  {'':{width}}{curve.part:>14}   median        low       high    x smallest"
    for peer, line in curve.lines.items():
        for size, one in line.items():
            if one.timing:
                times, low, high = curve.growth(peer, size), one.timing.low * 1e6, one.timing.high * 1e6
                words = "a limit" if one.is_limit else "" if one.is_right else f"WRONG: {one.faults()}"
                figures = f"{one.value:10.2f} {low:10.2f} {high:10.2f} {times:13.2f}"
                yield f"  {peer:{width}}{size:14,}{figures}  {words}".rstrip()
            else:
                yield f"  {peer:{width}}{size:14,}  not measured: {one.reason}"


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
